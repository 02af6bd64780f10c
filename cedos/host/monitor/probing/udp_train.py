"""The client's side of a UDP train downwards over one network (Delphi, Table 2).

Derive indicators of a network from the arrivals of a train. Pure.

A UDP socket whose datagrams come with the kernel's time of their arrival.
"""

import asyncio
import itertools
import math
import os
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cedos.host.monitor import flow_source
from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.probes import UDP_HEADERS, ProbeOutcome, ProbeServer, Spent
from cedos.kernel.interface_socket import TIMESTAMP_SPACE, arrival_ns, interface_socket
from cedos.model import Address

# The times after which an unanswered question is repeated.
_REPEAT_S = (0.25, 0.5, 1.0, 2.0)
# The wait after a train's last packet, for packets that it overtook.
_GRACE_S = 0.02
# The number of equal parts of a train's time from which maximum, minimum and deviation are taken.
BINS = 5
INDICATORS = (
    "udp_bps", "udp_loss", "udp_max_bps", "udp_min_bps", "udp_mdev_bps",
    "udp_gap_mean_s", "udp_gap_p50_s", "udp_gap_p90_s",
)  # fmt: skip
# Arrivals closer than this count as simultaneous: no clock separates them.
_CLOCK_S = 1e-9
_LARGEST = 2048
_BUFFER_BYTES = 1 << 20
# If the clock was set by more than this during a train, the arrivals are useless.
CLOCK_S = 0.002
# The most datagrams that are read before the event loop does other work.
_AT_ONCE = 512
# A peer's socket address: address, port, and for IPv6 flow label and scope.
Source = tuple[Any, ...]
Receive = Callable[[bytes, float, Source], None]


