"""The streams and associations of one session: their frames and datagrams, and turns of large data."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from math import inf
from typing import Final

from cedos.errors import SessionError
from cedos.host.profiler.sizes import SizeHistory
from cedos.logs import get_logger
from cedos.model import Direction, Label
from cedos.proxy.streams.association import KEPT_S, EarlyPackets, ProxiedAssociation
from cedos.proxy.streams.expected_sizes import AnnouncedBodies, ExpectedBursts
from cedos.proxy.streams.frames import (
    USERS,
    Frame,
    GatewayAnswer,
    GatewayQuestion,
    OpenAssociation,
    OpenStream,
    Packet,
    ProgramPacket,
    StreamBytes,
    StreamEnd,
    UndeliveredPacket,
    parse,
    parse_packet,
)
from cedos.proxy.streams.stream import (
    LARGE,
    Chunk,
    Numbered,
    ProxiedStream,
    StreamBrokenError,
)
from cedos.proxy.streams.unread import ENOUGH_BYTES, Share, UnreadOfClient
from cedos.session.io.advice import Readers
from cedos.session.io.idle_sessions import STATE_BYTES
from cedos.session.protocol.schedulers.interface import rank_of
from cedos.session.sockets.connection import Connection

_LAST_STREAM: Final = (1 << 32) - 1
# The largest distance between stream numbers that are opened out of order.
_MOST_AHEAD: Final = 65_536

# The most frames that wait for room in the session. Programs' bytes do not count.
_MOST_WAITING: Final = 65_536

# Memory of a frame that waits, with the stream that it is kept for.
_FRAME_BYTES: Final = 2_560

# Memory of a number that was opened before lower ones.
_NUMBER_BYTES: Final = 128

# The most window lent to all streams together. A few begin as large as their downloads; hundreds
# of unread ones must not fill memory.
_LENT_BYTES: Final = 8 << 20

_log = get_logger(__name__)


class Multiplexer:
    """The streams of a session, at either end; the end that dialled opens them.

    It works in the session's own callbacks: no task lies between a message and the program's socket.
    """

    def __init__(
        self,
        connection: Connection,
        # Called with a stream that the other end opens, and its OPEN; None: it may not.
        opened: Callable[[ProxiedStream, OpenStream], None] | None = None,
        # Likewise with associations.
        associated: Callable[[ProxiedAssociation], None] | None = None,
        # Called with the other end's questions; None: they are not answered.
        asked: Callable[[GatewayQuestion], None] | None = None,
        # Bounds the unread bytes of streams that the other end opens, and frames that wait. None: each
        # stream's window alone does.
        unread: UnreadOfClient | None = None,
        # Of servers' earlier bursts, learnt from streams that this end opens; None: not learnt.
        sizes: SizeHistory | None = None,
    ) -> None:
        self.connection = connection
        self._sizes = sizes
        self._unread = unread
        self._own = unread.share(None) if unread is not None else None
        self._opened = opened
        self._associated = associated
        self._asked = asked
        # To be set: called with the answers to our own.
        self.answered: Callable[[GatewayAnswer], None] = lambda _answer: None
        self._streams: dict[int, ProxiedStream] = {}
        self._associations: dict[int, ProxiedAssociation] = {}
        self._shares: dict[int, Share | None] = {}  # whose they are, of those that this end opened
        self._early = EarlyPackets()
        self._forgetting: asyncio.TimerHandle | None = None
        connection.on_datagrams(self._datagrams)
        self._numbers = count(1)
        self._all_opened_to = 0
        self._opened_ahead: set[int] = set()
        self._waiting: deque[tuple[Numbered, bytes, Label, bool]] = deque()
        self._no_room: dict[int, ProxiedStream] = {}
        self._in_turn: dict[int, ProxiedStream] = {}
        self._whose_turn: ProxiedStream | None = None
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[str] = self._loop.create_future()
        self._lent_bytes = 0
        self._turning = self._again = False
        if connection.kept_state:
            self._all_opened_to = int.from_bytes(connection.kept_state)
        connection.on_advice(self._readers)

    def __len__(self) -> int:
        return len(self._streams) + len(self._associations)

    @property
    def streams(self) -> dict[int, ProxiedStream]:
        """Open streams by number, without associations."""
        return self._streams

    def open(
        self, host: str, port: int, *, unread: Share | None = None, user: int = 0
    ) -> ProxiedStream:
        """Open a stream; it may be written to before the gateway has answered.

        `unread` bounds its unread bytes, with others; `user`: for whom it is, of this host.
        StreamBrokenError: the session has ended.
        """
        stream = self._make_stream(self._number(), unread)
        self._shares[stream.number] = unread
        stream.ask(host, port, user % USERS)
        return stream

    def associate(self, share: Share | None = None, user: int = 0) -> ProxiedAssociation:
        """Open a user's association; packets may be sent at once. StreamBrokenError."""
        association = self._made_association(self._number(), user % USERS)
        self._shares[association.number] = share
        association.ask()
        return association

    def opened_by(self, share: Share) -> int:
        """Return how many streams of a share are open; an association counts as two."""
        theirs = (number for number, each in self._shares.items() if each is share)
        return sum(1 + (number in self._associations) for number in theirs)

    def send_packet(self, data: bytes, lifetime_s: float) -> None:
        """Send a datagram; it is lost if the session has ended, or if it is too large."""
        with suppress(SessionError, ValueError):
            self.connection.send_datagram(data, lifetime_s)

    async def run(self) -> None:
        """Take frames until the session ends; then break all streams."""
        why = "the session ended"
        self.connection.on_change(self._on_change)
        try:
            self._on_change()
            why = await self._over
        finally:
            self.connection.on_change(None)
            self._let_go()
            for stream in list(self._streams.values()):
                stream.break_off(StreamBrokenError(why))
                stream.on_change()
            for association in list(self._associations.values()):
                association.break_off(StreamBrokenError(why))

    def state(self) -> bytes | None:
        """Return the state that a session without streams keeps while it sleeps; None: it has some."""
        goes_on = self._streams or self._associations or self._waiting or self._opened_ahead
        return None if goes_on else self._all_opened_to.to_bytes(STATE_BYTES)

    def drop(self) -> None:
        """End the session, whose other end takes no answers."""
        self._end("the other end takes no answers")

    # Called by streams

    def put(self, stream: Numbered, data: bytes, label: Label, *, ordered: bool) -> None:
        if self._over.done():
            return  # nothing is kept for a session that has ended
        if self._waiting or not self._try_send(stream, data, label, ordered=ordered):
            self._waiting.append((stream, data, label, ordered))
            self._account()
            if len(self._waiting) > _MOST_WAITING:
                self.drop()

    def try_put(self, stream: ProxiedStream, head: bytes, data: Chunk, label: Label) -> bool:
        large = label is LARGE
        may = not self._waiting and (not large or self._its_turn(stream))
        if may and self._try_send(stream, data, label, ordered=True, head=head):
            return True
        (self._in_turn if large else self._no_room)[stream.number] = stream
        return False

    def _its_turn(self, stream: ProxiedStream) -> bool:
        """Tell whether a stream may send large data now: it waits in its stream, and goes in turns."""
        if stream is self._whose_turn:
            self._whose_turn = None
            return True
        return not self._in_turn and not self.connection.is_backlogged(LARGE)

    def forget(self, number: int) -> None:
        over = self._streams.pop(number, None)
        self._lent_bytes -= over.lent_bytes if over is not None else 0
        self._associations.pop(number, None)
        self._shares.pop(number, None)
        self._no_room.pop(number, None)
        self._in_turn.pop(number, None)

    def on_announced(self, size_bytes: int, direction: Direction) -> None:
        self.connection.tell(LARGE, size_bytes, direction)

    def lend(self, size_bytes: int) -> bool:
        may = self._lent_bytes + size_bytes <= _LENT_BYTES
        self._lent_bytes += size_bytes if may else 0
        return may

    # Inside

    def _account(self) -> None:
        if self._own is not None:
            more = _NUMBER_BYTES * len(self._opened_ahead) + self._early.held_bytes
            self._own.waits(self, _FRAME_BYTES * len(self._waiting) + more)

    def _let_go(self) -> None:
        """Give up all that counts in `_account`."""
        self._waiting.clear()
        self._opened_ahead.clear()
        self._early.forget_until(inf)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._account()

    def _end(self, why: str) -> None:
        """End the session; nothing is kept for it any more."""
        _log.warning("a session is ended", why=why)
        if not self._over.done():
            self._over.set_result(why)
        self._let_go()
        if not self.connection.ended:
            self.connection.abort(why)

    def _keep(self, packet: ProgramPacket) -> None:
        """Keep a packet whose association may still be opened, for a moment."""
        self._early.keep(packet, self._loop.time())
        if self._forgetting is None:
            self._forgetting = self._loop.call_later(KEPT_S, self._forget_early)
        self._account()

    def _forget_early(self) -> None:
        self._early.forget_until(self._loop.time() - KEPT_S)
        again = self._loop.call_later(KEPT_S, self._forget_early) if len(self._early) else None
        self._forgetting = again
        self._account()

    def _readers(self) -> Readers:
        rank, now_s, streams = rank_of(LARGE), self._loop.time(), self._streams.values()
        waiting = {
            (rank, way): sum(stream.waits_for(way, now_s) for stream in streams)
            for way in Direction
        }
        if all(each.unread_bytes < ENOUGH_BYTES for each in streams):
            return Readers(waiting=waiting)
        lasts_s = [stream.lasts_s(now_s) for stream in streams]
        least_s = min((each for each in lasts_s if each is not None), default=0.0)
        return Readers({rank: least_s} if least_s else {}, waiting)

    def _try_send(
        self, stream: Numbered, data: Chunk, label: Label, *, ordered: bool, head: bytes = b""
    ) -> bool:
        after = stream.after if ordered else ()
        try:
            sent = self.connection.send_now(data, label, after=after, head=head)
        except SessionError:
            return False  # `run` breaks the streams when the session has ended
        if sent and ordered:
            stream.after = (sent,)
        return bool(sent)

    def _on_change(self) -> None:
        self._again = True
        if self._turning:
            return
        self._turning = True
        try:
            while self._again and not self._over.done():
                self._again = False
                self._turn()
        except ValueError as error:
            self._end(f"not the stream protocol: {error}")
        # A fault of this program: the rest of what came is lost.
        except Exception as error:
            _log.error("a session's streams failed", exc_info=error)
            self._end("this end failed at what it brought")
        finally:
            self._turning = False

    def _turn(self) -> None:
        """Take all messages, then send what has room now."""
        connection = self.connection
        touched: dict[int, ProxiedStream] = {}
        # Receive: streams note their frames, and are called once afterwards.
        while messages := connection.receive_data_now():
            for message in messages:
                if self._over.done():
                    return  # it was ended at one before
                frame = parse(message)
                if (stream := self._give_to_stream(frame)) is not None:
                    touched[frame.stream] = stream
        # Frames that waited for room go before new data.
        while self._waiting:
            sender, data, label, ordered = self._waiting[0]
            if not self._try_send(sender, data, label, ordered=ordered):
                break
            self._waiting.popleft()
        self._account()
        if self._no_room and not self._waiting:
            touched |= self._no_room
            self._no_room.clear()
        for stream in touched.values():
            stream.on_change()
        self._take_turns()
        if self._over.done():
            return
        if connection.ended:
            self._over.set_result(str(connection.failure or "the session ended"))
        elif connection.peer_closed:
            self._over.set_result("the session ended")

    def _take_turns(self) -> None:
        """Send a chunk of each stream with large data, the one that has waited longest first."""
        turns = self._in_turn
        while turns and not self._waiting and not self.connection.is_backlogged(LARGE):
            number = next(iter(turns))
            stream = self._whose_turn = turns.pop(number)
            before = stream.sent_bytes
            stream.on_change()
            self._whose_turn = None
            if number in turns and stream.sent_bytes == before:
                break  # the session has no room at all

    def _give_to_stream(self, frame: Frame) -> ProxiedStream | None:
        """Give a frame to its stream, and return that; None: no stream has to be called."""
        stream = self._streams.get(frame.stream)
        if stream is not None:
            stream.on_frame(frame)
            return stream
        association = self._associations.get(frame.stream)
        if association is not None:
            association.on_frame(frame)
        elif isinstance(frame, OpenStream):
            self._may_open(frame.stream, self._opened)
            if self._opened is not None:
                share = self._unread.share(frame.user) if self._unread is not None else None
                self._opened(self._make_stream(frame.stream, share), frame)
        elif isinstance(frame, OpenAssociation):
            self._may_open(frame.stream, self._associated)
            if self._associated is not None:
                association = self._made_association(frame.stream, frame.user)
                self._associated(association)
                for packet in self._early.take(frame.stream, self._loop.time()):
                    association.took_packet(packet)
        elif (
            self._opened is not None
            and isinstance(frame, StreamBytes | StreamEnd)
            and self._new(frame.stream)
        ):
            raise ValueError("bytes of a stream that was not opened")
        # Else it is over at this end, and the other end did not know yet.
        return None

    def _datagrams(self, datagrams: list[bytes]) -> None:
        for each in datagrams:
            if self._over.done():
                return
            try:
                self._take_packet(parse_packet(each))
            except ValueError as error:
                self._end(f"not the stream protocol: {error}")
            except Exception as error:  # of this program
                _log.error("a packet is lost", exc_info=error)

    def _take_packet(self, packet: Packet) -> None:
        match packet:
            case ProgramPacket() | UndeliveredPacket():
                association = self._associations.get(packet.stream)
                if association is not None:
                    association.took_packet(packet)
                elif (
                    self._associated is not None
                    and isinstance(packet, ProgramPacket)
                    and self._new(packet.stream)
                ):
                    self._keep(packet)
                # Else it is over at this end.
            case GatewayAnswer():
                self.answered(packet)
            case GatewayQuestion():
                if self._asked is None:
                    raise ValueError("a question to an end that answers none")
                self._asked(packet)

    def _number(self) -> int:
        number = next(self._numbers)
        if number > _LAST_STREAM:
            raise StreamBrokenError("the session has had all its streams")
        if self.connection.ended:
            raise StreamBrokenError(str(self.connection.failure or "the session has ended"))
        return number

    def _may_open(self, number: int, allowed: object) -> None:
        if allowed is None or not self._new(number):
            raise ValueError("a stream was opened twice, or by the end that may not")
        if number > self._all_opened_to + _MOST_AHEAD:
            raise ValueError("a stream was opened far ahead of the others")
        # Compact the numbers seen so far into "all up to", and a few beyond.
        self._opened_ahead.add(number)
        while self._all_opened_to + 1 in self._opened_ahead:
            self._all_opened_to += 1
            self._opened_ahead.discard(self._all_opened_to)

    def _new(self, number: int) -> bool:
        return number > self._all_opened_to and number not in self._opened_ahead

    def _make_stream(self, number: int, unread: Share | None) -> ProxiedStream:
        # The end that dialled chooses networks.
        bodies = AnnouncedBodies() if self._opened is None else None
        bursts = ExpectedBursts(self._sizes) if bodies and self._sizes is not None else None
        stream = ProxiedStream(number, self, unread=unread, bodies=bodies, bursts=bursts)
        self._streams[number] = stream
        return stream

    def _made_association(self, number: int, user: int) -> ProxiedAssociation:
        association = self._associations[number] = ProxiedAssociation(number, self, user)
        return association
