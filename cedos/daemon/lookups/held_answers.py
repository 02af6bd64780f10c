"""Answers to look-ups are read before their programs have them, while a user's rule is for a name.

A rule for a name is kept by routes to the addresses of the name. So an answer waits in a queue of the
kernel until the routes of its addresses stand:

    answer of a resolver of this host      to a question that was seen leaving: the rule covers its
                                           addresses, then it passes
    any other answer                       our own look-up of that name first; what it does not confirm
                                           is covered by no rule
    a name in a TLS hello or a request     counts for its connection alone, and is looked up likewise

An answer about a ruled name whose routes do not stand after 2 s, or that no look-up of ours could judge,
is dropped: its program asks again.
UDP and TCP are read, and what a stub on loopback answers. Names that are asked for in TLS (DoT, DoH)
cannot be seen: there the first connection to a new address is not covered.
"""

import asyncio
import secrets
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import structlog

from cedos.controller.decisions.user_rules import RuledDestinations
from cedos.controller.events import DnsReply, Event, HostsFileRead, NameResolved
from cedos.controller.lookups import resolvers_of
from cedos.daemon.lookups.watch import ask
from cedos.errors import CedosError
from cedos.host.monitor.dns import message as dns
from cedos.host.monitor.dns.resolvers import FileWatch, parse_hosts, parse_resolv_conf
from cedos.host.monitor.flows.own_flows import is_own
from cedos.host.profiler.frame import CapturedPacket, parse_frame
from cedos.kernel import packet_queue
from cedos.kernel.packet_queue import QueuedPacket
from cedos.model import Address, FlowKey, Network
from cedos.token_bucket import TokenBucket

HOSTS, RESOLV_CONF = Path("/etc/hosts"), Path("/etc/resolv.conf")
_AT_ONCE: Final = 64
_PORT: Final = 53
_MOST_HELD, _MOST_STREAMS, _MOST_ASKED = 128, 64, 256
# The most answers that wait for a look-up of ours: they leave room for those that are believed.
_MOST_CLAIMS: Final = 64
# The most questions that are remembered, to know the answers that programs have asked for.
_MOST_QUESTIONS: Final = 1024
# The longest time for which an answer is held. Then it is dropped, and programs ask again.
_LONGEST_S: Final = 2.0
_AGAIN_S: Final = 0.1
_ASKED_S: Final = 10.0
# The rate at which claimed names are looked up.
_PER_S, _BURST = 5.0, 32
_LENGTH: Final = struct.Struct("!H")
_NUMBERS: Final = 0xFFFFFFFF
# The number of a stream's next byte, and the received part of a message.
_Reading = tuple[int, bytearray]

_log = structlog.get_logger(__name__)


class AnswerQueue(Protocol):
    """The queue of held answers. Errors: OSError, CedosError."""

    def open(self) -> socket.socket: ...

    def decide(self, number: int, *, passes: bool) -> None:
        """Let an answer pass, or drop it."""


class OwnQueue:
    """The queue where this process has the privileges itself."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._opened: socket.socket | None = None

    def open(self) -> socket.socket:
        self._opened = packet_queue.open_queue(self._number)
        return self._opened

    def decide(self, number: int, *, passes: bool) -> None:
        if self._opened is not None:
            packet_queue.decide(self._opened, self._number, number, passes=passes)


class HostLookups:
    """Look-ups of this host's own, and which resolvers are its own.

    Args:
        networks: those that may be used now.
    """

    def __init__(self, networks: Callable[[], Sequence[Network]]) -> None:
        self._networks = networks

    def trusted(self, resolver: Address) -> bool:
        """Return whether this host is set up to ask a resolver: programs may ask any other one, too."""
        own = {
            each for network in self._networks() for each in (*network.resolvers, *network.gateways)
        }
        if resolver in own:
            return True
        with suppress(OSError):
            named = RESOLV_CONF.read_text(encoding="utf-8", errors="replace")
            return resolver in parse_resolv_conf(named, stubs=True)
        return False

    async def look_up(self, name: str, kind: int) -> DnsReply | None:
        """Return the first answer of a network's resolver; None without one."""
        for network in sorted(self._networks(), key=lambda each: each.metered):
            for resolver in resolvers_of(network, network.addresses[0].ip, public=False):
                try:
                    question = dns.question(secrets.randbelow(1 << 16), name, kind)
                except ValueError:  # no name that could be asked for
                    return None
                answer = await ask(network, resolver, question)
                reply = dns.parse(answer) if answer is not None else None
                if reply is not None and (reply.name, reply.kind) == (name, kind):
                    return reply
        return None


