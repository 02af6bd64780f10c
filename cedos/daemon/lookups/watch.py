"""Watches the look-ups of all programs, and asks and answers them as the controller says.

The controller decides by names and numbers (`cedos.controller.lookups`). The messages themselves stay
here.
"""

import asyncio
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final, TypeVar

import structlog

from cedos.controller.commands import AnswerLookup, AskResolver
from cedos.controller.events import Event, LookupAnswered, LookupAsked, ResolverReplied
from cedos.daemon.lookups.delivery import AnswerDelivery, Deliver
from cedos.errors import CedosError
from cedos.host.monitor.dns import message as dns
from cedos.host.monitor.flows import own_flows
from cedos.host.monitor.flows.own_flows import is_own
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.classic_bpf import Assembler
from cedos.kernel.interface_socket import interface_socket
from cedos.model import Address, FlowKey, Network

TIMEOUT_S = 2.0
_LARGEST = 4096
_AT_ONCE = 64
# The most questions, and answers, that are kept for the controller.
_MOST_KEPT: Final = 256
_PORT: Final = 53
_SNAP_BYTES: Final = 2048
_TCP, _UDP = 6, 17
_FRAGMENT: Final = 0x1FFF
_LOCAL: Final = frozenset(
    ("local", "lan", "home", "home.arpa", "internal", "localdomain", "corp", "localhost")
)
_NO_ERROR: Final = 0

_log = structlog.get_logger(__name__)
_K = TypeVar("_K")


def program() -> bytes:
    """Let through UDP and TCP from or to port 53, and no fragment's rest."""
    code = Assembler()
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
    code.load(0, 2, indexed=True)
    code.if_equal(_PORT, "take")
    code.load(2, 2, indexed=True)
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
            own_flows.connect(asker, resolver, port, network.index)
            async with asyncio.timeout(TIMEOUT_S):
                await loop.sock_sendall(asker, question)
                while True:
                    answer = await loop.sock_recv(asker, _LARGEST)
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
        self._capture: Capture | None = None
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
                capture = stack.enter_context(open_capture(code=program()))
                self._capture = capture
                loop.add_reader(capture.fileno(), self.read)
                stack.callback(self._end_reading)
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
            reply = dns.parse(payload)
            failed = reply is not None and reply.code in dns.FAILURES
            self._post(LookupAnswered(key, number, failed))
        elif (asked := dns.asked(payload)) is not None and not is_local(asked[0]):
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

    def read(self) -> None:
        """Take what was captured until now."""
        for packet in self._capture.read(_AT_ONCE) if self._capture is not None else ():
            self._captured(packet)
            self.observe(packet)

    def _end_reading(self) -> None:
        if self._capture is not None:
            asyncio.get_running_loop().remove_reader(self._capture.fileno())
            self._capture = None

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
    asked_for = dns.asked(question) == (reply.name, reply.kind)
    return question[:2] + answer[2:] if asked_for else None


def is_refusal(answer: bytes) -> bool:
    """Return whether an answer refuses: the name may exist in the silent network alone."""
    reply = dns.parse(answer)
    return reply is None or reply.code != _NO_ERROR


def is_local(name: str) -> bool:
    """Return whether a name means something in one network only (RFC 6761, 6762, 6303, 8375)."""
    name = name.rstrip(".")
    if "." not in name or name.endswith((".in-addr.arpa", ".ip6.arpa")):
        return True
    return any(name == each or name.endswith(f".{each}") for each in _LOCAL)
