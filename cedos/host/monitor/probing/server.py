"""The probe server: it sends and receives trains, for clients that hold the key.

It sends a train only to an address that has proved to be the client's own, of the size that was asked
for, and within rate limits. It remembers a bounded number of sessions and sources.
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import structlog

from cedos.errors import HostError
from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.probes import UDP_HEADERS
from cedos.host.monitor.probing.udp_train import CLOCK_S, Datagrams, Source, clock_offset_s
from cedos.host.monitor.probing.wire import RefusalReason
from cedos.limits import TokenBucket
from cedos.model import Address, Direction

_MOST_SOURCES = 4096
_V6_PREFIX = 64


def _source_of(address: Address) -> object:
    """Return an IPv4 address, or what one holder of IPv6 addresses has at least."""
    if isinstance(address, IPv6Address):
        return ip_network((address, _V6_PREFIX), strict=False)
    return address


class ProbeLimits:
    """Rate limits of each source (IPv6: its /64) and of all; a burst is `burst_s` seconds' worth."""

    def __init__(self, source_bps: float, total_bps: float, burst_s: float = 5.0) -> None:
        self._source_bps = source_bps
        self._burst_s = burst_s
        self._total = self._bucket(total_bps, 0.0)
        # The source that has been silent for longest is forgotten first. Only a client that holds the key
        # and has proved its address gets an entry, so that an attacker cannot cheaply drive out the
        # entries of others, or its own used-up limit.
        self._sources: OrderedDict[object, TokenBucket] = OrderedDict()

    def _bucket(self, rate_bps: float, now_s: float) -> TokenBucket:
        burst_bytes = rate_bps / 8 * self._burst_s
        return TokenBucket(rate_bps / 8, burst_bytes, now_s)

    def __len__(self) -> int:
        return len(self._sources)

    def take(self, source: Address, count: int, now_s: float) -> tuple[RefusalReason, float] | None:
        """Take `count` bytes. If a limit forbids it, return which, and the seconds until it allows it."""
        key = _source_of(source)
        own = self._sources.get(key)
        if own is None:
            own = self._sources[key] = self._bucket(self._source_bps, now_s)
            if len(self._sources) > _MOST_SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end(key)
        for reason, bucket in (
            (RefusalReason.SOURCE_LIMIT, own),
            (RefusalReason.TOTAL_LIMIT, self._total),
        ):
            missing = count - bucket.available(now_s)
            if count > bucket.burst:
                return RefusalReason.TOO_LARGE, 0.0
            if missing > 0:
                return reason, missing / bucket.per_s
        own.take(now_s, count)
        self._total.take(now_s, count)
        return None


_log = structlog.get_logger(__name__)

# A used session is remembered for this long: longer than any cookie is valid, so that it cannot be used
# again.
_SESSION_LIFE_S = 12.0

_MOST_SESSIONS = 2048
_MOST_UPWARD = 256
# Of these one source has so many: trains of two packets cost its rate next to nothing.
_MOST_UPWARD_OF_SOURCE = 32
_MOST_DOWN_OF_SOURCE = 256
_MOST_OF_SOURCE = {Direction.UP: _MOST_UPWARD_OF_SOURCE, Direction.DOWN: _MOST_DOWN_OF_SOURCE}
_REPORTS_AT_S = (0.25, 0.5, 1.0, 2.0)
_MOST_REPORTS = 12
_TELL_EVERY_S = 10.0