class HeldAnswers:
    """To be made within the event loop.

    Args:
        post: takes the events: what resolvers and the hosts file say.
        hold: have answers wait in the queue, or pass. Errors: CedosError.
        look: have `told` take what was captured until now.
    """

    def __init__(
        self,
        ruled: RuledDestinations,
        post: Callable[[Event], None],
        lookups: HostLookups,
        queue: AnswerQueue,
        hold: Callable[[bool], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self._look = look
        self._ruled = ruled
        self._post = post
        self._lookups = lookups
        self._queue = queue
        self._hold = hold
        self._clock = clock
        self._turn = asyncio.Lock()
        self._opened: socket.socket | None = None
        self._problem = ""
        self._streams, self._seen = _Streams(), _Streams()
        self._pending: Counter[FlowKey] = Counter()
        self._claims = 0
        # Of datagrams by flow and number, what was asked for; of TCP the flow, with number None.
        self._questions: OrderedDict[tuple[FlowKey, int | None], tuple[str, int] | None] = (
            OrderedDict()
        )
        self._tasks: set[asyncio.Task[object]] = set()
        self._asked: OrderedDict[str, tuple[float, asyncio.Task[set[int]]]] = OrderedDict()
        self._bucket = TokenBucket(_PER_S, _BURST, clock())

    @property
    def problems(self) -> list[str]:
        return [self._problem] if self._problem and self._ruled.rules.have_names else []

    async def run(self) -> None:
        """Follow the rules and the hosts file until cancelled."""
        watch = FileWatch(HOSTS, self._hosts_changed)
        try:
            self._hosts_changed()
            await self.follow()
            await asyncio.get_running_loop().create_future()
        finally:
            watch.close()
            for task in (*self._tasks, *(asked for _, asked in self._asked.values())):
                task.cancel()
            self._let_go()

    async def follow(self) -> None:
        """Hold answers while a rule is for a name, and only then."""
        async with self._turn:
            wanted = self._ruled.rules.have_names
            if wanted == (self._opened is not None):
                return
            try:
                if not wanted:
                    await self._hold(False)
                    self._let_go()
                    return
                self._opened = self._queue.open()
                asyncio.get_running_loop().add_reader(self._opened.fileno(), self._read)
                await self._hold(True)
                self._problem = ""
            except (CedosError, OSError) as error:
                self._let_go()
                why = (error.strerror if isinstance(error, OSError) else None) or str(error)
                self._problem = (
                    "rules for names may miss the first connection to a new address: answers to"
                    f" look-ups cannot be held ({why})"
                )
                _log.warning("answers to look-ups are not held", why=why)

    def claimed(self, name: str, address: Address) -> None:
        """Take the server that a connection names: a look-up of ours shows whether it is true."""
        number = self._ruled.rules.named(name)
        if number is None or number in self._ruled.rules.at(address):
            return
        if self._bucket.take(self._clock()):
            self._do(self._confirm_all({name: {address.version}}))

    def told(self, packet: CapturedPacket) -> None:
        """Take a question, or an answer on its way: a rule that comes later covers the answer."""
        key, tcp = packet.key, packet.key.protocol == "tcp"
        if key.remote_port != _PORT or is_own(key):
            return
        if packet.outgoing:
            self._note_question(key, packet.payload, tcp=tcp)
            return
        if self._opened is not None or not self._lookups.trusted(key.remote):
            return
        if tcp and (key, None) not in self._questions:
            return
        messages = (self._seen.messages(packet) or ()) if tcp else (packet.payload,)
        for reply in filter(None, map(dns.parse, messages)):
            if self._asked_for(key, reply):
                self._post(NameResolved(reply))

    # -- within -------------------------------------------------------------------------------

    def _note_question(self, key: FlowKey, payload: bytes, *, tcp: bool) -> None:
        number = None if tcp else int.from_bytes(payload[:2], "big")
        self._questions[key, number] = None if tcp else dns.asked(payload)
        self._questions.move_to_end((key, number))
        while len(self._questions) > _MOST_QUESTIONS:
            self._questions.popitem(last=False)

    def _asked_for(self, key: FlowKey, reply: DnsReply) -> bool:
        """Return whether a program of this host asked for that: any host can send what looks like it.

        In TCP the kernel has seen to it: who does not see the connection cannot hit its numbers.
        """
        if key.protocol == "tcp":
            return True
        if (key, reply.number) not in self._questions:
            self._look()  # its question may have been captured, and not read yet
        return self._questions.get((key, reply.number)) == (reply.name, reply.kind)

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            asyncio.get_running_loop().remove_reader(opened.fileno())
            opened.close()

    def _hosts_changed(self) -> None:
        try:
            content = HOSTS.read_text(encoding="utf-8", errors="replace")
        except OSError:
            content = ""
        self._post(HostsFileRead(parse_hosts(content)))

    def _read(self) -> None:
        if self._opened is not None:
            for packet in packet_queue.read(self._opened, _AT_ONCE):
                self._held(packet)

    def _held(self, packet: QueuedPacket) -> None:
        frame = parse_frame(packet.content, outgoing=False)
        if frame is None or is_own(frame.key):
            self._decide(packet.number, passes=True)
            return
        key, before = frame.key, None
        if key.protocol == "tcp":
            before = self._streams.reading(key)
            messages = self._streams.messages(frame)
            # What comes out of order, or again while its first copy waits, is sent once more.
            if messages is None or (not messages and self._pending[key]):
                self._decide(packet.number, passes=False)
                return
        else:
            messages = [frame.payload]
        rules = self._ruled.rules
        claims: dict[str, set[int]] = {}
        addresses: list[Address] = []
        for reply in filter(None, map(dns.parse, messages)):
            if self._asked_for(key, reply) and self._lookups.trusted(key.remote):
                self._post(NameResolved(reply))
            elif rules.names(reply) and _tells_more(reply, rules.at):
                claims.setdefault(reply.name, set()).update(
                    each.version for each in reply.addresses
                )
            addresses += reply.addresses
        waits = bool(claims) or not self._ruled.stand(addresses)
        if not waits:
            self._decide(packet.number, passes=True)
        elif len(self._tasks) >= _MOST_HELD or (claims and self._claims >= _MOST_CLAIMS):
            self._streams.restore(key, before)
            self._decide(packet.number, passes=False)
        else:
            self._pending[key] += 1
            self._claims += bool(claims)
            self._do(self._settle(packet.number, key, claims, addresses, before))

    async def _settle(
        self,
        number: int,
        key: FlowKey,
        claims: Mapping[str, set[int]],
        addresses: Sequence[Address],
        before: _Reading | None,
    ) -> None:
        passes = False
        try:
            async with asyncio.timeout(_LONGEST_S):
                told = await self._confirm_all(claims)
                # A rule that the kernel refused is tried again with the next decision.
                while not self._ruled.stand(addresses):  # noqa: ASYNC110, no event tells of it
                    await asyncio.sleep(_AGAIN_S)
                passes = told
        except TimeoutError:
            pass
        except asyncio.CancelledError:  # the daemon ends, and its rules with it
            passes = True
            raise
        finally:
            self._claims -= bool(claims)
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]
            if not passes:
                _log.warning(
                    "an answer is dropped: its rule does not stand in time", names=list(claims)
                )
                # The segment comes once more, and is then read once more.
                self._streams.restore(key, before)
            self._decide(number, passes=passes)

    async def _confirm_all(self, claims: Mapping[str, set[int]]) -> bool:
        """Look claimed names up; the rules follow what comes of it.

        Return whether a resolver of this host told what they have in the claimed IP versions.
        """
        # Another answer may wait for the same look-up: the end of this wait does not end it.
        asked = [asyncio.shield(self._confirmation(name)) for name in claims]
        told = await asyncio.gather(*asked)
        return all(map(set.issubset, claims.values(), told))

    def _confirmation(self, name: str) -> asyncio.Task[set[int]]:
        """Return the look-up of a claimed name that began in the last 10 s, else begin one."""
        now_s = self._clock()
        known = self._asked.get(name)
        if known is not None and now_s - known[0] < _ASKED_S:
            return known[1]
        task = asyncio.get_running_loop().create_task(self._confirm(name))
        self._asked[name] = now_s, task
        self._asked.move_to_end(name)
        while len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)
        return task

    async def _confirm(self, name: str) -> set[int]:
        """Ask resolvers of this host for a name; return the IP versions of which they told."""
        kinds = {4: dns.A, 6: dns.AAAA}
        replies = await asyncio.gather(
            *(self._lookups.look_up(name, kind) for kind in kinds.values())
        )
        told = set()
        for version, reply in zip(kinds, replies, strict=True):
            if reply is not None and reply.code not in dns.FAILURES:
                self._post(NameResolved(reply))
                told.add(version)
        return told

    def _decide(self, number: int, *, passes: bool) -> None:
        with suppress(OSError, CedosError):  # it waits no more
            self._queue.decide(number, passes=passes)

    def _do(self, work: Coroutine[object, object, object]) -> None:
        if len(self._tasks) > 2 * _MOST_HELD:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _tells_more(reply: DnsReply, at: Callable[[Address], Sequence[int]]) -> bool:
    """Return whether an answer has aliases alone, or addresses that no rule covers."""
    return not all(map(at, reply.addresses)) or bool(reply.aliases and not reply.addresses)


