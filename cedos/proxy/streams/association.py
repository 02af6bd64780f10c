"""An association: a socket at the gateway that sends a program's datagrams, one of many in a session."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from cedos.proxy.http import RefusedError
from cedos.proxy.streams.frames import (
    Frame,
    Obstacle,
    OpenAssociation,
    ProgramPacket,
    StreamAccepted,
    StreamRefused,
    StreamReset,
    UndeliveredPacket,
)
from cedos.proxy.streams.stream import SMALL, StreamBrokenError, StreamSession

# A packet this much later than others is dropped. Programs drop late packets themselves.
LIFETIME_S: Final = 1.0


class AssociationSession(StreamSession, Protocol):
    """The session of an association."""

    def send_packet(self, data: bytes, lifetime_s: float) -> None:
        """Send a datagram that is good for so many seconds."""


class ProxiedAssociation:
    """A socket at the gateway for a program's datagrams. Made by a `Multiplexer`, which calls `took`.

    Attributes:
        received: to be set: called with each packet that comes.
        undelivered: to be set: called with each report that a packet was not delivered.
        ended: to be set: called once the association is closed, whatever closed it.
        lossy: True: data that is sent may be lost.
        user: the number of the user who opened it (`OpenStream`).
        server, port: the first packet's destination; "" and 0 before.
        sent_bytes, received_bytes: of packets' data.
        after: the number of the message behind which the next one goes.
    """

    def __init__(self, number: int, session: AssociationSession, user: int = 0) -> None:
        self.number, self.user = number, user
        self.lossy = True
        self.after: tuple[int, ...] = ()
        self.server, self.port = "", 0
        self.sent_bytes = self.received_bytes = 0
        self.received: Callable[[ProgramPacket], None] = lambda _packet: None
        self.undelivered: Callable[[UndeliveredPacket], None] = lambda _packet: None
        self.ended: Callable[[], None] = lambda: None
        self._session = session
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._accepted.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._gone = False

    @property
    def gone(self) -> bool:
        """Tell whether it is closed, whatever closed it."""
        return self._gone

    # What a program's end calls

    def ask(self) -> None:
        self._say(OpenAssociation(self.number, self.user))

    async def wait_accepted(self) -> None:
        """Wait for the gateway's answer. RefusedError; StreamBrokenError."""
        await asyncio.shield(self._accepted)

    def accept(self) -> None:
        self._say(StreamAccepted(self.number))

    def refuse(self, error: RefusedError) -> None:
        self._say(StreamRefused(self.number, error.status, error.kind, error.details))
        self.break_off(error)

    def send(self, host: str, port: int, data: bytes) -> None:
        """Send a packet, unless the session has ended."""
        if not self._gone:
            if not self.server:
                self.server, self.port = host, port
            self.sent_bytes += len(data)
            packed = ProgramPacket(self.number, host, port, data).pack()
            self._session.send_packet(packed, LIFETIME_S)

    def tell_undelivered(self, host: str, port: int, why: Obstacle) -> None:
        if not self._gone:
            packed = UndeliveredPacket(self.number, host, port, why).pack()
            self._session.send_packet(packed, LIFETIME_S)

    def drop(self) -> None:
        """Close it for both ends, if it is open."""
        if not self._gone:
            self.break_off(StreamBrokenError("it was ended here"))
            self._say(StreamReset(self.number))

    # What the multiplexer calls

    def on_frame(self, frame: Frame) -> None:
        """Take a frame. ValueError: an honest end does not send it."""
        match frame:
            case StreamAccepted():
                if not self._accepted.done():
                    self._accepted.set_result(None)
            case StreamRefused():
                self.break_off(RefusedError(frame.status, frame.kind, frame.details))
            case StreamReset():
                self.break_off(StreamBrokenError("the other end ended it"))
            case _:
                raise ValueError("an association has no bytes, and is opened once")

    def took_packet(self, packet: ProgramPacket | UndeliveredPacket) -> None:
        if self._gone:
            return
        if isinstance(packet, ProgramPacket):
            self.received_bytes += len(packet.data)
            self.received(packet)
        else:
            self.undelivered(packet)

    def break_off(self, error: Exception) -> None:
        """Close it here: nothing is sent or received any more."""
        if self._gone:
            return
        self._gone = True
        if not self._accepted.done():
            self._accepted.set_exception(error)
        self._session.forget(self.number)
        self.ended()

    def _say(self, frame: Frame) -> None:
        self._session.put(self, frame.pack(), SMALL, ordered=True)


# The lifetime of a packet.
KEPT_S: Final = 1.0

MOST_ASSOCIATIONS: Final = 64
MOST_OF_ONE: Final = 16
MOST_BYTES: Final = 1 << 20
_PACKET_BYTES: Final = 512  # of memory, beside its data


class EarlyPackets:
    """Packets that came before the frame that opens their association.

    Datagrams do not wait for frames, and may be quicker over another path.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, list[tuple[float, ProgramPacket]]] = OrderedDict()
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, packet: ProgramPacket, now: float) -> None:
        """Keep a packet, if there is room."""
        self.forget_until(now - KEPT_S)
        size = len(packet.data) + _PACKET_BYTES
        many = packet.stream not in self._kept and len(self._kept) >= MOST_ASSOCIATIONS
        if many or self.held_bytes + size > MOST_BYTES:
            return
        waiting = self._kept.setdefault(packet.stream, [])
        if len(waiting) < MOST_OF_ONE:
            waiting.append((now, packet))
            self.held_bytes += size

    def forget_until(self, at_s: float) -> None:
        """Drop associations whose first packet came by then; the oldest one is the first."""
        while self._kept and next(iter(self._kept.values()))[0][0] <= at_s:
            self._drop(next(iter(self._kept)))

    def take(self, number: int, now: float) -> list[ProgramPacket]:
        """Return the packets of an association that is opened now."""
        return [packet for at_s, packet in self._drop(number) if at_s > now - KEPT_S]

    def _drop(self, number: int) -> list[tuple[float, ProgramPacket]]:
        gone = self._kept.pop(number, [])
        self.held_bytes -= sum(len(packet.data) + _PACKET_BYTES for _, packet in gone)
        return gone
