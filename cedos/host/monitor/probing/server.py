"""The probe server: it sends trains to clients that hold the key.

It sends a train only to an address that has proved to be the client's own, of the size that was asked
for, and within rate limits. It remembers a bounded number of sessions and sources.
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import structlog

from cedos.errors import HostError
from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.probes import UDP_HEADERS
from cedos.host.monitor.probing.udp_train import Datagrams, Source
from cedos.host.monitor.probing.wire import RefusalReason
from cedos.limits import TokenBucket
from cedos.model import Address

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
# Of these one source has so many: trains of two packets cost its rate next to nothing.
_MOST_OF_SOURCE = 256
_TELL_EVERY_S = 10.0


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
        # By session: when its train began, and its source.
        self._used: OrderedDict[bytes, tuple[float, object]] = OrderedDict()
        self._of_source: Counter[object] = Counter()  # of these
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
        if isinstance(message, wire.ProbeHello):
            self._note("greetings")
            cookie = wire.cookie(
                self._secret, _address(source), source[1], message.session, time.monotonic()
            )
            self._begin(self._send(wire.Cookie(message.session, cookie), source))
        elif isinstance(message, wire.TrainRequest):
            self._asked(message, source)

    def _asked(self, ask: wire.TrainRequest, source: Source) -> None:
        now_s = time.monotonic()
        address = _address(source)
        held = (self._secret, address, source[1], ask.session, now_s)
        if not wire.cookie_holds(ask.cookie, *held):
            self._note("stale or foreign cookies")
            return
        self._forget(now_s)
        if ask.session in self._used:
            return  # a repeated ASK: the first one is answered already
        refused = self._refusal(ask, address, now_s)
        if refused is not None:
            reason, retry_s = refused
            self._note(f"refused, {wire.REASONS[reason]}")
            self._begin(self._send(wire.Refused(ask.session, reason, retry_s), source))
            return
        self._used[ask.session] = now_s, _source_of(address)
        self._of_source[_source_of(address)] += 1
        self._note("trains")
        self._begin(self._train(ask, source))

    def _refusal(
        self, ask: wire.TrainRequest, address: Address, now_s: float
    ) -> tuple[wire.RefusalReason, float] | None:
        sizes_fit = (
            wire.MIN_PACKETS <= ask.packets <= wire.MAX_PACKETS
            and wire.MIN_PACKET_BYTES <= ask.packet_bytes <= wire.MAX_PACKET_BYTES
        )
        if not sizes_fit:
            return wire.RefusalReason.TOO_LARGE, 0.0
        if len(self._used) >= _MOST_SESSIONS:
            return wire.RefusalReason.BUSY, _SESSION_LIFE_S
        if self._of_source[_source_of(address)] >= _MOST_OF_SOURCE:
            return wire.RefusalReason.SOURCE_LIMIT, _SESSION_LIFE_S
        count = ask.packets * (ask.packet_bytes + self._headers)
        return self._limits.take(address, count, now_s)

    def _forget(self, now_s: float) -> None:
        while self._used and next(iter(self._used.values()))[0] < now_s - _SESSION_LIFE_S:
            _, (_, source) = self._used.popitem(last=False)
            self._of_source[source] -= 1
            if not self._of_source[source]:
                del self._of_source[source]

    async def _train(self, ask: wire.TrainRequest, source: Source) -> None:
        # Make all datagrams before the first one leaves, so that they leave without gaps.
        train = [
            wire.encode(
                wire.TrainPacket(ask.session, index, ask.packets), self._key, ask.packet_bytes
            )
            for index in range(ask.packets)
        ]
        for datagram in train:
            await self._datagrams.send(datagram, source)

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
