"""`cedos forward`: programs' connections through the gateway that was joined."""

import asyncio
import contextlib
import pwd
import re
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import click

from cedos import logs
from cedos.api.asking import DaemonChooser, DaemonRoutes
from cedos.api.client import ControlClient
from cedos.commands.console.manual import Manual, Parsed
from cedos.commands.console.servers import interfaces, listen_address
from cedos.commands.console.user_rules import RuledHosts, of_sessions
from cedos.config.directories import directories
from cedos.errors import CedosError, ConfigError, DaemonUnreachableError
from cedos.host.profiler.sizes import SizeHistory
from cedos.kernel import process_limits
from cedos.kernel.service_manager import call_at_end
from cedos.logs import BoundLogger, get_logger
from cedos.model import is_address
from cedos.proxy.http import RefusedError, authority
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.carried import CarriedConnections, CarriedTeller
from cedos.proxy.local.direct import LocalNames
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.proxy.local.name_stub import KnownNames, NameStub
from cedos.proxy.local.redirected_datagrams import RedirectedDatagrams
from cedos.proxy.local.redirection import Redirection
from cedos.proxy.local.redirection_programs import LedTo
from cedos.proxy.names import names_by_socket
from cedos.session.io.links import EgressReader

PORT: Final = 1080
_DAEMON_S: Final = 1.0
_SERVERS_KNOWN: Final = 1_024
# The interval at which the command looks for gateways that were joined or left, s.
_LOOK_S: Final = 3.0
# At the end what was led here a moment ago still arrives: another user may have the port after that.
_LED_S: Final = 0.2
_LOOPBACK: Final = ("127.0.0.1", "::1")
_FORWARDING = re.compile(r"((?:\[[^\]]+\]:|[^:\[\]]+:)?\d+):((?:\[[^\]]+\]|[^:\[\]]+):\d+)")

log: Final[BoundLogger] = get_logger()


def _far_end(text: str) -> tuple[str, int]:
    """`intranet:80`, `[2001:db8::1]:22`."""
    try:
        host, port = authority(text)
    except RefusedError:
        host, port = "", None
    if port is None:
        raise ValueError(f"{text!r} is not a destination such as intranet:80")
    return host, port


def _user(text: str) -> int:
    """By name or number."""
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        if not text.isdecimal() or int(text) >= 1 << 32:
            raise ValueError(f"there is no user {text!r} here") from None
        return int(text)


def _loopback(text: str) -> tuple[str, int]:
    """Parse `1080` (the usual loopback addresses), `127.0.0.2:1080` or `[::1]:1080`."""
    with contextlib.suppress(ValueError):
        address, port = listen_address(text)
        if not address or ip_address(address).is_loopback:
            return address, port
    raise ValueError(
        f"{text!r} is not {PORT}, 127.0.0.1:{PORT} or [::1]:{PORT}: only loopback is served"
    )


_LOOPBACK_PORT: Final = Parsed("[address:]port", _loopback)


