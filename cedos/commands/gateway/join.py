"""`cedos join`: this user's programs use a gateway from now on."""

import asyncio
import sys
import time

import click

from cedos.commands.console.manual import Manual
from cedos.errors import CedosError, SessionError
from cedos.proxy.gateway.gateway import LIMITS
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.session.sockets.sockets import connect

_PATIENCE_S = 5.0


@click.command(
    cls=Manual,
    examples=[
        (
            "cedos join cedos://...@gw.example.org:7009/...",
            "Joins the gateway that printed the line.",
        ),
        ("cedos join - < line", "The same, without the secret in the list of processes."),
        ("cedos join --leave", "Forgets it."),
    ],
    exits={0: "", 1: "The gateway does not answer, or does not know this line.", 2: ""},
    files=[("~/.config/cedos/gateway.toml", "The gateway and the secret, for this user alone.")],
)
@click.argument("line", required=False)
@click.option("--leave", is_flag=True, help="Forget the gateway.")
@click.option("--no-check", is_flag=True, help="Do not try whether it answers.")
def command(line: str | None, leave: bool, no_check: bool) -> None:
    """Joins the gateway whose LINE was printed by `cedos gateway` there; `-` reads it from input.

    `cedos forward` then carries programs' connections through it.
    """
    file = joined_gateway.own_path()
    if leave == (line is not None):
        raise click.UsageError("either a LINE, or --leave")
    if line is None:
        file.unlink(missing_ok=True)
        return
    text = sys.stdin.readline() if line == "-" else line
    # (A person may paste the whole line that was printed.)
    text = text.strip().removeprefix("cedos join ").strip()
    try:
        joined = joined_gateway.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="LINE") from None
    if not no_check:
        took_s, networks = asyncio.run(_try(joined))
        click.echo(f"{joined} answers over {networks} ({1e3 * took_s:.0f} ms).")
    joined_gateway.write(file, joined)
    click.echo(
        f"Joined {joined}. `cedos forward` is a proxy for programs (SOCKS 5 and HTTP) at 127.0.0.1"
        " port 1080; a program uses it with https_proxy=http://127.0.0.1:1080, say. `sudo cedos"
        " forward --redirect USER` carries all that a user's programs connect to, without their knowing."
    )


async def _try(joined: JoinedGateway) -> tuple[float, str]:
    began_s = time.monotonic()
    try:
        connection = await connect(
            (joined.host, joined.port),
            spares=joined.others,
            server_key=joined.server_key,
            key=joined.client,
            timeout_s=_PATIENCE_S,
            limits=LIMITS,
        )
    except SessionError as error:
        raise CedosError(
            f"the gateway does not let this client in: {error}. Is `cedos gateway` running there, may"
            f" {joined} be reached, and is the line a new one?"
        ) from error
    took_s = time.monotonic() - began_s
    networks = ", ".join(sorted({path.network for path in connection.paths()}))
    connection.abort("only tried")
    await connection.drained()
    return took_s, networks