class _Streams:
    """The messages in TCP streams of answers, each behind its length (RFC 1035, 4.2.2)."""

    def __init__(self) -> None:
        self._known: OrderedDict[FlowKey, _Reading] = OrderedDict()

    def reading(self, key: FlowKey) -> _Reading | None:
        """Return what was read of a stream so far; None: nothing."""
        known = self._known.get(key)
        return None if known is None else (known[0], bytearray(known[1]))

    def restore(self, key: FlowKey, reading: _Reading | None) -> None:
        """Forget what was read of a stream since `reading`."""
        if reading is not None:
            self._known[key] = reading
        else:
            self._known.pop(key, None)

    def messages(self, frame: CapturedPacket) -> list[bytes] | None:
        """Return the messages that end with a segment; None: an earlier one is missing."""
        expected, buffer = self._known.get(frame.key) or (frame.segment, bytearray())
        known = (expected - frame.segment) & _NUMBERS
        if known > _NUMBERS // 2:
            return None
        buffer += frame.payload[known:]
        found = []
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                break
            found.append(bytes(buffer[_LENGTH.size : end]))
            del buffer[:end]
        self._known[frame.key] = (frame.segment + max(len(frame.payload), known)) & _NUMBERS, buffer
        self._known.move_to_end(frame.key)
        while len(self._known) > _MOST_STREAMS:
            self._known.popitem(last=False)
        return found
