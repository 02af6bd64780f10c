"""Reads answers to look-ups, those that wait in the kernel's queue and others, and lets them pass or not.

The controller decides (`cedos.controller.held_answers`). UDP and TCP are read, and what a stub on
loopback answers.
"""

import asyncio
import secrets
import socket
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Protocol

from cedos.controller.commands import LookUpName
from cedos.controller.events import (
    DNAME,
    UNKNOWN_USER,
    AnswersRead,
    DnsReply,
    Event,
    HostsFileRead,
    NameLookedUp,
    RecordOwner,
)
from cedos.errors import CedosError
from cedos.host.lookups.watch import TURN_S, ask
from cedos.host.monitor import dns_message as dns
from cedos.host.monitor.dns_message import AnswerStreams, BesideAnswer, Reading
from cedos.host.monitor.flow_source import is_open
from cedos.host.monitor.resolvers import (
    RESOLV_CONF,
    FileWatch,
    parse_hosts,
    resolv_conf,
    searched_below,
    spellings,
)
from cedos.host.profiler.frame import CapturedPacket, parse_frame
from cedos.kernel import packet_queue
from cedos.kernel.packet_queue import QueuedPacket
from cedos.kernel.socket_owners import UNKNOWN, SocketOwner, SocketOwners
from cedos.limits import SUBORDINATE, TokenBucket, UsersTable
from cedos.model import Address, FlowKey, Network

HOSTS: Final = Path("/etc/hosts")
# Packets that are parsed in a turn of the event loop, of all that are taken from the queue; those of one
# user that wait meanwhile. A user may look names up faster than answers can be parsed.
_AT_ONCE, _MOST_TAKEN, _MOST_OF_USER = 8, 512, 64
# Messages of a packet that are read: a server may send thousands in one segment. What is dropped comes
# again in smaller ones.
_MOST_MESSAGES: Final = 64
# The user of an answer that is for no socket of this host.
_NOBODY: Final = -1
_PORT: Final = 53
# The most questions by each protocol that are remembered, to know the answers that were asked for.
_MOST_QUESTIONS: Final = 4096
_LOOKS_PER_S: Final = 100
_KINDS: Final = {4: dns.A, 6: dns.AAAA}
# Where the header of a message says how many answers it has.
_COUNTS: Final = slice(6, 8)


class AnswerQueue(Protocol):
    """The queue of held answers. Errors: OSError, CedosError."""

    def open(self) -> socket.socket: ...

    def decide(self, passed: Sequence[int], dropped: Sequence[int]) -> None:
        """Let answers pass, and drop others, by number."""


