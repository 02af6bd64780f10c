"""`cedos forward`: programs' connections through the gateway that was joined."""

import asyncio
import contextlib
import re
import signal
import socket
import sys
from typing import Any, Final

import click
import structlog

from cedos import logs
from cedos.api.session_choices import DaemonChooser
from cedos.commands.console.manual import Manual
from cedos.commands.console.pipes import Input, Output
from cedos.commands.console.servers import ListenAddressType, interfaces
from cedos.config.directories import directories
from cedos.errors import CedosError
from cedos.proxy.answers import RefusedError
from cedos.proxy.local import joined_gateway
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.local_proxy import Fail, Listening, LocalProxy
from cedos.proxy.request import authority

PORT: Final = 1080
_LOOPBACK: Final = ("127.0.0.1", "::1")
_FORWARDING = re.compile(r"((?:\[[^\]]+\]:|[^:\[\]]+:)?\d+):((?:\[[^\]]+\]|[^:\[\]]+):\d+)")

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class FarEnd(click.ParamType[tuple[str, int]]):
    """`intranet:80`, `[2001:db8::1]:22`."""

    name = "host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        try:
            host, port = authority(value)
        except RefusedError:
            host, port = "", None
        if port is None:
            self.fail(f"{value!r} is not a destination such as intranet:80", param, ctx)
        return host, port


class Forwarding(click.ParamType[tuple[tuple[str, int], tuple[str, int]]]):
    """`8080:intranet:80`, `127.0.0.2:8080:[2001:db8::1]:80`."""

    name = "[address:]port:host:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[str, int], tuple[str, int]]:
        match = _FORWARDING.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is not a forwarding such as 8080:intranet:80", param, ctx)
        listen = ListenAddressType(8080).convert(match[1], param, ctx)
        return listen, FarEnd().convert(match[2], param, ctx)


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
        ("cedos forward -L 8080:intranet:80", "What connects to port 8080 here reaches intranet."),
        (
            "ssh -o ProxyCommand='cedos forward -W %h:%p' server.example.org",
            "SSH that stays connected.",
        ),
        (
            "cedos forward --fail closed -n wlan0",
            "Nothing goes around the gateway, and nothing over another network.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C or SIGTERM; with -W, both ends have ended.",
        1: "With -W: refused, or broken off.",
        2: "",
        4: "It cannot listen there.",
    },
    files=[("~/.config/cedos/gateway.toml", "The gateway that was joined (`cedos join`).")],
)
@click.option(
    "-D", "--proxy", "proxies", type=ListenAddressType(PORT), multiple=True, metavar="[ADDRESS:]PORT",
    help=f"Where programs find the proxy; may be repeated.  [default: {PORT} on loopback, unless -L or"
    " -W is given]",
)  # fmt: skip
@click.option(
    "-L", "--local", "locals_", type=Forwarding(), multiple=True,
    help="What connects here reaches that host's port, as the gateway sees it; may be repeated.",
)  # fmt: skip
@click.option(
    "-W",
    "--stdio",
    type=FarEnd(),
    help="Join standard input and output with that host's port, as ssh's ProxyCommand wants it.",
)
@click.option(
    "--fail", type=click.Choice([str(each) for each in Fail]), default="open", show_default=True,
    help="While the gateway is out of reach: open, connections go direct; closed, they are refused.",
)  # fmt: skip
@click.option(
    "-n", "--network", "networks", metavar="INTERFACE", multiple=True,
    help="Reach the gateway over this interface only; may be repeated.  [default: all; which of them"
    " carry what, a daemon says]",
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
    stdio: tuple[str, int] | None,
    fail: str,
    networks: tuple[str, ...],
    log_level: logs.Level,
    log_format: logs.Format,
) -> None:
    """Carries programs' connections through the gateway, over every network there is.

    A connection survives Wi-Fi that dies and a phone that changes its address, and can use both
    networks at once. What belongs to this place (private addresses, names without a dot, .local) goes
    direct, and so does everything while the gateway is out of reach, unless --fail says otherwise.
    Where a cedos daemon runs, it chooses the networks for each connection; without one, metered networks
    are used only while no other one is there.

    Whoever may connect to the ports that it listens at may use the gateway: by default all users of
    this host, and nobody else.
    """
    if stdio is not None and (proxies or locals_):
        raise click.UsageError("-W goes alone")
    interfaces(networks)
    joined = joined_gateway.read(joined_gateway.path())
    wanted = [*((where, None) for where in proxies), *locals_] or [(("", PORT), None)]
    listening = [
        Listening(address, port, to, optional=not given and ":" in address)
        for (given, port), to in wanted
        for address in ((given,) if given else _LOOPBACK)
    ]
    # (Standard output may be somebody's connection.)
    logs.configure("warning" if stdio is not None else log_level, log_format)
    asyncio.run(_run(joined, listening, stdio, Fail(fail), networks))


async def _run(
    joined: joined_gateway.JoinedGateway,
    listening: list[Listening],
    stdio: tuple[str, int] | None,
    fail: Fail,
    networks: tuple[str, ...],
) -> None:
    link = GatewayLink(
        joined,
        DaemonChooser(directories().socket),
        networks.__contains__ if networks else None,
    )
    proxy = LocalProxy(link, fail)
    loop = asyncio.get_running_loop()
    work = _join(proxy, *stdio) if stdio is not None else _listen(proxy, listening)
    running = loop.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        if stdio is not None:
            raise CedosError("it was interrupted") from None
    finally:
        await proxy.close()
        await link.close()


async def _listen(proxy: LocalProxy, listening: list[Listening]) -> None:
    proxy.open(listening)
    for where in proxy.addresses:
        to = f" to {where.to[0]} port {where.to[1]}" if where.to else " (SOCKS 5 and HTTP)"
        log.info(f"listens at {where}{to}")
    await asyncio.get_running_loop().create_future()


async def _join(proxy: LocalProxy, host: str, port: int) -> None:
    """Standard input and output as one connection."""
    try:
        upstream = await proxy.connect(host, port, far=True)
    except RefusedError as error:
        raise CedosError(error.details) from error
    near, far = socket.socketpair()
    for one in (near, far):
        one.setblocking(False)
    loop = asyncio.get_running_loop()
    with near, far:
        carrying = loop.create_task(proxy.carry(far, upstream))
        sending = loop.create_task(_send(near))
        try:
            writer = Output(sys.stdout.fileno())
            with contextlib.suppress(ConnectionResetError):
                while data := await loop.sock_recv(near, 1 << 16):
                    await writer.write(data)
            await writer.drained()
            # Whoever speaks to a server that has ended has nobody to speak to.
            near.close()
            ended = await carrying
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    if ended.ended.startswith("stream"):
        raise CedosError(f"the connection to {host} port {port} broke: {ended.ended[8:]}")


async def _send(near: socket.socket) -> None:
    reader = Input(sys.stdin.fileno())
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await reader.read():
            await loop.sock_sendall(near, data)
        near.shutdown(socket.SHUT_WR)
