"""The source of flow events and dumps: netlink, behind an interface that tests can play.

Connections that this process makes to learn about networks: no program's transfers.

Connection tracking shows them for a minute or two after their sockets have closed.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Protocol, TypeVar
from weakref import ReferenceType, ref

from cedos.errors import HostError
from cedos.kernel import conntrack, sock_diag
from cedos.kernel.netlink import (
    NETLINK_NETFILTER,
    NETLINK_SOCK_DIAG,
    AsyncRequester,
    Keeps,
    NetlinkListener,
    NetlinkMessage,
    messages,
)
from cedos.model import Address, FlowKey, FlowSample

# Openings and ends of this time are reported together, because they are not urgent.
_TOGETHER_S = 0.02
_LOOPBACK = ((socket.AF_INET, "127.0.0.1", "IPv4"), (socket.AF_INET6, "::1", "IPv6"))
# The most own flows: two a second over all networks, until connection tracking forgets them.
_MOST = 1024
_known: Final[dict[FlowKey, ReferenceType[socket.socket]]] = {}


class FlowSource(Protocol):
    def start(
        self,
        tracked: Callable[[conntrack.Tracked], None],
        destroyed: Callable[[FlowSample], None],
        overflow: Callable[[], None],
    ) -> None:
        """Begin to call back; HostError where not even ends can be observed."""

    async def sockets(self) -> list[FlowSample]:
        """Return the TCP flows now; OSError or TimeoutError where the kernel does not tell."""

    async def mark(self, key: FlowKey) -> int | None:
        """Return the mark of a TCP socket; errors as for `sockets`, OSError too where there is none."""

    async def entries(self) -> Iterable[conntrack.Tracked]:
        """Return the tracked flows now; errors as for `sockets`."""

    async def blindness(self, timeout_s: float) -> str:
        """Return why openings are not seen; empty when they are."""

    def close(self) -> None: ...


class PrivilegedQuestions(Protocol):
    """The dumps that the kernel gives privileged processes only. Errors: OSError, HostError."""

    def tracked_flows(self) -> Sequence[tuple[int, bytes]]:
        """Return the tracked flows, as messages: type and content. It may take a while."""

    def mark(self, key: FlowKey) -> int | None: ...


class KernelFlows:
    """The flows of the network namespace that the calling thread is in.

    `privileged` asks in this process's place, where that has no privileges; `is_local`: what strangers
    do to these addresses is left out at once.
    """

    def __init__(
        self,
        privileged: PrivilegedQuestions | None = None,
        is_local: Callable[[Address], bool] = lambda _: False,
    ) -> None:
        self._privileged = privileged
        self._is_local = is_local
        self._diag = AsyncRequester(NETLINK_SOCK_DIAG)
        self._tracker: AsyncRequester | None = None
        self._openings: NetlinkListener | None = None
        self._ends: NetlinkListener | None = None
        self._awaited: dict[int, asyncio.Event] = {}

    def start(
        self,
        tracked: Callable[[conntrack.Tracked], None],
        destroyed: Callable[[FlowSample], None],
        overflow: Callable[[], None],
    ) -> None:

        is_local = self._is_local

        def on_tracked(datagram: bytes) -> None:
            if conntrack.of_stranger(datagram, is_local):
                return
            for message in messages(datagram):
                if (facts := conntrack.parse(message)) is None:
                    continue
                if (waiting := self._awaited.get(facts.original.source_port)) is not None:
                    waiting.set()
                tracked(facts)

        def on_destroyed(datagram: bytes) -> None:
            at_s = time.monotonic()
            for message in messages(datagram):
                if (last := sock_diag.parse(message, at_s)) is not None:
                    destroyed(last)

        with contextlib.suppress(HostError):
            self._openings = NetlinkListener(
                NETLINK_NETFILTER,
                conntrack.GROUPS,
                on_tracked,
                overflow,
                interval_s=_TOGETHER_S,
                only=conntrack.program(),
            )
            self._tracker = AsyncRequester(NETLINK_NETFILTER)
        self._ends = NetlinkListener(
            NETLINK_SOCK_DIAG,
            sock_diag.DESTROY_GROUPS,
            on_destroyed,
            overflow,
            interval_s=_TOGETHER_S,
            # Both sockets may be readable: an opening must never come after its own end.
            before=self._openings.empty_queue if self._openings is not None else None,
        )

    async def sockets(self) -> list[FlowSample]:
        request, keeps = sock_diag.flows_request(), sock_diag.some_of_each_user()
        answers = await self._diag.dump(sock_diag.TCP_SOCKETS, request, keeps=keeps)
        at_s = time.monotonic()
        return [seen for each in answers if (seen := sock_diag.parse(each, at_s)) is not None]

    async def mark(self, key: FlowKey) -> int | None:
        if self._privileged is not None:
            return self._privileged.mark(key)
        answers = await self._diag.get(sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.flow_request(key))
        return next((mark for each in answers if (mark := sock_diag.mark_of(each))), None)

    async def entries(self) -> Iterable[conntrack.Tracked]:
        if self._tracker is None:
            return ()
        answers: Iterable[NetlinkMessage]
        if self._privileged is not None:
            told = await asyncio.to_thread(self._privileged.tracked_flows)
            answers = (NetlinkMessage(kind, 0, 0, payload) for kind, payload in told)
        else:
            answers = await self._tracker.dump(conntrack.GET, conntrack.dump_request())
        # One at a time: a flood leaves tens of thousands, a kilobyte each.
        return (facts for answer in answers if (facts := conntrack.parse(answer)) is not None)

    async def blindness(self, timeout_s: float) -> str:
        """Send a datagram from loopback to loopback in each IP version: it must show as a flow."""
        if self._openings is None:
            return "the kernel has no connection tracking events: flows show when they end"
        seen = await asyncio.gather(
            *(self._sees_itself(family, host, timeout_s) for family, host, _ in _LOOPBACK)
        )
        blind = [name for (_, _, name), sees in zip(_LOOPBACK, seen, strict=True) if not sees]
        if not blind:
            return ""
        return (
            f"connection tracking is not active for {' and '.join(blind)} in this network "
            "namespace (no rule refers to it): flows show when they end"
        )

    async def _sees_itself(self, family: int, host: str, timeout_s: float) -> bool:
        seen = asyncio.Event()
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.setblocking(False)
                probe.bind((host, 0))
                port = probe.getsockname()[1]
                self._awaited[port] = seen
                try:
                    probe.sendto(b"\0", (host, port))
                    async with asyncio.timeout(timeout_s):
                        await seen.wait()
                finally:
                    del self._awaited[port]
        except TimeoutError:
            return False
        except OSError:
            return True  # no such IP version here: nothing to be blind to
        return True

    def close(self) -> None:
        for opened in (self._openings, self._ends, self._diag, self._tracker):
            if opened is not None:
                opened.close()


_Known = TypeVar("_Known")


@dataclass(frozen=True, slots=True)
class OpenSockets:
    """The sockets of this host at one instant; None: the kernel does not tell.

    A UDP socket without a peer, as servers have it, carries all flows of its port.
    """

    tcp: frozenset[FlowKey] | None
    udp_ports: frozenset[int] | None

    def carry(self, key: FlowKey) -> bool:
        """Return whether a flow has a socket, or may have one."""
        if key.protocol == "udp":
            return self.udp_ports is None or key.local_port in self.udp_ports
        return self.tcp is None or key in self.tcp


async def open_sockets() -> OpenSockets:
    """Return the sockets now, of the namespace that the calling thread is in."""
    diag = AsyncRequester(NETLINK_SOCK_DIAG)
    try:
        udp = [
            sock_diag.sockets_request(each, socket.IPPROTO_UDP)
            for each in (socket.AF_INET, socket.AF_INET6)
        ]
        some, every = sock_diag.some_of_each_user(), lambda _: True
        return OpenSockets(
            await _all(diag, sock_diag.TCP_SOCKETS, [sock_diag.flows_request()], _flow, some),
            await _all(diag, sock_diag.SOCK_DIAG_BY_FAMILY, udp, sock_diag.local_port, every),
        )
    finally:
        diag.close()


async def _all(
    diag: AsyncRequester,
    kind: int,
    requests: Iterable[bytes],
    parse: Callable[[NetlinkMessage], _Known | None],
    counts: Keeps,
) -> frozenset[_Known] | None:
    """Return the facts of each socket that counts; None if the kernel has no such dump (udp_diag)."""
    found: set[_Known] = set()

    def take(answer: NetlinkMessage) -> bool:
        # Keep no answer: a user may have hundreds of thousands of sockets at one port.
        if counts(answer) and (known := parse(answer)) is not None:
            found.add(known)
        return False

    try:
        for request in requests:
            await diag.dump(kind, request, keeps=take)
    except (OSError, TimeoutError):
        return None
    return frozenset(found)


def _flow(answer: NetlinkMessage) -> FlowKey | None:
    facts = sock_diag.parse(answer, time.monotonic())
    return None if facts is None else facts.key


def is_own(key: FlowKey) -> bool:
    """Return whether this process made the flow, of late, to learn about a network."""
    return key in _known


def is_open(key: FlowKey) -> bool:
    """Return whether a flow is an own one now: a program may have the port of one that has ended."""
    known = _known.get(key)
    made = known() if known is not None else None
    return made is not None and made.fileno() >= 0


def connect(made: socket.socket, peer: Address, port: int, index: int = 0) -> bool:
    """Begin to connect a non-blocking TCP or UDP socket; return whether it is connected (UDP: always).

    Its flow is an own one from its first packet on. `index` is that of a link-local peer's interface.
    """
    try:
        made.connect(_socket_address(peer, port, index))
        done = True
    except BlockingIOError:
        done = False
    near, near_port, *_ = made.getsockname()
    protocol = "udp" if made.type == socket.SOCK_DGRAM else "tcp"
    while len(_known) >= _MOST:
        del _known[next(iter(_known))]
    local = ip_address(near.partition("%")[0])
    _known[FlowKey(local, near_port, peer, port, protocol)] = ref(made)
    return done


async def wait_connected(made: socket.socket, peer: Address, port: int, index: int = 0) -> None:
    """Connect a TCP socket as `connect` does, and wait for it."""
    if not connect(made, peer, port, index):
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, _socket_address(peer, port, index))


def _socket_address(peer: Address, port: int, index: int) -> tuple[Any, ...]:
    scope = (0, index) if peer.version == 6 and peer.is_link_local else ()
    return (str(peer), port, *scope)
