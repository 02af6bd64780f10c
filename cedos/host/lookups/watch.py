"""Watches the look-ups of all programs, and asks and answers them as the controller says.

The controller decides by names and numbers (`cedos.controller.lookups`). The messages themselves stay
here.

Hands a program the answer to its question, as if the resolver that it asked had sent it.

The datagram goes over the loopback to the program's own socket. One that is bound to the interface of its
address (a stub resolver's, systemd-resolved's) takes it, too: what is sent to an own address counts as
received where that address is. systemd-resolved also asks the resolvers of all networks by itself.
"""

import asyncio
import secrets
import socket
import struct
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from typing import Final, TypeVar

from cedos.controller.commands import AnswerLookup, AskResolver
from cedos.controller.events import Event, LookupAnswered, LookupAsked, ResolverReplied
from cedos.errors import CedosError, HostError, PrivilegeError
from cedos.host.monitor import dns_message as dns
from cedos.host.monitor import flow_source
from cedos.host.monitor.flow_source import is_own
from cedos.host.monitor.probing.ping import checksum
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.classic_bpf import PACKET_TYPE, Assembler
from cedos.kernel.interface_socket import interface_socket, receive
from cedos.logs import get_logger
from cedos.model import Address, FlowKey, Network

TIMEOUT_S = 2.0
# The time of each turn of the event loop for look-ups; and as much for answers that are held.
TURN_S: Final = 0.004
_LARGEST = 4096
# Questions, and answers, that are taken in a turn of the event loop.
_QUESTIONS_AT_ONCE, _ANSWERS_AT_ONCE = 1024, 64
# The most questions, and answers, that are kept for the controller.
_MOST_KEPT: Final = 256
_PORT: Final = 53
_SNAP_BYTES: Final = 2048
_TCP, _UDP = 6, 17
_OUTGOING: Final = 4
_FRAGMENT: Final = 0x1FFF
_LOCAL: Final = frozenset(
    ("local", "lan", "home", "home.arpa", "internal", "localdomain", "corp", "localhost")
)
_log = get_logger(__name__)
_K = TypeVar("_K")
_IPV4: Final = struct.Struct("!BBHHHBBH4s4s")
_IPV6: Final = struct.Struct("!IHBB16s16s")
_UDP_HEADER: Final = struct.Struct("!HHHH")
_HOPS: Final = 64
_ADDRESSES: Final = Path("/proc/thread-self/net/if_inet6")


def datagram(key: FlowKey, payload: bytes) -> bytes:
    """Return the IP packet from the flow's remote end to its local one."""
    source, destination = key.remote.packed, key.local.packed
    length = _UDP_HEADER.size + len(payload)
    pseudo = source + destination + struct.pack("!II", length, socket.IPPROTO_UDP)
    bare = _UDP_HEADER.pack(key.remote_port, key.local_port, length, 0) + payload
    # 0 would say that there is no checksum (RFC 768).
    sum_ = checksum(pseudo + bare) or 0xFFFF
    udp = _UDP_HEADER.pack(key.remote_port, key.local_port, length, sum_) + payload
    if key.local.version == 4:
        # The kernel fills in the header's checksum and number.
        head = _IPV4.pack(
            0x45, 0, _IPV4.size + length, 0, 0, _HOPS, socket.IPPROTO_UDP, 0, source, destination
        )
    else:
        head = _IPV6.pack(6 << 28, length, socket.IPPROTO_UDP, _HOPS, source, destination)
    return head + udp


def links_of(address: Address) -> list[int]:
    """Return the interfaces of this thread's namespace with a link-local address, by index."""
    try:
        lines = _ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:  # no IPv6 here
        return []
    return [
        int(index, 16)
        for octets, index, *_ in map(str.split, lines)
        if bytes.fromhex(octets) == address.packed
    ]


