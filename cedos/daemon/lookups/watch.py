"""Look-ups of all programs are watched, and fail over, while this runs."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

import structlog

from cedos.daemon.lookups.capture import open_lookups
from cedos.daemon.lookups.delivery import AnswerDelivery, Deliver
from cedos.daemon.lookups.failover import LookupFailover
from cedos.errors import CedosError
from cedos.host.monitor.flows import own_flows
from cedos.host.monitor.flows.own_flows import is_own
from cedos.host.profiler.capture import Capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.interface_socket import interface_socket
from cedos.model import Address, Network

TIMEOUT_S = 2.0
_LARGEST = 4096


async def ask(
    network: Network, resolver: Address, question: bytes, *, port: int = 53
) -> bytes | None:
    """Return the first answer with the question's number; None without one in time."""
    loop = asyncio.get_running_loop()
    try:
        with interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker:
            own_flows.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_sendall(asker, question)
                while True:
                    answer = await loop.sock_recv(asker, _LARGEST)
                    if answer[:2] == question[:2]:
                        return answer
    except OSError:  # TimeoutError is one
        return None


_AT_ONCE = 64

_log = structlog.get_logger(__name__)


class LookupWatch:
    """`networks`: those that may be used now; `lies`: whether a captive portal is in a network's way.

    `deliver` hands answers over, where this process may not; `doubt` takes a network whose resolver
    leaves a question without an answer, `heard` a network's name and the resolver that answered there,
    `told` every question and answer.
    """

    def __init__(
        self,
        networks: Callable[[], Sequence[Network]],
        lies: Callable[[str], bool],
        deliver: Deliver | None = None,
        doubt: Callable[[Network], None] = lambda network: None,
        heard: Callable[[str, Address], None] = lambda network, resolver: None,
        told: Callable[[CapturedPacket], None] = lambda packet: None,
    ) -> None:
        self._given_delivery = deliver
        self._doubt = doubt
        self._heard = heard
        self._told = told
        self._networks = networks
        self._lies = lies
        self._failover: LookupFailover | None = None
        self._problem = ""

    @property
    def problems(self) -> list[str]:
        if self._problem:
            return [self._problem]
        return self._failover.problems if self._failover is not None else []

    async def run(self) -> None:
        """Watch until cancelled; return if this host cannot do it."""
        try:
            with ExitStack() as stack:
                deliver = self._given_delivery
                if deliver is None:
                    deliver = stack.enter_context(closing(AnswerDelivery()))
                await self._follow(stack.enter_context(open_lookups()), deliver)
        except CedosError as error:
            self._cannot(error)

    async def _follow(self, capture: Capture, deliver: Deliver) -> None:
        failover = self._failover = LookupFailover(
            self._cheapest_first, ask, deliver, is_own, self._lies, self._doubt, self._heard
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(capture.fileno(), self._read, capture, failover)
        try:
            await loop.create_future()
        finally:
            loop.remove_reader(capture.fileno())
            failover.close()

    def _cheapest_first(self) -> Sequence[Network]:
        return sorted(self._networks(), key=lambda network: network.metered)

    def _read(self, capture: Capture, failover: LookupFailover) -> None:
        for packet in capture.read(_AT_ONCE):
            self._told(packet)
            failover.observe(packet)

    def _cannot(self, error: CedosError) -> None:
        self._problem = f"look-ups cannot be answered over another network: {error}"
        _log.warning(self._problem)