def _forwarding(text: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """`8080:intranet:80`, `127.0.0.2:8080:[2001:db8::1]:80`."""
    match = _FORWARDING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a forwarding such as 8080:intranet:80")
    return _loopback(match[1]), _far_end(match[2])


@click.command(
    cls=Manual,
    examples=[
        (
            "cedos forward",
            "A proxy at 127.0.0.1 port 1080, for programs that can use one (SOCKS 5 or HTTP).",
        ),
        (
            "https_proxy=http://127.0.0.1:1080 curl -O https://example.org/file",
            "A download that survives the walk from Wi-Fi to the mobile network.",
        ),
        (
            "sudo cedos forward --redirect alice --redirect _apt",
            "All connections and calls of alice's programs and of apt, which need no settings.",
        ),
        (
            "cedos forward -L 8080:intranet:80",
            "Connections to port 8080 here reach port 80 of intranet.",
        ),
        (
            "cedos forward --dns 5353",
            "A resolver at 127.0.0.1 port 5353, which asks the gateway's resolver.",
        ),
        (
            "cedos forward --fail closed -n wlan0",
            "Everything goes through the gateway, and over wlan0 only.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C, SIGTERM or a closed terminal.",
        2: "",
        4: "It cannot listen there.",
    },
    files=[("~/.config/cedos/gateway.toml", "The gateway that was joined (`cedos join`).")],
)
@click.option(
    "-D", "--proxy", "proxies", type=_LOOPBACK_PORT, multiple=True, metavar="[ADDRESS:]PORT",
    help=f"The address of the proxy on loopback; may be repeated.  [default: {PORT}, unless -L or"
    " --redirect is given]",
)  # fmt: skip
@click.option(
    "-L", "--local", "locals_", type=Parsed("[address:]port:host:port", _forwarding), multiple=True,
    help="Connections to this port reach that host's port from the gateway; may be repeated.",
)  # fmt: skip
@click.option(
    "-r", "--redirect", "users", type=Parsed("user", _user), multiple=True, metavar="USER",
    help="Carry TCP and UDP of this user's programs, and look their names up at the gateway; may be"
    " repeated. The programs need no settings. QUIC is refused, so that browsers use TCP. Needs root.",
)  # fmt: skip
@click.option(
    "--dns", "dns", type=_LOOPBACK_PORT, multiple=True, metavar="[ADDRESS:]PORT",
    help="Run a resolver on loopback that asks the gateway's resolver; may be repeated. Names without a"
    " dot, .local and the like, names of search domains and of /etc/hosts are looked up by this host.",
)  # fmt: skip
@click.option(
    "--dns-direct", "domains", multiple=True, metavar="DOMAIN",
    help="Look up names of this domain by this host's own resolvers (a VPN's, for example); may be"
    " repeated.",
)  # fmt: skip
@click.option(
    "--gateway", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="The file of joined gateways.  [default: ~/.config/cedos/gateway.toml; under sudo also that of"
    " the calling user]",
)  # fmt: skip
@click.option(
    "--fail", type=click.Choice([str(each) for each in Fail]), default="open", show_default=True,
    help="While the gateway cannot be reached, connections go direct (open) or are refused (closed).",
)  # fmt: skip
@click.option(
    "--detour", type=click.Choice(["worth", "always"]), default="worth", show_default=True,
    help="worth: a connection goes direct if the daemon finds that the gateway costs more time than it"
    " saves (`cedos explain` says why). always: every connection uses the gateway, as also without a"
    " daemon, with --fail closed and with -n.",
)  # fmt: skip
@click.option(
    "-n", "--network", "networks", metavar="INTERFACE", multiple=True,
    help="Reach the gateway over this interface only; may be repeated.  [default: all; the daemon chooses"
    " among them]",
)  # fmt: skip
@click.option(
    "--log-level", default="info", show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
)  # fmt: skip
@click.option(
    "--log-format", default="console", show_default=True, type=click.Choice(["console", "json"])
)
def command(
    proxies: tuple[tuple[str, int], ...],
    locals_: tuple[tuple[tuple[str, int], tuple[str, int]], ...],
    users: tuple[int, ...],
    dns: tuple[tuple[str, int], ...],
    domains: tuple[str, ...],
    file: Path | None,
    fail: str,
    detour: str,
    networks: tuple[str, ...],
    log_level: logs.Level,
    log_format: logs.Format,
) -> None:
    """Carry programs' connections through the gateway, over all networks of this host.

    A connection survives a dead Wi-Fi and a phone with a new address, and can use both networks at
    once. Local destinations go direct: private addresses, names without a dot, .local. Everything goes
    direct while the gateway cannot be reached, unless --fail says otherwise. If a daemon runs, it
    chooses the networks of each connection. Without one, metered networks are used only while there is
    no other.

    All users of this host may use the proxy, and no other host: it listens on loopback alone.
    --redirect carries the connections of these users only. Its resolver answers all programs on loopback.
    """
    if domains and not (dns or users):
        raise click.UsageError("--dns-direct goes with --dns or --redirect")
    interfaces(networks)
    file = file or joined_gateway.path()
    joined = joined_gateway.read(file)
    redirection = Redirection(users) if users else None
    wanted = [*((where, None) for where in proxies), *locals_]
    if not wanted and redirection is None and not dns:
        wanted = [(("", PORT), None)]
    listening = [
        Listening(address, port, to, optional=not given and ":" in address)
        for (given, port), to in wanted
        for address in ((given,) if given else _LOOPBACK)
    ]
    if redirection is not None:
        listening += [
            Listening(address, 0, optional=":" in address, redirection=redirection)
            for address in _LOOPBACK
        ]
    logs.configure(log_level, log_format)
    try:
        process_limits.one_arena()
        asyncio.run(
            _run(
                joined,
                file,
                listening,
                redirection,
                Fail(fail),
                networks,
                [(address or _LOOPBACK[0], port) for address, port in dns],
                domains,
                priced=detour == "worth" and not networks,
            )
        )
    finally:
        if redirection is not None:
            redirection.close()


async def _run(
    joined: Sequence[JoinedGateway],
    file: Path,
    listening: list[Listening],
    redirection: Redirection | None,
    fail: Fail,
    networks: tuple[str, ...],
    dns: list[tuple[str, int]],
    domains: tuple[str, ...],
    *,
    priced: bool,
) -> None:
    told = DaemonRoutes(directories().socket)
    # Of all gateways, also those that are joined meanwhile: its rules are read before any is dialled.
    ruled_networks = of_sessions()
    await ruled_networks.follow()
    tellers: list[CarriedTeller] = []
    telling: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()
    known = KnownNames()
    sizes = SizeHistory(max_hosts=_SERVERS_KNOWN)

    # Make each gateway's link, with the networks that it may use and a teller of what it carried.
    def made(gateway: JoinedGateway) -> GatewayLink:
        carried = CarriedConnections(loop.time, known.name_of)

        def usable(egress: str, address: str) -> bool:
            allowed = not networks or egress.partition("/")[0] in networks
            return allowed and not ruled_networks.refusal(egress, gateway.address, address)

        made_link = GatewayLink(
            gateway,
            DaemonChooser(directories().socket),
            usable,
            carried=carried.watch,
            sizes=sizes,
            looked_up=ruled_networks.follow,
        )
        tellers.append(
            CarriedTeller(directories().socket, carried, gateway.host, lambda: made_link.problem)
        )
        telling.append(loop.create_task(tellers[-1].run()))
        return made_link

    link = GatewayLinks([made(each) for each in joined])

    ruled = RuledHosts(ruled_networks)

    def direct(port: int, gateway_rtt_s: float | None) -> bool:
        return priced and told.direct(port, gateway_rtt_s)

    proxy = LocalProxy(link, fail, direct=direct, rules=ruled)
    routes = EgressReader()
    names = NameStub(
        link,
        fails_open=fail is Fail.OPEN,
        near=domains,
        tunnelled=routes.has_tunnel,
        rules=ruled,
        known=known,
    )
    datagrams = None
    if redirection is not None:
        datagrams = RedirectedDatagrams(redirection, names.take, proxy.packets)
    running = loop.create_task(
        _listen(
            proxy, names, datagrams, listening, dns, redirection, joined, closed=fail is Fail.CLOSED
        )
    )
    # Follow gateways that are joined or left while it runs.
    telling.append(loop.create_task(_follow_joined(file, link, made)))
    if redirection is not None and fail is Fail.CLOSED:
        telling.append(loop.create_task(_watch_names()))
    call_at_end(running.cancel)
    try:
        async with process_limits.giving_back():
            await running
    except asyncio.CancelledError:
        pass  # it was told to end
    finally:
        # End in the reverse order: no new connections, then the last report, then the links.
        if redirection is not None:
            redirection.detach()
            await asyncio.sleep(_LED_S)
            redirection.end_led()
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        if datagrams is not None:
            await datagrams.close()
        await names.close()  # it takes redirected questions until then
        await proxy.close()
        for teller in tellers:
            await teller.report_last()
        await link.close()
        await told.close()
        await ruled.close()
        await ruled_networks.close()
        routes.close()


async def _listen(
    proxy: LocalProxy,
    names: NameStub,
    datagrams: RedirectedDatagrams | None,
    listening: list[Listening],
    dns: list[tuple[str, int]],
    redirection: Redirection | None,
    joined: Sequence[JoinedGateway],
    *,
    closed: bool,
) -> None:
    proxy.open(listening)
    for address, port in dns:
        names.open(address, port)
        log.info(f"looks names up at {address}:{port}")
    for where in proxy.addresses:
        if where.redirection is None:
            to = f" to {where.to[0]} port {where.to[1]}" if where.to else " (SOCKS 5 and HTTP)"
            log.info(f"listens at {where}{to}")
    if redirection is not None and datagrams is not None:
        for each in joined:
            # A gateway on this host would be redirected to itself.
            _refuse_loop(each.host)
        if closed and (asked := names_by_socket()) is not None:
            raise ConfigError(
                f"programs have names looked up by {asked}, which asks the network's resolver in spite of"
                " --fail closed; without it they would ask by DNS, which is redirected"
            )
        # The kernel leads each IP version to its own listening ports; IPv6 may be absent.
        ports = {":" in each.address: each.port for each in proxy.addresses if each.redirection}
        for address in _LOOPBACK:
            names.open(address, 0, optional=":" in address)
        name_ports = {":" in address: port for address, port in names.addresses[len(dns) :]}
        redirection.attach(
            LedTo(ports[False], ports.get(True)),
            LedTo(name_ports[False], name_ports.get(True)),
            datagrams.open(),
            closed=closed,
        )
        nearby = "local networks" if closed else "local networks and VPNs"
        log.info("carries what it was told to", but=f"{nearby} go direct")
    await asyncio.to_thread(say_who_chooses, directories().socket)
    await asyncio.get_running_loop().create_future()


async def _follow_joined(
    file: Path, link: GatewayLinks, made: Callable[[JoinedGateway], GatewayLink]
) -> None:
    """Use the gateways that were joined or left meanwhile (`cedos join`)."""

    def stamp() -> tuple[int, int]:
        with contextlib.suppress(OSError):
            found = file.stat()
            return found.st_ino, found.st_mtime_ns
        return 0, 0

    seen = stamp()
    while True:
        await asyncio.sleep(_LOOK_S)
        if (now := stamp()) == seen:
            continue
        seen = now
        try:
            joined = joined_gateway.read(file)
        except ConfigError as error:
            log.warning("the gateways stay as they were", why=str(error))
        else:
            link.follow(joined, made)
            log.info("uses the gateways that are joined now", gateways=", ".join(map(str, joined)))


def say_who_chooses(control: Path) -> None:
    """Tell a person, once, who chooses: without the daemon it all works, and less of it."""
    without = "metered networks are used only where there is no other"
    try:
        ControlClient(control, _DAEMON_S).networks()
    except DaemonUnreachableError:
        log.info(f"no daemon answers yet: until then {without}")
    except CedosError as error:
        log.warning(f"the daemon cannot be asked: {without}", why=str(error))
    else:
        log.info("the daemon chooses the networks")


def _refuse_loop(gateway: str) -> None:
    """Refuse a gateway on this host, whose connections would be redirected to it again: ConfigError.

    A name counts only where this host itself knows its address: networks could answer it with one of
    this host's, and the redirection would not start.
    """
    for address in [gateway] if is_address(gateway) else LocalNames().find(gateway):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as trying:
            try:
                trying.bind((address, 0))
            except OSError:
                continue
        raise ConfigError(
            f"the joined gateway ({gateway}) is this host: redirected connections would loop"
        )


async def _watch_names() -> None:
    """Tell when something comes that looks names up past the redirection."""
    while True:
        if (found := names_by_socket()) is not None:
            log.error(f"names are looked up in spite of --fail closed: {found} has started")
            return
        await asyncio.sleep(_LOOK_S)
