"""`cedos join`: this user's programs use one more gateway from now on."""

import asyncio
import sys
import time
from pathlib import Path

import click

from cedos.commands.console.manual import Manual
from cedos.commands.console.render import echo
from cedos.commands.console.user_rules import of_sessions
from cedos.errors import CedosError, SessionError
from cedos.proxy.gateway.gateway import LIMITS
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.session import keys
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
        ("cedos join --leave gw.example.org", "Forgets that gateway."),
        ("cedos join --leave", "Forgets all gateways."),
    ],
    exits={0: "", 1: "The gateway does not answer, or does not know this line.", 2: ""},
    files=[
        ("~/.config/cedos/gateway.toml", "The gateways and their secrets, for this user alone.")
    ],
)
@click.argument("line", metavar="LINE|HOST", required=False)
@click.option("--leave", is_flag=True, help="Forget the gateway HOST, or all of them.")
@click.option("--no-check", is_flag=True, help="Do not check whether the gateway answers.")
def command(line: str | None, leave: bool, no_check: bool) -> None:
    """Join a gateway by the LINE that `cedos gateway` printed there; `-` reads the line from input.

    `cedos forward` then carries programs' connections through it. Several gateways may be joined;
    a connection goes through the first one that answers.
    """
    if leave:
        _leave(joined_gateway.own_path(), line)
        return
    if line is None:
        raise click.UsageError("either a LINE, or --leave")
    text = sys.stdin.readline() if line == "-" else line
    # (A person may paste the whole line that was printed.)
    text = text.strip().removeprefix("cedos join ").strip()
    try:
        joined = joined_gateway.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="LINE") from None
    if not no_check:
        took_s, networks = asyncio.run(_try(joined))
        echo(f"{joined} answers over {networks} ({1e3 * took_s:.0f} ms).")
    add(joined)
    echo(
        f"Joined {joined}. `cedos forward` is a proxy for programs (SOCKS 5 and HTTP) at 127.0.0.1"
        " port 1080; a program uses it with https_proxy=http://127.0.0.1:1080, say. `sudo cedos"
        " forward --redirect USER` carries all that a user's programs connect to, without their knowing."
    )


def add(joined: JoinedGateway) -> None:
    """Add a gateway to this user's file, or replace the entry with its key. ConfigError."""
    file = joined_gateway.own_path()
    with keys.changed_alone(file):
        known = joined_gateway.read(file) if file.exists() else []
        joined_gateway.write(file, joined_gateway.add(known, joined))


def _leave(file: Path, host: str | None) -> None:
    with keys.changed_alone(file):
        known = joined_gateway.read(file) if host is not None else []
        left = [each for each in known if host not in (each.host, str(each))]
        if host is not None and left == known:
            raise CedosError(f"{host} is not joined; there are {', '.join(map(str, known))}")
        if left:
            joined_gateway.write(file, left)
        else:
            file.unlink(missing_ok=True)


async def _try(joined: JoinedGateway) -> tuple[float, str]:
    ruled, refused = of_sessions(), dict[str, None]()
    await ruled.follow()

    def usable(egress: str, address: str) -> bool:
        if why := ruled.refusal(egress, joined.address, address):
            refused[why] = None
        return not why

    began_s = time.monotonic()
    try:
        connection = await connect(
            joined.address,
            server_key=joined.server_key,
            key=joined.client,
            timeout_s=_PATIENCE_S,
            networks=usable,
            limits=LIMITS,
            looked_up=ruled.follow,
        )
    except SessionError as error:
        why = f" ({', '.join(refused)})" if refused else ""
        raise CedosError(
            f"{joined} is not joined: {error}{why}. Is `cedos gateway` running there, may"
            f" {joined} be reached, and is the line a new one?"
        ) from error
    took_s = time.monotonic() - began_s
    networks = ", ".join(sorted({path.network for path in connection.paths()}))
    connection.abort("only tried")
    await connection.wait_drained()
    return took_s, networks