class Datagrams:
    """A UDP socket; `receive` takes data, time of arrival and source. OSError: no such interface.

    The kernel's clock is the host's wall clock; `clock_moved_s` says how much it was set meanwhile.
    """

    def __init__(self, version: int, receive: Receive, *, interface: str | None = None) -> None:
        self._receive = receive
        self.socket = interface_socket(interface, version, socket.SOCK_DGRAM, timestamps=True)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._offset_s = clock_offset_s()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.socket.fileno(), self._readable)

    @property
    def clock_moved_s(self) -> float:
        """Return how far the wall clock has moved against the monotonic one since the beginning."""
        return abs(clock_offset_s() - self._offset_s)

    async def send(self, data: bytes, to: Source | None = None) -> None:
        """Send one; wait while the kernel's buffer is full. OSError: the network does not take it."""
        if to is None:
            await self._loop.sock_sendall(self.socket, data)
        else:
            await self._loop.sock_sendto(self.socket, data, to)

    def connect(self, address: Address, port: int, index: int = 0) -> None:
        """Send to, and hears from, this peer alone; `index` is that of a link-local one's interface."""
        flow_source.connect(self.socket, address, port, index)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, ancillary, flags, source = self.socket.recvmsg(_LARGEST, TIMESTAMP_SPACE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # The network's error about an earlier datagram (unreachable, refused). Go on waiting for
                # the answer: it may be on its way, and any host can send such an error.
                continue
            if flags & socket.MSG_TRUNC:
                continue
            self._receive(data, arrival_ns(ancillary) / 1e9 or time.time(), source)

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            with suppress(ValueError):
                self._loop.remove_reader(self.socket.fileno())
            self.socket.close()


def clock_offset_s() -> float:
    """Return the wall clock less the monotonic one, right within microseconds on a busy host too."""
    best = (float("inf"), 0.0)
    for _ in range(3):
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        best = min(best, (after_s - before_s, wall_s - (before_s + after_s) / 2))
    return best[1]


def indicators(
    # (index, seconds) in the order of arrival, no index twice.
    arrivals: Sequence[tuple[int, float]],
    *,
    packets: int,  # how many were sent
    packet_bits: int,  # the bits of one on the wire, headers of IP and UDP included
    waited_until_s: float,  # when listening ended, on the arrivals' clock
) -> dict[str, float]:
    """Return the indicators of a train (Delphi, Table 2), all but the loss from two arrival times on.

    `udp_bps`: the slope of the least-squares line through (time of arrival, bits so far), which
    unlike first-to-last is exact where a network delivers in bursts, as radios do. If the last packet
    did not come, the network may have died on the way: then the bits after the first packet over all
    the time waited. `udp_max_bps`, `udp_min_bps`, `udp_mdev_bps`: over `BINS` equal parts of the time
    between the first and the last arrival; mdev is the standard deviation, as ping calls it.
    """
    found = {"udp_loss": round(1 - len(arrivals) / packets, 6)}
    times_s = [at_s for _, at_s in arrivals]
    if len(arrivals) < 2 or times_s[-1] - times_s[0] < _CLOCK_S:
        return found
    whole = any(index == packets - 1 for index, _ in arrivals)
    rate_bps = packet_bits * _slope(times_s)
    if not whole:
        waited_s = max(waited_until_s, times_s[-1]) - times_s[0]
        rate_bps = min(rate_bps, packet_bits * (len(arrivals) - 1) / waited_s)
    gaps_s = sorted(b - a for a, b in itertools.pairwise(times_s))
    rates_bps = _binned_bps(times_s, packet_bits)
    found |= {
        "udp_bps": rate_bps,
        "udp_max_bps": max(rates_bps),
        "udp_min_bps": min(rates_bps),
        "udp_mdev_bps": statistics.pstdev(rates_bps),
        "udp_gap_mean_s": statistics.fmean(gaps_s),
        "udp_gap_p50_s": _quantile(gaps_s, 0.5),
        "udp_gap_p90_s": _quantile(gaps_s, 0.9),
    }
    return found if all(map(math.isfinite, found.values())) else {"udp_loss": found["udp_loss"]}


def _slope(times_s: Sequence[float]) -> float:
    """Return packets per second by least squares of the number so far on the time."""
    mean_s = statistics.fmean(times_s)
    middle = (len(times_s) - 1) / 2
    spread = sum((at_s - mean_s) ** 2 for at_s in times_s)
    return sum((n - middle) * (at_s - mean_s) for n, at_s in enumerate(times_s)) / spread


def _binned_bps(times_s: Sequence[float], packet_bits: int) -> list[float]:
    width_s = (times_s[-1] - times_s[0]) / BINS
    counts = [0] * BINS
    for at_s in times_s[1:]:  # the first one marks the beginning
        # A bin holds what arrived up to its end.
        part = math.ceil((at_s - times_s[0]) / width_s) - 1
        counts[min(max(part, 0), BINS - 1)] += 1
    return [count * packet_bits / width_s for count in counts]


def _quantile(ordered: Sequence[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


class ProbeFailed(Exception):  # noqa: N818  # an end of its own kind, which never leaves this room
    ...


async def run(
    server: ProbeServer,
    *,
    interface: str,
    index: int = 0,
    timeout_s: float = 2.0,
) -> ProbeOutcome:
    """Ask for one train within `timeout_s`; return `indicators` or the problem, never raise."""
    started_s = time.monotonic()
    exchange: _Exchange | None = None
    known: dict[str, float] = {}
    problem = ""
    try:
        exchange = _Exchange(server, interface, index, started_s + timeout_s)
        known = await exchange.train(await exchange.greet())
        if exchange.clock_moved_s > CLOCK_S:
            raise ProbeFailed("the host's clock was set during the train")
        if "udp_bps" not in known:
            raise ProbeFailed("fewer than two of the train's packets arrived in time")
    except ProbeFailed as failure:
        known, problem = {}, str(failure)
    except OSError as error:
        known, problem = {}, f"{interface}: {os.strerror(error.errno) if error.errno else error}"
    finally:
        if exchange is not None:
            exchange.close()
    up, down = (exchange.bytes_up, exchange.bytes_down) if exchange is not None else (0, 0)
    return ProbeOutcome(known, Spent(up, down, time.monotonic() - started_s), problem)


class _Exchange:
    def __init__(self, server: ProbeServer, interface: str, index: int, deadline_s: float) -> None:
        self._server = server
        self._deadline_s = deadline_s
        self._headers = UDP_HEADERS[server.address.version]
        self._packet_bits = 8 * (server.packet_bytes + self._headers)
        self._session = secrets.token_bytes(wire.SESSION_BYTES)
        self._changed = asyncio.Event()
        self._strangers = 0
        self._answers: dict[type[wire.Message], wire.Message] = {}
        self._arrivals: dict[int, float] = {}
        self.bytes_up = 0
        self.bytes_down = 0
        self._datagrams = Datagrams(server.address.version, self._received, interface=interface)
        try:
            self._datagrams.connect(server.address, server.port, index)
        except OSError:
            self._datagrams.close()
            raise

    @property
    def clock_moved_s(self) -> float:
        return self._datagrams.clock_moved_s

    def close(self) -> None:
        self._datagrams.close()

    def _received(self, data: bytes, at_s: float, source: Source) -> None:
        self.bytes_down += self._headers + len(data)
        message = wire.decode(data, self._server.key)
        if message is None or message.session != self._session:
            self._strangers += 1
            return
        if isinstance(message, wire.TrainPacket):
            asked = (self._server.packets, self._server.packet_bytes)
            if (message.packets, len(data)) != asked:
                self._strangers += 1
                return
            self._arrivals.setdefault(message.index, at_s)
        else:
            self._answers[type(message)] = message
        self._changed.set()

    async def _send(self, message: wire.Message) -> None:
        data = wire.encode(message, self._server.key)
        await self._datagrams.send(data)
        self.bytes_up += self._headers + len(data)

    async def _until(self, reached: Callable[[], bool], until_s: float) -> bool:
        while not reached():
            left_s = min(until_s, self._deadline_s) - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return True

    async def _ask(self, message: wire.Message, reached: Callable[[], bool], what: str) -> None:
        """Ask until an answer has come, with growing pauses."""
        tries = 0
        while time.monotonic() < self._deadline_s:
            await self._send(message)
            pause_s = _REPEAT_S[min(tries, len(_REPEAT_S) - 1)]
            tries += 1
            if await self._until(lambda: reached() or self._refused, time.monotonic() + pause_s):
                break
        if refusal := self._answers.get(wire.Refused):
            assert isinstance(refusal, wire.Refused)
            raise ProbeFailed(
                f"the server refuses: {wire.REASONS[refusal.reason]}"
                f" (again in {refusal.retry_s:.1f} s)"
            )
        if not reached():
            raise ProbeFailed(
                f"the server's answers are not signed with this key ({what})"
                if self._strangers
                else f"no answer in time ({what})"
            )

    @property
    def _refused(self) -> bool:
        return wire.Refused in self._answers

    async def greet(self) -> bytes:
        """Return the server's cookie."""
        await self._ask(
            wire.ProbeHello(self._session), lambda: wire.Cookie in self._answers, "greeting"
        )
        cookie = self._answers[wire.Cookie]
        assert isinstance(cookie, wire.Cookie)
        return cookie.cookie

    async def train(self, cookie: bytes) -> dict[str, float]:
        packets = self._server.packets
        ask = wire.TrainRequest(self._session, cookie, packets, self._server.packet_bytes)
        await self._ask(ask, lambda: bool(self._arrivals), "train")
        if await self._until(lambda: packets - 1 in self._arrivals, self._deadline_s):
            await self._until(lambda: len(self._arrivals) == packets, time.monotonic() + _GRACE_S)
        arrivals = sorted(self._arrivals.items(), key=lambda arrival: arrival[1])
        return indicators(
            arrivals, packets=packets, packet_bits=self._packet_bits, waited_until_s=time.time()
        )
