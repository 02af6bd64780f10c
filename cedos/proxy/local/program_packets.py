"""The packets of one program's socket: through the gateway, or direct."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cedos.logs import get_logger
from cedos.proxy.gateway.packet_relay import IDLE_S, PacketRelay, Permitted
from cedos.proxy.http import RefusedError
from cedos.proxy.local.gateway_link import AGAIN_S, GatewayUnreachableError
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.frames import Obstacle, ProgramPacket, UndeliveredPacket

MOST_DESTINATIONS: Final = 1_024
_MOST_WAITING: Final = 64
# The way of a destination that has not answered is chosen again after this time.
_TRIED_S: Final = 5.0

_log = get_logger(__name__)

Came = Callable[[str, int, bytes], None]
Refused = Callable[[str, int], None]
_Destination = tuple[str, int]


@dataclass(slots=True)
class _Way:
    """The way of a destination's packets: direct or not, and until when (the loop's time) that holds."""

    direct: bool
    until_s: float


class ProgramPackets:
    """The datagrams of one socket, until `end`. Made within the event loop.

    The first packet to a destination chooses the way of all. A host that has answered a direct packet
    gets direct ones for as long as the program sends to it: from another address it would not recognize
    the program. For the same reason a destination behind the gateway gets direct packets only while the
    gateway is out of reach.
    """

    def __init__(
        self,
        link: GatewayLinks,
        # Tells whether a host's port is reached without the gateway, at once or after a question.
        goes_direct: Callable[[str, int], bool | Awaitable[bool]],
        permitted: Permitted,  # returns the addresses that direct packets may go to
        came: Came,  # called with each answer: from which address and port, and its data
        refused: Refused,  # called with a destination that refuses packets
        user: int,  # the user of the socket
        *,
        fails_open: bool,  # whether packets go direct while the gateway is out of reach
    ) -> None:
        self._link, self._goes_direct = link, goes_direct
        self._came, self._refused, self._fails_open = came, refused, fails_open
        self._user = user
        self._loop = asyncio.get_running_loop()
        self._ways: OrderedDict[_Destination, _Way] = OrderedDict()
        # Destinations whose way is being chosen, and the packets that wait for that.
        self._choosing: dict[_Destination, tuple[asyncio.Future[bool], list[bytes]]] = {}
        self._direct = PacketRelay(permitted, self._on_answer, self._not_direct)
        self._association: ProxiedAssociation | None = None  # the gateway has accepted it
        # It was asked for; the gateway has not answered.
        self._begun: ProxiedAssociation | None = None
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[tuple[str, int, bytes]] = []
        self._not_before_s = 0.0
        self.used_s = self._loop.time()  # when the program last sent, in the loop's time

    def send(self, host: str, port: int, data: bytes) -> None:
        """Send a datagram, or lose it."""
        now = self.used_s = self._loop.time()
        way = self._way_to(host, port, now)
        if way is None:
            chosen = self._choosing.get((host, port))
            held = sum(len(packets) for _, packets in self._choosing.values())
            if chosen is not None and held < _MOST_WAITING:
                chosen[1].append(data)
        elif way.direct:
            self._direct.send(host, port, data)
        elif self._association is not None:
            self._association.send(host, port, data)
        elif now < self._not_before_s:  # the gateway was out of reach a moment ago
            if self._fails_open:
                way.direct, way.until_s = True, self._not_before_s
                self._direct.send(host, port, data)
            else:
                self._refused(host, port)
        else:
            # The gateway has not accepted an association yet: send the packet right behind the request,
            # and keep a copy, which goes another way if the gateway refuses.
            if self._begun is not None:
                self._begun.send(host, port, data)
            if len(self._waiting) < _MOST_WAITING:
                self._waiting.append((host, port, data))
            if self._opening is None:
                self._opening = self._loop.create_task(self._open())

    async def end(self) -> None:
        self._direct.close()
        choices = [choice for choice, _ in self._choosing.values()]
        for choice in choices:
            choice.cancel()
        await asyncio.gather(*choices, return_exceptions=True)
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._association is not None:
            self._association.ended = lambda: None
            self._association.drop()

    async def _open(self) -> None:
        """Open an association; if that fails, send the packets that waited another way."""
        try:
            association = await self._link.associate(self._on_asked, self._user)
        except (GatewayUnreachableError, RefusedError) as error:
            _log.debug("no association", why=str(error))
            self._not_before_s = self._loop.time() + AGAIN_S
            lost, self._waiting = self._waiting, []
            self._begun = None
            for host, port, data in lost:
                self.send(host, port, data)
        else:
            association.ended = self._on_over
            self._association = None if association.gone else association
            self._waiting.clear()
        finally:
            self._opening = self._begun = None

    def _on_asked(self, association: ProxiedAssociation) -> None:
        """Send the waiting packets behind the request for an association."""
        association.received = self._on_received
        association.undelivered = self._on_undelivered
        self._begun = association
        for host, port, data in self._waiting:
            association.send(host, port, data)

    def _on_over(self) -> None:
        """Forget the association; the next packet opens another one."""
        self._association = None

    def _way_to(self, host: str, port: int, now: float) -> _Way | None:
        """Return a destination's way; choose one if it is new, or has not answered for a while.

        What is sent all the time does not wait: half the time before a way ends, the next one is chosen.
        None: the first one is being chosen, or too many are.
        """
        way = self._ways.get((host, port))
        ends = way is None or way.until_s < now + _TRIED_S / 2
        if ends and (host, port) not in self._choosing and len(self._choosing) < _MOST_WAITING:
            direct = self._goes_direct(host, port)
            if isinstance(direct, Awaitable):
                choice = asyncio.ensure_future(direct)
                self._choosing[host, port] = choice, []
                choice.add_done_callback(partial(self._chosen, host, port))
            else:
                way = self._ways[host, port] = _Way(direct, now + _TRIED_S)
        if way is None or way.until_s < now:
            return None
        self._ways.move_to_end((host, port))
        while len(self._ways) > MOST_DESTINATIONS:
            self._ways.popitem(last=False)
        return way

    def _chosen(self, host: str, port: int, choice: asyncio.Future[bool]) -> None:
        """Take the way that was chosen, and send the packets that waited for it.

        A host that has answered meanwhile keeps its way.
        """
        _, packets = self._choosing.pop((host, port))
        if not choice.cancelled():
            now, way = self._loop.time(), self._ways.get((host, port))
            if way is None or way.until_s < now + _TRIED_S / 2:
                self._ways[host, port] = _Way(choice.result(), now + _TRIED_S)
            for data in packets:
                self.send(host, port, data)

    def _way_by_gateway(self, host: str, port: int) -> _Way | None:
        """Return the way of a host in whose name the gateway may speak; None: it may not.

        The program's last packet took this way, and what the gateway sends answers it.
        """
        way = self._ways.get((host, port))
        return None if way is None or way.direct else way

    def _on_received(self, packet: ProgramPacket) -> None:
        if self._way_by_gateway(packet.host, packet.port) is not None:
            self._came(packet.host, packet.port, packet.data)

    def _on_undelivered(self, packet: UndeliveredPacket) -> None:
        if (way := self._way_by_gateway(packet.host, packet.port)) is None:
            return
        if packet.why is not Obstacle.NO_WAY or not self._fails_open:
            self._refused(packet.host, packet.port)
            return
        # The gateway has no way there (no IPv6, say), but this host may have one.
        way.direct, way.until_s = True, self._loop.time() + IDLE_S

    def _not_direct(self, host: str, port: int, _why: Obstacle) -> None:
        self._refused(host, port)

    def _on_answer(self, host: str, port: int, data: bytes) -> None:
        way = self._ways.get((host, port))
        if way is not None and way.direct:
            way.until_s = self._loop.time() + IDLE_S
        self._came(host, port, data)