class OwnQueue:
    """The queue where this process has the privileges itself."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._opened: socket.socket | None = None

    def open(self) -> socket.socket:
        self._opened = packet_queue.open_queue(self._number)
        return self._opened

    def decide(self, passed: Sequence[int], dropped: Sequence[int]) -> None:
        if self._opened is not None:
            packet_queue.decide(self._opened, self._number, passed, dropped)


class AnswerWatch:
    """The answers of resolvers, and look-ups of this host's own.

    Args:
        post: takes the events.
        networks: those that may be used now.
        hold: have answers wait in the queue, or pass. Errors: CedosError.
        look: have `on_captured` take what was captured until now; return whether that was all.
    """

    def __init__(
        self,
        post: Callable[[Event], None],
        networks: Callable[[], Sequence[Network]],
        queue: AnswerQueue,
        hold: Callable[[bool], Awaitable[None]],
        look: Callable[[], bool] = lambda: True,
    ) -> None:
        self._post = post
        self._networks = networks
        self._queue = queue
        self._hold = hold
        self._look = look
        self._opened: socket.socket | None = None
        self._streams, self._seen, self._asked = (AnswerStreams() for _ in range(3))
        # By user the packets that were taken from the queue and are not parsed yet, by number.
        self._unread: OrderedDict[int, deque[tuple[int, CapturedPacket]]] = OrderedDict()
        self._owners = SocketOwners()
        self._verdicts: dict[int, bool] = {}
        # By number the flow of an answer that waits, and what was read of its stream before it. The
        # kernel counts anew in each queue: so the count of queues stands before its numbers.
        self._waiting: dict[int, tuple[FlowKey, Reading | None]] = {}
        self._pending: Counter[FlowKey] = Counter()
        self._queues = 0
        # By flow and number, what was asked for; of TCP also the flow, with number None.
        self._questions: dict[
            str, UsersTable[tuple[FlowKey, int | None], tuple[str, int] | None]
        ] = {each: UsersTable(_MOST_QUESTIONS) for each in ("udp", "tcp")}
        # Bounds how often the user of an answer is looked up that does not wait.
        self._looks = TokenBucket(_LOOKS_PER_S, _LOOKS_PER_S, time.monotonic())
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the hosts file until cancelled."""
        watch = FileWatch(HOSTS, self._hosts_changed)
        try:
            self._hosts_changed()
            await asyncio.get_running_loop().create_future()
        finally:
            watch.close()
            for task in self._tasks:
                task.cancel()
            # The daemon ends, and its rules with it: all that waits passes.
            for number, _ in chain.from_iterable(self._unread.values()):
                self._decide(number, passes=True)
            for number in list(self._waiting):
                self.release(number, passes=True)
            self._let_go()
            self._owners.close()

    async def hold(self, on: bool) -> None:
        """Have answers wait, or pass. Errors: CedosError, OSError."""
        if not on:
            await self._hold(False)
            self._let_go()
            return
        self._let_go()
        self._opened = self._queue.open()
        asyncio.get_running_loop().add_reader(self._opened.fileno(), self._read)
        try:
            await self._hold(True)
        except (CedosError, OSError):
            self._let_go()
            raise

    def release(self, number: int, *, passes: bool) -> None:
        """Let an answer pass, or drop it, if its queue is still there."""
        if number not in self._waiting:
            return
        key, before = self._waiting.pop(number)
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]
        if not passes and before is not None:
            # The segment comes once more, and is then read once more.
            self._streams.restore(key, before)
        self._decide(number, passes=passes)

    def look_up(self, command: LookUpName) -> None:
        """Ask resolvers of this host for a name; the end is an event."""
        task = asyncio.get_running_loop().create_task(self._look_up(command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_captured(self, packet: CapturedPacket) -> None:
        """Take a question, or an answer on its way.

        A rule that comes later covers the answer. So does one that is there already, while the packet
        filter's rules are not: they were flushed a moment ago.
        """
        key, tcp = packet.key, packet.key.protocol == "tcp"
        if key.remote_port != _PORT or is_open(key):
            return
        if packet.outgoing:
            self._note_questions(packet)
            return
        if tcp and (key, None) not in self._questions["tcp"]:
            return
        messages = [packet.payload]
        if tcp:
            messages = self._read_on(self._seen, packet)
        replies = [
            (each, reply)
            for each in messages
            if (reply := dns.parse(each)) is not None and self._asked_for(key, reply)
        ]
        if not (told := _with_short_names([reply for _, reply in replies])):
            return
        # (What two users have asked from one port counts for the last one.)
        user = self._questions[key.protocol].user_of((key, replies[0][1].number))
        assert user is not None, "it was asked for"
        if self.is_trusted(key.remote):
            # A resolver on this host may keep what stands beside them, too.
            around = filter(None, (dns.read_beside(each) for each, _ in replies))
            more = _with_short_names([one for each in around for one in each.behind])
            self._post(AnswersRead(None, (*told, *more), user=user))
        elif self._stubs() and self._looks.take(time.monotonic()) and self._is_for_a_stub(key):
            self._post(AnswersRead(None, (), relayed=told, user=user))

    def is_trusted(self, resolver: Address) -> bool:
        """Return whether this host is set up to ask a resolver: programs may ask any other one, too."""
        own = {
            each for network in self._networks() for each in (*network.resolvers, *network.gateways)
        }
        return resolver in own or resolver in resolv_conf(RESOLV_CONF).addresses

    # -- within -------------------------------------------------------------------------------

    def _note_questions(self, packet: CapturedPacket) -> None:
        key, messages, whose = packet.key, [packet.payload], self._group_of(packet.key)
        known = self._questions[key.protocol]
        if key.protocol == "tcp":
            messages = self._read_on(self._asked, packet)
            known.put((key, None), None, whose)
        for each in messages[:_MOST_MESSAGES]:
            asked = dns.read_question(each) or dns.odd_name(each)
            known.put((key, int.from_bytes(each[:2], "big")), asked, whose)

    def _read_on(self, streams: AnswerStreams, packet: CapturedPacket) -> list[bytes]:
        """Return the messages that end with a captured packet; the first one seen begins the stream."""
        if streams.reading(packet.key) is None:
            streams.begin(packet.key, packet.segment, user=self._group_of(packet.key))
        return streams.messages(packet.key, packet.segment, packet.payload) or []

    def _asked_for(self, key: FlowKey, reply: DnsReply) -> bool:
        """Return whether a program of this host asked for that: any host can send what looks like it."""
        asked = self._questions[key.protocol].get((key, reply.number))
        return asked == (reply.name, reply.kind)

    def _mistaken(
        self, key: FlowKey, message: bytes, reply: DnsReply | None
    ) -> list[DnsReply] | None:
        """Return what programs may take a message for that is no answer to the question of its number.

        Some look neither at the bit of answers nor, over TCP, at the name. None: its question is unknown,
        and could be any.
        """
        if message[_COUNTS] == bytes(2):
            return []
        number = int.from_bytes(message[:2], "big")
        asked = self._questions[key.protocol].get((key, number))
        if asked is None:  # others may be a VPN's
            return None if reply is None and self.is_trusted(key.remote) else []
        if reply is None:
            return [DnsReply(number, dns.NO_ERROR, False, *asked)]
        if (reply.name, reply.kind) == asked:
            return []
        return [reply, replace(reply, name=asked[0])]

    def _is_for_a_stub(self, key: FlowKey) -> bool:
        """Return whether a resolver on this host's loopback, which programs ask, has asked itself.

        It is known by its user. Many programs are root's: an answer to one of these is no stub's.
        """
        users = {
            self._user_of(FlowKey(each, _PORT, each, key.local_port, "udp"))
            for each in self._stubs()
        }
        return self._user_of(key) in users - {UNKNOWN_USER, _NOBODY, 0}

    def _stubs(self) -> list[Address]:
        return [each for each in resolv_conf(RESOLV_CONF).addresses if each.is_loopback]

    def _let_go(self) -> None:
        self._tell_verdicts()
        # The kernel drops what waits. Segments come once more.
        for key, before in self._waiting.values():
            if before is not None:
                self._streams.restore(key, before)
        for waiting in (self._unread, self._waiting, self._pending):
            waiting.clear()
        self._queues += 1
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
            self._take(packet_queue.read(self._opened, _MOST_TAKEN))

    def _take(self, packets: Iterable[QueuedPacket]) -> None:
        """Have packets parsed, and drop those of users who have too many.

        What opens a connection of TCP tells where its stream begins.
        """
        owners: dict[FlowKey, SocketOwner] = {}
        idle = not self._unread
        try:
            for number, content in packets:
                frame = parse_frame(content, outgoing=False, empty=True)
                empty = frame is not None and not frame.payload and not frame.opens
                if frame is None or empty or is_open(frame.key):
                    self._decide(number, passes=True)
                    continue
                if frame.key not in owners:
                    owners[frame.key] = self._owner_of(frame.key)
                cookie, user = owners[frame.key]
                if frame.opens:  # (The kernel takes no payload with it.)
                    first, whose = frame.segment + 1, min(user, SUBORDINATE)
                    begun = self._streams.begin(frame.key, first, cookie, whose)
                    self._decide(number, passes=begun and not frame.payload)
                    continue
                waiting = self._unread.setdefault(user, deque())
                if len(waiting) < _MOST_OF_USER or user == UNKNOWN_USER:
                    waiting.append((number, frame))
                else:
                    self._decide(number, passes=False)
        finally:  # whatever becomes of one, the others are not to wait for good
            if idle and self._unread:
                self._parse()

    def _group_of(self, key: FlowKey) -> int:
        """Return whose share of a table it is that a socket uses."""
        return min(self._user_of(key), SUBORDINATE)

    def _user_of(self, key: FlowKey) -> int:
        return self._owner_of(key).user

    def _owner_of(self, key: FlowKey) -> SocketOwner:
        protocol = socket.IPPROTO_TCP if key.protocol == "tcp" else socket.IPPROTO_UDP
        near, far = (str(key.local), key.local_port), (str(key.remote), key.remote_port)
        # (A socket may be bound to the interface of its packets.)
        found = (n.index for n in self._networks() if any(key.local == a.ip for a in n.addresses))
        try:
            owner = self._owners.find(protocol, near, far, interface=next(found, 0))
        except OSError:
            owner = UNKNOWN
        if owner is None:
            return SocketOwner(UNKNOWN.cookie, _NOBODY)
        return SocketOwner(UNKNOWN.cookie, UNKNOWN_USER) if owner == UNKNOWN else owner

    def _parse(self) -> None:
        """Parse some of the packets, one of each user in turn."""
        try:
            if not self._look():  # their questions may have been captured, and not read yet
                return
            over_s = time.monotonic() + TURN_S
            for count in range(min(_AT_ONCE, sum(map(len, self._unread.values())))):
                if count and time.monotonic() >= over_s:
                    break
                user, waiting = self._unread.popitem(last=False)
                number, frame = waiting.popleft()
                if waiting:
                    self._unread[user] = waiting
                self._hold_answer(number, frame, user)
        finally:  # whatever becomes of one, the others are not to wait for good
            if self._unread:
                asyncio.get_running_loop().call_soon(self._parse)

    def _hold_answer(self, number: int, frame: CapturedPacket, user: int) -> None:
        key, messages = frame.key, [frame.payload]
        before: Reading | None = None
        if key.protocol == "tcp":
            before = self._streams.reading(key)
            read = self._streams.messages(key, frame.segment, frame.payload)
            if before is not None and sum(map(bool, read or ())) > _MOST_MESSAGES:
                self._streams.restore(key, before)
                read = None
            # What comes out of order, or again while its first copy waits, is sent once more. So is what
            # comes in the middle of a stream whose beginning was not seen, until its program gives up.
            if read is None or (not read and self._pending[key]):
                self._decide(number, passes=False)
                return
            messages = read
        mistaken: list[DnsReply] = []
        beside: list[BesideAnswer] = []
        parsed = [(each, dns.parse(each)) for each in messages]
        for each, reply in parsed:
            found, around = self._mistaken(key, each, reply), dns.read_beside(each)
            if found is None or around is None:
                if before is not None:
                    self._streams.restore(key, before)
                self._decide(number, passes=False)
                return
            mistaken += found
            beside.append(around)
        replies = tuple(reply for _, reply in parsed if reply)
        strays = _strays(beside)
        if not replies and not mistaken and not strays:
            self._decide(number, passes=True)
            return
        # What comes by TCP the kernel has judged: who does not see the connection cannot hit its numbers.
        tcp = key.protocol == "tcp"
        asked = not mistaken and (tcp or all(self._asked_for(key, each) for each in replies))
        trusted = self.is_trusted(key.remote)
        relayed = asked and not trusted and self._is_for_a_stub(key)
        behind = [one for each in beside for one in each.behind]
        told, others = _with_short_names(replies), _with_short_names(behind)
        claimed = () if asked and trusted else (*told, *others)
        if relayed:  # Of names to which a server's answer leads a stub believes it, too.
            led = frozenset(chain.from_iterable(each.led for each in beside))
            owners = [_of_owner(reply, each) for reply in replies for each in reply.owners]
            claimed = _with_short_names([*owners, *(each for each in behind if each.name in led)])
        known = self._queues << 32 | number
        self._waiting[known] = key, before
        self._pending[key] += 1
        self._post(
            AnswersRead(
                known,
                believed=(*told, *others) if asked and trusted else (),
                claimed=claimed,
                mistaken=_with_short_names([*mistaken, *strays]),
                relayed=told if relayed else (),
                user=user,
            )
        )

    async def _look_up(self, command: LookUpName) -> None:
        replies = await asyncio.gather(*(self._reply(command, kind) for kind in _KINDS.values()))
        told = {
            version: reply
            for version, reply in zip(_KINDS, replies, strict=True)
            if reply is not None and reply.code not in dns.FAILURES
        }
        self._post(NameLookedUp(command.name, told))

    async def _reply(self, command: LookUpName, kind: int) -> DnsReply | None:
        """Return the first answer of the resolvers, one asked after the other; None without one."""
        networks = {network.name: network for network in self._networks()}
        for name, resolver in command.asked:
            try:
                question = dns.question(secrets.randbelow(1 << 16), command.name, kind)
            except ValueError:  # no name that could be asked for
                return None
            network = networks.get(name)
            answer = await ask(network, resolver, question) if network is not None else None
            reply = dns.parse(answer) if answer is not None else None
            if reply is not None and (reply.name, reply.kind) == (command.name, kind):
                return reply
        return None

    def _decide(self, number: int, *, passes: bool) -> None:
        """Give a verdict, with the others of this turn."""
        if not self._verdicts:
            asyncio.get_running_loop().call_soon(self._tell_verdicts)
        self._verdicts[number & 0xFFFFFFFF] = passes

    def _tell_verdicts(self) -> None:
        if not self._verdicts:
            return
        passed = [number for number, passes in self._verdicts.items() if passes]
        dropped = [number for number, passes in self._verdicts.items() if not passes]
        self._verdicts.clear()
        with suppress(OSError, CedosError):  # they wait no more
            self._queue.decide(passed, dropped)


def _with_short_names(replies: Sequence[DnsReply]) -> tuple[DnsReply, ...]:
    """Return replies as they are, and as answers about what was meant (`spellings`)."""
    return tuple(replace(each, name=name) for each in replies for name in spellings(each.name))


def _strays(beside: Iterable[BesideAnswer]) -> list[DnsReply]:
    """Return what stands astray; a DNAME above a search domain is about all names that are asked for."""
    found = [one for each in beside for one in each.strays]
    above = [each for each in found if each.kind == DNAME and searched_below(each.name)]
    return [*found, *(replace(each, name="") for each in above)]


def _of_owner(reply: DnsReply, own: RecordOwner) -> DnsReply:
    """Return what a reply says of another name than the one asked for."""
    return replace(reply, name=own.name, addresses=own.addresses, aliases=own.aliases, owners=())
