"""Whether a network's own router answers: it does behind a portal, and where the uplink is gone."""

import asyncio
import contextlib

from cedos.errors import PrivilegeError
from cedos.model import Network
from cedos.monitor.probing.ping import PingSocket


async def answers(network: Network, timeout_s: float = 0.8) -> bool:
    """Whether one of the network's gateways answers a ping in time; False where none can be sent."""
    if not network.gateways:
        return False
    gateway = network.gateways[0]
    answered = asyncio.Event()
    try:
        pinger = PingSocket(network.interface, gateway.version, lambda _, __: answered.set())
    except (OSError, PrivilegeError):
        return False
    try:
        with contextlib.suppress(OSError, TimeoutError):
            pinger.send(gateway)
            async with asyncio.timeout(timeout_s):
                await answered.wait()
    finally:
        pinger.close()
    return answered.is_set()
