"""The client's side of a UDP train: down or up, over one network (Delphi, Table 2)."""

import asyncio
import os
import secrets
import time
from collections.abc import Callable

from cedos.host.monitor.probing import dispersion, wire
from cedos.host.monitor.probing.datagrams import CLOCK_S, Datagrams, Source
from cedos.host.monitor.probing.result import UDP_HEADERS, ProbeOutcome, ProbeServer, Spent
from cedos.model import Direction

# The times after which an unanswered question is repeated.
_REPEAT_S = (0.25, 0.5, 1.0, 2.0)

# The server's report may be this many times faster than what this end saw. Networks that send in
# bursts may be; a faster report is a lie.
_AS_FAST = 4.0

_LEAST_S = 1e-6
# The wait after a train's last packet, for packets that it overtook.
_GRACE_S = 0.02


class ProbeFailed(Exception):  # noqa: N818  # an end of its own kind, which never leaves this room
    ...


async def run(
    server: ProbeServer,
    *,
    interface: str,
    index: int = 0,
    direction: Direction = Direction.DOWN,
    timeout_s: float = 2.0,
) -> ProbeOutcome:
    """Send one train within `timeout_s`; return `dispersion.indicators` or the problem, never raise."""
    started_s = time.monotonic()
    exchange: _Exchange | None = None
    known: dict[str, float] = {}
    problem, rtt_s = "", None
    try:
        exchange = _Exchange(server, interface, index, started_s + timeout_s)
        cookie, rtt_s = await exchange.greet()
        if direction is Direction.DOWN:
            known = await exchange.down(cookie)
        else:
            known = await exchange.up(cookie, rtt_s)
        if exchange.clock_moved_s > CLOCK_S:
            raise ProbeFailed("the host's clock was set during the train")
        if "udp_bps" not in known:
            raise ProbeFailed("fewer than two of the train's packets arrived in time")
        if dispersion.implausible(known):
            raise ProbeFailed("the server's report is impossible")
    except ProbeFailed as failure:
        known, problem = {}, str(failure)
    except OSError as error:
        known, problem = {}, f"{interface}: {os.strerror(error.errno) if error.errno else error}"
    finally:
        if exchange is not None:
            exchange.close()
    up, down = (exchange.bytes_up, exchange.bytes_down) if exchange is not None else (0, 0)
    return ProbeOutcome(known, Spent(up, down, time.monotonic() - started_s), problem, rtt_s)


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
        self._whole_at_s: float | None = None
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
        if isinstance(message, wire.TrainDown):
            asked = (self._server.packets, self._server.packet_bytes)
            if (message.packets, len(data)) != asked:
                self._strangers += 1
                return
            self._arrivals.setdefault(message.index, at_s)
        else:
            self._answers[type(message)] = message
            if self._is_whole(message) and self._whole_at_s is None:
                self._whole_at_s = at_s
        self._changed.set()

    async def _send(self, message: wire.Message, size_bytes: int = 0) -> None:
        data = wire.encode(message, self._server.key, size_bytes)
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

    async def greet(self) -> tuple[bytes, float]:
        asked_s = time.monotonic()
        await self._ask(
            wire.ProbeHello(self._session), lambda: wire.Cookie in self._answers, "greeting"
        )
        cookie = self._answers[wire.Cookie]
        assert isinstance(cookie, wire.Cookie)
        return cookie.cookie, time.monotonic() - asked_s

    def _question(self, cookie: bytes, direction: Direction) -> wire.TrainRequest:
        return wire.TrainRequest(
            self._session, cookie, direction, self._server.packets, self._server.packet_bytes
        )

    async def down(self, cookie: bytes) -> dict[str, float]:
        await self._ask(
            self._question(cookie, Direction.DOWN), lambda: bool(self._arrivals), "train"
        )
        packets = self._server.packets
        if await self._until(lambda: packets - 1 in self._arrivals, self._deadline_s):
            await self._until(lambda: len(self._arrivals) == packets, time.monotonic() + _GRACE_S)
        arrivals = sorted(self._arrivals.items(), key=lambda arrival: arrival[1])
        return dispersion.indicators(
            arrivals, packets=packets, packet_bits=self._packet_bits, waited_until_s=time.time()
        )

    async def up(self, cookie: bytes, rtt_s: float) -> dict[str, float]:
        server = self._server
        asked_s = time.monotonic()
        await self._ask(
            self._question(cookie, Direction.UP), lambda: wire.Ready in self._answers, "train"
        )
        rtt_s = min(rtt_s, time.monotonic() - asked_s)  # a busy host lengthens single round trips
        sent_s = time.monotonic()
        began_at_s = time.time()
        for number in range(server.packets):
            if time.monotonic() >= self._deadline_s:
                raise ProbeFailed("the network took the train too slowly")
            message = wire.TrainUp(self._session, number, server.packets)
            await self._send(message, server.packet_bytes)
        gone_at_s = time.time()

        # The question travels behind the train. Where a queue holds both back, the server reports
        # by itself now and then, and at the end the newest report is what counts.
        try:
            await self._ask(
                wire.Done(self._session), lambda: self._whole_at_s is not None, "report"
            )
        except ProbeFailed:
            if wire.Report not in self._answers:
                raise
        report = self._answers[wire.Report]
        assert isinstance(report, wire.Report)
        took_s = time.monotonic() - sent_s
        if (
            any(index >= server.packets for index, _ in report.arrivals)
            or report.received_bytes != len(report.arrivals) * server.packet_bytes
            or report.waited_s > took_s + _GRACE_S
        ):
            raise ProbeFailed("the server's report is impossible")
        known = dispersion.indicators(
            report.arrivals,
            packets=server.packets,
            packet_bits=self._packet_bits,
            waited_until_s=report.waited_s,
        )
        # What this end has seen: the train left, and was answered a round trip after it had gone through.
        answered_s = (self._whole_at_s or time.time()) - began_at_s - rtt_s
        seen_s = max(gone_at_s - began_at_s, answered_s, _LEAST_S)
        limit_bps = _AS_FAST * self._packet_bits * server.packets / seen_s
        if known.get("udp_bps", 0.0) > limit_bps:
            for name in ("udp_bps", "udp_max_bps", "udp_min_bps", "udp_mdev_bps"):
                known[name] = min(known[name], limit_bps)
        return known

    def _is_whole(self, message: wire.Message) -> bool:
        """Return whether it is a report of a train whose last packet has come."""
        return isinstance(message, wire.Report) and any(
            index == self._server.packets - 1 for index, _ in message.arrivals
        )
