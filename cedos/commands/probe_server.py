"""`cedos probe-server`: the server of active probes."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import click

from cedos.commands.console.manual import CONFIG, Manual, Parsed
from cedos.commands.console.render import echo
from cedos.config.sections import endpoint
from cedos.model import Address


@click.command(
    cls=Manual,
    examples=[
        ("cedos probe-server --new-key probe.key", "Makes a key; copy it to the clients."),
        (
            "cedos probe-server --listen 192.0.2.1:7007 --key-file probe.key",
            "Serves probes on UDP port 7007.",
        ),
        (
            "cedos probe-server --listen 0.0.0.0:7007 --key-file probe.key",
            "The same on each IPv4 address that the host has now.",
        ),
        (
            "cedos probe-server --listen [2001:db8::1] --key-file probe.key --rate-limit 0.5",
            "Over IPv6 on the usual port, half a megabit per second for each client.",
        ),
    ],
    exits={
        0: "Ended by SIGINT or SIGTERM, or the key was made.",
        2: "",
        4: "The address or the port cannot be had.",
    },
    files=[
        (
            "KEY",
            "64 hexadecimal digits that only their owner may read. The same file belongs to every "
            "client, named by key_file under [probes] in its configuration.",
        ),
        CONFIG,
    ],
)
@click.option(
    "-l",
    "--listen",
    type=Parsed("addr:port", endpoint),
    help="An address of this host; 0.0.0.0 or [::]: all of IPv4 or IPv6 that it has now. Without a"
    " port: 7007.",
)
@click.option(
    "-k", "--key-file", type=click.Path(path_type=Path, dir_okay=False), help="The shared key."
)
@click.option(
    "--new-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Make a key (never over an existing file) and end.",
)
@click.option(
    "--rate-limit",
    type=click.FloatRange(0.01, 10_000),
    default=2.0,
    show_default=True,
    help="Mbit/s for each source, sustained.",
)
@click.option(
    "--total-limit",
    type=click.FloatRange(0.01, 100_000),
    default=50.0,
    show_default=True,
    help="Mbit/s for all together, sustained.",
)
def command(
    listen: tuple[Address, int] | None,
    key_file: Path | None,
    new_key: Path | None,
    rate_limit: float,
    total_limit: float,
) -> None:
    """Answer the active probes of cedos with trains of UDP packets.

    A laptop sees its own radio, but not the queues of a cell tower or the slow line of a cafe
    behind it. A train of packets from a server shows them. Run this on a host with a better line
    than any client, and name it as `server` under [probes] in the clients' configuration.

    Only clients that hold the key get an answer, and only verified addresses get a train. Each
    source and all together have a rate limit. Therefore the server amplifies nothing, and its
    memory is bounded. It needs no privilege. It logs to standard error, at most every ten seconds.
    """
    from cedos.host.monitor.probing.keyfile import read_key, write_new_key  # noqa: PLC0415

    if new_key is not None:
        write_new_key(new_key)
        echo(f"{new_key}: a new key; the server and all clients need this file")
        return
    if listen is None or key_file is None:
        raise click.UsageError("--listen and --key-file are needed, or --new-key to make a key")
    address, port = listen
    key = read_key(key_file)

    from cedos import logs  # noqa: PLC0415
    from cedos.host.monitor.probing.server import ProbeLimits  # noqa: PLC0415
    from cedos.kernel.rtnetlink import host_addresses  # noqa: PLC0415

    logs.configure()
    # Answers must leave from the address of the request, so each address has its own sockets.
    addresses = host_addresses(address.version) if address.is_unspecified else [address]
    limits = ProbeLimits(rate_limit * 1e6, total_limit * 1e6)
    asyncio.run(_serve(addresses, port, key, limits))


async def _serve(addresses: Sequence[Address], port: int, key: bytes, limits: Any) -> None:
    from cedos.host.monitor.probing.server import ProbeServing  # noqa: PLC0415

    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    async with AsyncExitStack() as serving:
        for address in addresses:
            await serving.enter_async_context(ProbeServing(address, port, key, limits))
        await ended.wait()