class AnswerDelivery:
    """Raw sockets of the calling thread's namespace. PrivilegeError, HostError: there are none."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        try:
            for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
                try:
                    self._sockets[version] = socket.socket(
                        family, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.IPPROTO_RAW
                    )
                except OSError as error:
                    if version == 4 or isinstance(error, PermissionError):
                        raise
        except PermissionError as error:
            self.close()
            raise PrivilegeError("answering look-ups needs CAP_NET_RAW") from error
        except OSError as error:
            self.close()
            raise HostError(f"this kernel has no raw sockets: {error.strerror}") from error

    def __call__(self, key: FlowKey, payload: bytes) -> None:
        """Hand an answer to the program. Errors: OSError."""
        packet = datagram(key, payload)
        sender = self._sockets[key.local.version]
        if key.local.version == 6 and key.local.is_link_local:
            # Several may have it (VLANs, say); the program's socket is on one of them.
            for index in links_of(key.local):
                sender.sendto(packet, (str(key.local), 0, 0, index))
        else:
            sender.sendto(packet, (str(key.local), 0))

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()


Deliver = Callable[[FlowKey, bytes], None]


def program(*, outgoing: bool) -> bytes:
    """Let through UDP and TCP that goes to port 53, or comes from there, and no fragment's rest."""
    code = Assembler()
    code.load(PACKET_TYPE, 4)
    code.if_equal(_OUTGOING, *(("ours", "drop") if outgoing else ("drop", "ours")))
    code.label("ours")
    code.load(0, 1)
    code.mask(0xF0)
    code.if_equal(0x40, "v4")
    code.if_equal(0x60, "v6", "drop")
    code.label("v4")
    code.load(6, 2)
    code.if_any_bit(_FRAGMENT, "drop")
    code.load_x_header_length(0)
    code.load(9, 1)
    code.if_equal(_TCP, "ports")
    code.if_equal(_UDP, "ports", "drop")
    code.label("v6")
    code.load_x(40)
    code.load(6, 1)
    code.if_equal(_TCP, "ports")
    code.if_equal(_UDP, "ports", "drop")
    code.label("ports")
    code.load(2 if outgoing else 0, 2, indexed=True)
    code.if_equal(_PORT, "take", "drop")
    code.label("take")
    code.give(_SNAP_BYTES)
    code.label("drop")
    code.give(0)
    return code.assemble()


async def ask(
    network: Network, resolver: Address, question: bytes, *, port: int = 53
) -> bytes | None:
    """Return the first answer with the question's number; None without one in time."""
    loop = asyncio.get_running_loop()
    try:
        with interface_socket(network.interface, resolver.version, socket.SOCK_DGRAM) as asker:
            flow_source.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_sendall(asker, question)
                while True:
                    answer = await receive(asker, _LARGEST)
                    if answer[:2] == question[:2]:
                        return answer
    except OSError:  # TimeoutError is one
        return None


