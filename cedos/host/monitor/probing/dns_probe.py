"""Look a name up over a network."""

import asyncio
import os
import secrets
import socket
import time

from cedos.host.monitor import flow_source
from cedos.host.monitor.dns_message import DnsFault, fault, question
from cedos.host.monitor.probing.probes import ProbeOutcome, Spent
from cedos.kernel.interface_socket import interface_socket, receive
from cedos.model import Address, Network

NO_ANSWER = "no answer in time"
# Bytes of IP and UDP headers by IP version.
_UDP_HEADERS = {4: 28, 6: 48}


async def run(
    network: Network,
    name: str,
    *,
    resolver: Address | None = None,
    port: int = 53,
    timeout_s: float = 2.0,
) -> ProbeOutcome:
    """Ask for a name's IPv4 address (`resolver`: None for the network's first).

    That there is no such name is an answer, too. A problem: no answer in time, or none that is honest.
    ValueError: no valid name.
    """
    resolver = resolver or next(iter(network.resolvers), None)
    if resolver is None:
        return ProbeOutcome({}, Spent(), f"{network.name} has no resolver to ask")
    number = secrets.randbits(16)
    asked = question(number, name)
    headers = _UDP_HEADERS[resolver.version]
    loop = asyncio.get_running_loop()
    up = down = 0
    problem: str | None = None
    started_s = time.monotonic()
    try:
        with interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker:
            # Connected: the kernel lets through what comes from the resolver alone.
            flow_source.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(asker, asked)
                up = headers + len(asked)
                wrong: DnsFault | None = DnsFault.FOREIGN
                while wrong is DnsFault.FOREIGN:
                    answer = await receive(asker, 4096)
                    down += headers + len(answer)
                    wrong = fault(answer, number, name)
        problem = wrong
    except TimeoutError:
        problem = NO_ANSWER
    except OSError as error:
        problem = f"{network.interface}: {os.strerror(error.errno) if error.errno else error}"
    took_s = time.monotonic() - started_s
    spent = Spent(up, down, took_s)
    return ProbeOutcome({}, spent, str(problem or ""))