@dataclass(slots=True)
class _UpTrain:
    source: Source
    packets: int
    packet_bytes: int
    began_s: float
    clock_offset_s: float
    arrivals: dict[int, float] = field(default_factory=dict)
    received_bytes: int = 0
    reports: int = 0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class ProbeServing:
    """A probe server, as an asynchronous context manager. HostError: it cannot listen.

    `address` must be one address, since answers leave from it; `port` 0: any free one. `counts` has the
    number of each kind of event, by its description.
    """

    def __init__(self, address: Address, port: int, key: bytes, limits: ProbeLimits) -> None:
        self.port = port
        self.counts: Counter[str] = Counter()
        self._address = address
        self._key = key
        self._limits = limits
        self._secret = secrets.token_bytes(wire.KEY_BYTES)
        self._headers = UDP_HEADERS[address.version]
        # By session: when its train began, its source, and the way.
        self._used: OrderedDict[bytes, tuple[float, object, Direction]] = OrderedDict()
        self._of_source: Counter[tuple[object, Direction]] = Counter()  # of these
        self._upward: OrderedDict[bytes, _UpTrain] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self._told_s = 0.0
        self._told: Counter[str] = Counter()

    async def __aenter__(self) -> "ProbeServing":
        self._datagrams = Datagrams(self._address.version, self._received)
        try:
            self._datagrams.socket.bind((str(self._address), self.port))
        except OSError as error:
            self._datagrams.close()
            raise HostError(
                f"cannot listen on {self._address} port {self.port}: {error.strerror or error}"
            ) from error
        self.port = self._datagrams.socket.getsockname()[1]
        _log.info("listening", address=str(self._address), port=self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._datagrams.close()
        for upward in self._upward.values():
            _cancel(upward)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        _log.info("ended", **{words.replace(" ", "_"): n for words, n in self.counts.items()})

    def _note(self, what: str) -> None:
        """Count an event; every few seconds one log line sums them up."""
        self.counts[what] += 1
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            since = self.counts - self._told
            _log.info("served", **{words.replace(" ", "_"): n for words, n in since.items()})
            self._told_s, self._told = now_s, self.counts.copy()

    def _received(self, data: bytes, at_s: float, source: Source) -> None:
        message = wire.decode(data, self._key)
        if message is None:
            self._note("datagrams without the key")
            return
        if isinstance(message, wire.TrainUp):
            self._arrived(message, len(data), at_s, source)
        elif isinstance(message, wire.ProbeHello):
            self._note("greetings")
            cookie = wire.cookie(
                self._secret, _address(source), source[1], message.session, time.monotonic()
            )
            self._begin(self._send(wire.Cookie(message.session, cookie), source))
        elif isinstance(message, wire.TrainRequest):
            self._asked(message, source)
        elif isinstance(message, wire.Done):
            self._report(message.session, source)

    def _asked(self, ask: wire.TrainRequest, source: Source) -> None:
        now_s = time.monotonic()
        address = _address(source)
        held = (self._secret, address, source[1], ask.session, now_s)
        if not wire.cookie_holds(ask.cookie, *held):
            self._note("stale or foreign cookies")
            return
        self._forget(now_s)
        if ask.session in self._used:
            # A repeated ASK: the first one is answered already. Send READY again, which may have been
            # lost, but never a second train.
            upward = self._upward.get(ask.session)
            if upward is not None and not upward.arrivals and upward.reports < _MOST_REPORTS:
                upward.reports += 1
                self._begin(self._send(wire.Ready(ask.session), source))
            return
        refused = self._refusal(ask, address, now_s)
        if refused is not None:
            reason, retry_s = refused
            self._note(f"refused, {wire.REASONS[reason]}")
            self._begin(self._send(wire.Refused(ask.session, reason, retry_s), source))
            return
        self._used[ask.session] = now_s, _source_of(address), ask.direction
        self._of_source[_source_of(address), ask.direction] += 1
        if ask.direction is Direction.DOWN:
            self._note("trains down")
            self._begin(self._train(ask, source))
        else:
            self._note("trains up")
            self._upward[ask.session] = _UpTrain(
                source, ask.packets, ask.packet_bytes, now_s, clock_offset_s()
            )
            self._begin(self._send(wire.Ready(ask.session), source))

    def _refusal(
        self, ask: wire.TrainRequest, address: Address, now_s: float
    ) -> tuple[wire.RefusalReason, float] | None:
        sizes_fit = (
            wire.MIN_PACKETS <= ask.packets <= wire.MAX_PACKETS
            and wire.MIN_PACKET_BYTES <= ask.packet_bytes <= wire.MAX_PACKET_BYTES
        )
        if not sizes_fit:
            return wire.RefusalReason.TOO_LARGE, 0.0
        if len(self._used) >= _MOST_SESSIONS or len(self._upward) >= _MOST_UPWARD:
            return wire.RefusalReason.BUSY, _SESSION_LIFE_S
        if self._of_source[_source_of(address), ask.direction] >= _MOST_OF_SOURCE[ask.direction]:
            return wire.RefusalReason.SOURCE_LIMIT, _SESSION_LIFE_S
        count = ask.packets * (ask.packet_bytes + self._headers)
        return self._limits.take(address, count, now_s)

    def _forget(self, now_s: float) -> None:
        while self._used and next(iter(self._used.values()))[0] < now_s - _SESSION_LIFE_S:
            _, (_, source, way) = self._used.popitem(last=False)
            self._of_source[source, way] -= 1
            if not self._of_source[source, way]:
                del self._of_source[source, way]
        while self._upward:
            session, oldest = next(iter(self._upward.items()))
            if oldest.began_s >= now_s - _SESSION_LIFE_S:
                break
            _cancel(self._upward.pop(session))

    async def _train(self, ask: wire.TrainRequest, source: Source) -> None:
        # Make all datagrams before the first one leaves, so that they leave without gaps.
        train = [
            wire.encode(
                wire.TrainDown(ask.session, index, ask.packets), self._key, ask.packet_bytes
            )
            for index in range(ask.packets)
        ]
        for datagram in train:
            await self._datagrams.send(datagram, source)

    def _arrived(self, message: wire.TrainUp, size: int, at_s: float, source: Source) -> None:
        upward = self._upward.get(message.session)
        if (
            upward is None
            or (upward.source, upward.packets, upward.packet_bytes)
            != (source, message.packets, size)
            or message.index in upward.arrivals
        ):
            self._note("stray packets")
            return
        if not upward.arrivals:
            loop = asyncio.get_running_loop()
            upward.timers = [
                loop.call_later(pause_s, self._report, message.session, source)
                for pause_s in _REPORTS_AT_S
            ]
        upward.arrivals[message.index] = at_s
        upward.received_bytes += size

    def _report(self, session: bytes, source: Source) -> None:
        upward = self._upward.get(session)
        if upward is None or upward.source != source or upward.reports >= _MOST_REPORTS:
            self._note("reports about nothing")
            return
        if abs(clock_offset_s() - upward.clock_offset_s) > CLOCK_S:
            self._note("trains up spoilt by a clock that was set")
            return
        upward.reports += 1
        arrivals = sorted(upward.arrivals.items(), key=lambda arrival: arrival[1])
        if any(index == upward.packets - 1 for index, _ in arrivals):
            _cancel(upward)
        first_s = arrivals[0][1] if arrivals else time.time()
        report = wire.Report(
            session,
            upward.received_bytes,
            max(time.time() - first_s, arrivals[-1][1] - first_s if arrivals else 0.0),
            tuple((index, at_s - first_s) for index, at_s in arrivals),
        )
        self._begin(self._send(report, source))

    async def _send(self, message: wire.Message, source: Source) -> None:
        await self._datagrams.send(wire.encode(message, self._key), source)

    def _begin(self, sending: Coroutine[Any, Any, None]) -> None:
        if len(self._tasks) >= _MOST_SESSIONS:
            sending.close()
            self._note("not sent, too many wait")
            return
        task = asyncio.get_running_loop().create_task(self._guarded(sending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, sending: Coroutine[Any, Any, None]) -> None:
        """Send in turn: of two that wait for room in one socket, the event loop forgets the first."""
        try:
            async with asyncio.timeout(_SESSION_LIFE_S), self._turn:
                await sending
        except TimeoutError:
            self._note("not sent in time")
        except OSError as error:
            self._note(f"not sent, {error.strerror}")
        finally:
            sending.close()


def _address(source: Source) -> Address:
    return ip_address(str(source[0]).partition("%")[0])


def _cancel(upward: _UpTrain) -> None:
    for timer in upward.timers:
        timer.cancel()
    upward.timers.clear()