class LookupWatch:
    """The messages of look-ups.

    Args:
        post: takes the events.
        named: the network of a name, if it is there.
        deliver: hands answers over, where this process may not.
        captured: takes every question and answer.
    """

    def __init__(
        self,
        post: Callable[[Event], None],
        named: Callable[[str], Network | None],
        deliver: Deliver | None = None,
        captured: Callable[[CapturedPacket], None] = lambda packet: None,
    ) -> None:
        self._post = post
        self._named = named
        self._deliver = deliver
        self._captured = captured
        self._questions: OrderedDict[tuple[FlowKey, int], bytes] = OrderedDict()
        self._answers: OrderedDict[int, bytes] = OrderedDict()
        self._asking: set[asyncio.Task[None]] = set()
        self._captures: list[tuple[Capture, int]] = []
        # What was captured and is not taken yet.
        self._unread: deque[CapturedPacket] = deque()
        self._going_on = False
        self._problem = ""

    @property
    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []

    async def run(self) -> None:
        """Watch until cancelled; return if this host cannot do it."""
        loop = asyncio.get_running_loop()
        try:
            with ExitStack() as stack:
                if self._deliver is None:
                    self._deliver = stack.enter_context(closing(AnswerDelivery()))
                # Each has its queue: no flood of answers pushes out questions.
                stack.callback(self._captures.clear)
                for outgoing, most in ((True, _QUESTIONS_AT_ONCE), (False, _ANSWERS_AT_ONCE)):
                    code = program(outgoing=outgoing)
                    capture = stack.enter_context(open_capture(code=code))
                    loop.add_reader(capture.fileno(), self.read)
                    stack.callback(loop.remove_reader, capture.fileno())
                    self._captures.append((capture, most))
                stack.callback(lambda: [task.cancel() for task in self._asking])
                await loop.create_future()
        except CedosError as error:
            self._problem = f"look-ups cannot be answered over another network: {error}"
            _log.warning(self._problem)

    def observe(self, packet: CapturedPacket) -> None:
        """Tell the controller of a question to a resolver, or of its answer."""
        key, payload = packet.key, packet.payload
        if key.remote_port != _PORT or key.protocol != "udp" or key.local.is_loopback:
            return
        if packet.interface == "lo" or len(payload) < 2 or is_own(key):
            return
        number = int.from_bytes(payload[:2], "big")
        if not packet.outgoing:
            reply = dns.read_response(payload)
            failed = reply is not None and reply.code in dns.FAILURES
            self._post(LookupAnswered(key, number, failed))
        elif (asked := dns.read_question(payload)) is not None and not is_local(asked[0]):
            _keep(self._questions, (key, number), payload)
            public = dns.is_public(key.remote)
            self._post(LookupAsked(key, number, asked[0], packet.interface, public))

    def ask(self, command: AskResolver) -> None:
        """Ask another network's resolver; its answer is an event."""
        task = asyncio.get_running_loop().create_task(self._ask(command))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def answer(self, command: AnswerLookup) -> None:
        """Hand the program an attempt's answer, or a failure."""
        question = self._questions.get((command.key, command.number))
        answer = dns.failure(question) if question is not None else None
        if command.attempt is not None:
            answer = self._answers.pop(command.attempt, None)
        if answer is None or self._deliver is None:
            return
        try:
            self._deliver(command.key, answer)
        except OSError as error:
            _log.debug("an answer cannot be handed over", why=error.strerror)

    def read(self) -> bool:
        """Take what was captured until now, questions first, for some ms; return whether that was all.

        Answers are read first: their questions have been captured by then. The rest is taken in the next
        turns of the event loop.
        """
        if not self._unread:
            taken = [capture.read(most) for capture, most in reversed(self._captures)]
            self._unread.extend(chain.from_iterable(reversed(taken)))
        over_s = time.monotonic() + TURN_S
        try:
            while self._unread and time.monotonic() < over_s:
                packet = self._unread.popleft()
                self._captured(packet)
                self.observe(packet)
        finally:  # whatever becomes of one, the others are not to wait for the next one
            if self._unread and not self._going_on:
                self._going_on = True
                asyncio.get_running_loop().call_soon(self._go_on)
        return not self._unread

    def _go_on(self) -> None:
        self._going_on = False
        if self._unread:
            self.read()

    async def _ask(self, command: AskResolver) -> None:
        network, answer = self._named(command.network), None
        question = self._questions.get((command.key, command.number))
        if network is not None and question is not None:
            answer = await _asked_of(network, command.resolver, question)
        refused = None
        if answer is not None:
            _keep(self._answers, command.attempt, answer)
            refused = is_refusal(answer)
        self._post(ResolverReplied(command.key, command.number, command.attempt, refused))


def _keep(kept: OrderedDict[_K, bytes], key: _K, message: bytes) -> None:
    kept[key] = message
    kept.move_to_end(key)
    while len(kept) > _MOST_KEPT:
        kept.popitem(last=False)


async def _asked_of(network: Network, resolver: Address, question: bytes) -> bytes | None:
    """Return what a resolver says to the question; None: nothing, or something else.

    Each is asked under a number of its own: who saw the program's question cannot answer for others.
    """
    number = secrets.token_bytes(2)
    answer = await ask(network, resolver, number + question[2:])
    reply = dns.parse(answer) if answer is not None else None
    if reply is None or answer is None or answer[:2] != number:
        return None
    asked_for = dns.read_question(question) == (reply.name, reply.kind)
    return question[:2] + answer[2:] if asked_for else None


def is_refusal(answer: bytes) -> bool:
    """Return whether an answer refuses: the name may exist in the silent network alone."""
    reply = dns.read_response(answer)
    return reply is None or reply.code != dns.NO_ERROR


def is_local(name: str) -> bool:
    """Return whether a name means something in one network only (RFC 6761, 6762, 6303, 8375)."""
    name = name.rstrip(".")
    if "." not in name or name.endswith((".in-addr.arpa", ".ip6.arpa")):
        return True
    return any(name == each or name.endswith(f".{each}") for each in _LOCAL)
