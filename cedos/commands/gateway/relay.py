"""`cedos relay`: MPTCP for clients, whoever their server is."""

import asyncio
import os
import signal
from pathlib import Path

import click

from cedos import logs
from cedos.commands.console import render
from cedos.commands.console.manual import Manual, json_option
from cedos.commands.console.option_types import DURATION, NETWORK
from cedos.commands.console.servers import listen_address_at
from cedos.doctor import mptcp
from cedos.doctor.finding import Files, Finding, FindingState
from cedos.errors import ConfigError, HostError, PrivilegeError
from cedos.kernel.service_manager import Notifier
from cedos.proxy.gateway.admission import GUARDED_PORTS, IPNetwork, read_tokens
from cedos.proxy.gateway.listening import RelayAddress, open_socket
from cedos.proxy.gateway.relay import PORT, Relay, RelaySettings, log


@click.command(
    cls=Manual,
    examples=[
        ("cedos relay", "For this host and private networks, on port 3128."),
        (
            "cedos relay --allow 203.0.113.0/24 --token-file /etc/cedos/relay-tokens",
            "For one network of clients, who also have to name a token.",
        ),
        (
            "mptcpize run env https_proxy=http://relay.example:3128 curl -O https://example.org/file",
            "A client: its connection survives the walk from Wi-Fi to the mobile network.",
        ),
        (
            "sudo cedos relay --transparent 80 --transparent 443 --allow 10.8.0.0/16",
            "For clients that know nothing of it; `cedos example relay-rules` diverts them here.",
        ),
        ("cedos relay --check --json", "Whether this host can do it, for programs."),
        (
            "cedos example relay-unit | sudo tee /etc/systemd/system/cedos-relay.service",
            "Installs it as a service.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C or SIGTERM; or, with --check, the host can do all of it.",
        **dict.fromkeys((1, 2), ""),
        3: "A privilege is missing: CAP_NET_ADMIN for --transparent, or one for a port below 1024.",
        4: "It cannot listen there; or, with --check, something is missing.",
    },
)
@click.option(
    "-l",
    "--listen",
    "listen",
    type=listen_address_at(PORT),
    multiple=True,
    help=f"Where clients name the relay as their proxy; may be repeated.  [default: {PORT}, unless "
    "--transparent is given]",
)
@click.option(
    "-t",
    "--transparent",
    type=listen_address_at(PORT),
    multiple=True,
    help="Take connections that this host diverts to this port, on their way to any server; may be "
    "repeated. MPTCP needs the port that is diverted, and TPROXY.",
)
@click.option(
    "-a",
    "--allow",
    type=NETWORK,
    multiple=True,
    help="Clients; may be repeated and replaces the default.  [default: this host, 10.0.0.0/8, "
    "172.16.0.0/12, 192.168.0.0/16, fc00::/7]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="One token a line; a client names one as the password of any user, or as a bearer token. "
    "Does not apply to transparent clients.",
)
@click.option(
    "--deny", type=NETWORK, multiple=True, help="Never connect to this network; may be repeated."
)
@click.option(
    "--allow-inside",
    type=NETWORK,
    multiple=True,
    help="Also connect to this private, carrier's or link-local network (10.0.0.0/8, say); may be"
    " repeated. A wider one opens no link-local address (clouds' metadata): 169.254.0.0/16 does.",
)
@click.option(
    "--allow-port",
    type=click.Choice([str(port) for port in GUARDED_PORTS]),
    multiple=True,
    help="Also connect to port 22 (SSH) or 25 (mail); may be repeated.",
)
@click.option(
    "--allow-local",
    is_flag=True,
    help="Also connect to this host's own addresses, and loopback; never to itself.",
)
@click.option(
    "--max-connections", default=4096, show_default=True, type=click.IntRange(1, 500_000),
    help="Connections at once; others are answered 503.",
)  # fmt: skip
@click.option(
    "--max-per-client", default=512, show_default=True, type=click.IntRange(1),
    help="Connections at once of one address.",
)  # fmt: skip
@click.option(
    "--idle", default="15min", show_default=True, type=DURATION,
    help="A connection on which nothing moves is ended after this.",
)  # fmt: skip
@click.option(
    "--connect-timeout", default="10s", show_default=True, type=DURATION,
    help="For finding and reaching a server; then the client is answered 504.",
)  # fmt: skip
@click.option(
    "--drain", default="5s", show_default=True, type=DURATION,
    help="How long living connections may go on after Ctrl-C; a second one ends them at once.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Say whether this host can do it, and end.")
@click.option(
    "--log-level", default="info", show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="info has a line for each connection; warning has none.",
)  # fmt: skip
@click.option(
    "--log-format", default="console", show_default=True, type=click.Choice(["console", "json"])
)
@json_option
def command(
    listen: tuple[tuple[str, int], ...],
    transparent: tuple[tuple[str, int], ...],
    allow: tuple[IPNetwork, ...],
    token_file: Path | None,
    deny: tuple[IPNetwork, ...],
    allow_inside: tuple[IPNetwork, ...],
    allow_port: tuple[str, ...],
    allow_local: bool,
    max_connections: int,
    max_per_client: int,
    idle: float,
    connect_timeout: float,
    drain: float,
    check: bool,
    log_level: logs.Level,
    log_format: logs.Format,
    as_json: bool,
) -> None:
    """Splits TCP connections: MPTCP to the client, plain TCP to the server.

    Few servers speak MPTCP, and only an MPTCP connection can be moved from one network to another
    while it lives. Run this on a host between the clients and the servers, near the clients'
    providers. Clients name it as their proxy (CONNECT for everything encrypted, whole URLs for
    plain HTTP), or do not know of it and are diverted by that host's own rules.

    It is never open to everybody: clients are this host's and private networks' unless --allow says
    otherwise. It connects to no private network, to no address of its own host and not to ports 22
    and 25, unless --allow-inside, --allow-local and --allow-port say so. It needs no privilege but for
    --transparent. Refusals have an HTTP status and say why: 403 not allowed, 407 no token, 502 the
    server refuses or is not found, 503 too many connections, 504 no answer.

    A connection that breaks on one side is reset on the other, so that nobody takes half a file for
    a whole one. Of a connection in clear, one request is taken, then it is closed. It logs to
    standard error.
    """
    if as_json and not check:
        raise click.UsageError("--json goes with --check")
    defaults = RelaySettings()
    where = (
        *_spread(listen, transparent=False),
        *_spread(transparent, transparent=True),
    )
    settings = RelaySettings(
        listen=where or defaults.listen,
        listen_optional=all(not address for address, _ in (*listen, *transparent)),
        allow=allow or defaults.allow,
        tokens=() if token_file is None else read_tokens(token_file),
        deny=deny,
        inside=allow_inside,
        ports=tuple(map(int, allow_port)),
        local=allow_local,
        most=max_connections,
        most_per_client=max_per_client,
        idle_s=idle,
        connect_s=connect_timeout,
        drain_s=drain,
    )
    if len(set(map(str, settings.listen))) < len(settings.listen):
        raise ConfigError("--listen and --transparent name one port twice")
    if check:
        _check(settings, as_json)
        return
    logs.configure(log_level, log_format)
    asyncio.run(_serve(settings))


def _spread(given: tuple[tuple[str, int], ...], *, transparent: bool) -> list[RelayAddress]:
    return [
        RelayAddress(each, port, transparent)
        for address, port in given
        for each in ([address] if address else ["0.0.0.0", "::"])  # noqa: S104
    ]


async def _serve(settings: RelaySettings) -> None:
    """Runs until SIGINT, SIGTERM or a closed terminal; the second one ends what is still there."""
    relay = Relay(settings)
    relay.open()
    loop = asyncio.get_running_loop()
    notifier = Notifier()

    def end() -> None:
        notifier.stopping("letting connections end")
        relay.end()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
    if not relay.mptcp:
        log.warning(
            "no MPTCP: clients' connections cannot move; `cedos relay --check` says why",
        )
    log.info("ready", listens=relay.addresses, mptcp=relay.mptcp, clients=_shown(settings))
    notifier.ready(f"{', '.join(relay.addresses)}")
    await relay.run()
    log.info("ended")


def _shown(settings: RelaySettings) -> str:
    networks = ", ".join(map(str, settings.allow))
    return f"{networks}, with a token" if settings.tokens else networks


def _check(settings: RelaySettings, as_json: bool) -> None:
    files = Files()
    found: list[Finding | None] = [
        mptcp.kernel(os.uname().release),
        mptcp.available(files),
        mptcp.black_hole(files),
        *(_listening(where) for where in settings.listen),
    ]
    findings = [finding for finding in found if finding is not None]
    if as_json:
        render.print_json({"can_run": _fine(findings), "findings": findings})
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            click.echo(f"{finding.state:<7}  {finding.topic:<{width}}  {finding.found}")
            if finding.remedy:
                click.echo(f"{'':<{11 + width}}how:  {finding.remedy}")
    if not _fine(findings):
        raise HostError("the relay cannot do all of this here; see above")


def _fine(findings: list[Finding]) -> bool:
    return all(finding.state is not FindingState.MISSING for finding in findings)


def _listening(where: RelayAddress) -> Finding:
    topic = f"{'transparent at' if where.transparent else 'listen at'} {where}"
    try:
        open_socket(where)[0].close()
    except (HostError, OSError) as error:
        return Finding(topic, FindingState.MISSING, str(error), "no clients", "another --listen")
    except PrivilegeError as error:
        remedy = "run it as root, or by the systemd unit (`cedos example relay-unit`)"
        return Finding(topic, FindingState.MISSING, str(error), "no clients", remedy)
    return Finding(topic, FindingState.OK, "possible")
