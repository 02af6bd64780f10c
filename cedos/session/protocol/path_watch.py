"""The watch of a path: silent, crawling, flapping, or resting and probed. Pure state machines.

- `PathWatch` notices a silent path long before the kernel does. The kernel retransmits ever more rarely,
  and gives the connection up only half a minute after the last acknowledgement.
- `CrawlWatch` notices a path so slow that another path would deliver its data sooner. A Wi-Fi that fades
  does not fall silent: acknowledgements go on, at a hundredth of the rate (docs/decisions/silences.md).
- `FlappingNetworks` remembers networks that fall silent or are lost again and again. A path that flaps
  costs more than it carries, since its data is sent again over another path. Each time it comes back it
  is left alone for longer, as long as another path lives. Each ten seconds without a fall cancel one
  fall: a Wi-Fi that is there for ten seconds and away for ten, as in a bus, does not flap.
- `PathProber` measures the rate of a path that rests (IntNW's scout; dissertation, 2.3.2). It sends a
  short Ping and one with padding, each in a record of its own. The time between the two Pongs is the
  time that the network took for the padding, without its first segment, which travels with the short
  Ping. A Pong has no padding, so that a small Ping cannot make a peer send much. A probe is sent only if
  the session has several paths, and only while probes are a small share of its bytes and of the time.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

from cedos.session.protocol import packing
from cedos.session.protocol.frames import Pong
from cedos.session.protocol.in_flight import InFlight, PathFlight
from cedos.session.protocol.life import Control, Event, Probed, SessionState
from cedos.session.protocol.schedulers.interface import ALL_RANKS, RECENT_S
from cedos.session.protocol.sender import Sender

# After this time without progress a path gets no new data if another path may carry them.
PAUSED_S: Final = 0.100
# After this time without progress, data in flight there are sent over another path too.
SILENT_S: Final = 0.220
_PAUSED_FACTOR: Final = 2.0
_SILENT_FACTOR: Final = 3.0
# A path without data on its way has no queue of ours any more. A round trip that a queue made longer
# counts for at most this time when the next data leaves.
_FIRST_USUAL_S: Final = 0.3
# While the peer's data arrive over the path, its acknowledgements may wait behind them in the queue of
# its uplink. The path lives then, and both limits are longer by this time.
_BEHIND_S: Final = 0.5
# The weight of the longest time between two signs of progress at the next sign.
_REMEMBERED: Final = 0.9
# A pause lengthens `limit_s` by half at most: after one second of silence, the network's next death must
# not be noticed only after three.
_LEARNT: Final = 1.5 / _SILENT_FACTOR


class PathVoice(IntEnum):
    """The state of a path by the time that its data waits without progress.

    Any progress leads back to SPEAKS, as does the acknowledgement of all data.
    """

    SPEAKS = 0  # or no data waits
    PAUSES = 1  # no new data for the path, if another one may carry them
    CRAWLS = 2  # by `CrawlWatch`: its data in flight are sent over another path as well
    SILENT = 3  # by `PathWatch`: its data in flight are sent over another path as well


@dataclass(frozen=True, slots=True)
class PathProgress:
    """The kernel's report on a connection (TCP_INFO).

    `waits`: data is on its way. `delivered` counts what has arrived, in order or not; the last of it was
    acknowledged at `acknowledged_at_s`. `repeated`: the segments that the kernel has sent again.
    `received_at_s`: when the peer's data last arrived over the path.
    """

    waits: bool
    delivered: int
    acknowledged_at_s: float
    rtt_s: float | None
    rtt_min_s: float | None
    repeated: int
    received_at_s: float


class PathWatch:
    """The watch of one path."""

    __slots__ = (
        "_delivered", "_repeated", "_since_s", "_usual_s", "due_s", "limit_s", "silent_s", "voice",
    )  # fmt: skip

    def __init__(self) -> None:
        self.voice = PathVoice.SPEAKS
        self.silent_s = 0.0  # how long data has waited without any progress
        # A longer wait counts as silence: three times the usual time between two signs of progress,
        # which is a round trip at first and less where acknowledgements flow. While the peer's data
        # arrive, `_BEHIND_S` is added.
        self.limit_s = SILENT_S
        # In how long the path would count as silent if nothing came any more, the peer's data neither.
        self.due_s = SILENT_S
        self._delivered = 0
        self._since_s: float | None = None  # the last progress; None: nothing waited
        self._usual_s: float | None = None
        self._repeated = 0  # the repeated segments when the wait began

    def observe(self, seen: PathProgress, now: float) -> PathVoice:
        # Without data on its way the path owes no sign.
        if not seen.waits:
            self._since_s, self.silent_s, self.due_s = None, 0.0, self.limit_s
            self.voice = PathVoice.SPEAKS
            return self.voice
        # The wait begins now, or after the last sign of progress.
        if self._since_s is None:
            self._since_s, self._usual_s, self._repeated = now, None, seen.repeated
        elif seen.delivered != self._delivered:
            self._on_progress(max(self._since_s, seen.acknowledged_at_s), seen.repeated)
        self._delivered = seen.delivered
        # The usual time between two signs: a round trip, until shorter times were seen; never less than
        # the shortest round trip.
        usual_s = self._usual_s
        if usual_s is None:
            usual_s = min(seen.rtt_s or 0.0, _FIRST_USUAL_S)
        usual_s = max(usual_s, seen.rtt_min_s or 0.0)
        self.limit_s = max(SILENT_S, _SILENT_FACTOR * usual_s)
        self.silent_s = now - self._since_s
        arrives_s = PAUSED_S - (now - seen.received_at_s)  # the peer's data count for so long
        behind_s = _BEHIND_S if arrives_s > 0.0 else 0.0
        left_s = self.limit_s - self.silent_s
        self.due_s = max(left_s, min(arrives_s, left_s + behind_s))
        if self.silent_s >= self.limit_s + behind_s:
            self.voice = PathVoice.SILENT
        elif self.silent_s >= max(PAUSED_S, _PAUSED_FACTOR * usual_s) + behind_s:
            self.voice = PathVoice.PAUSES
        else:
            self.voice = PathVoice.SPEAKS
        return self.voice

    def _on_progress(self, at_s: float, repeated: int) -> None:
        assert self._since_s is not None
        gap_s, before_s = min(at_s - self._since_s, _LEARNT * self.limit_s), self._usual_s
        # A pause that ended with a retransmission was a loss, and says nothing about the usual time.
        if repeated == self._repeated:
            self._usual_s = gap_s if before_s is None else max(gap_s, _REMEMBERED * before_s)
        self._since_s, self._repeated = at_s, repeated


# The longest time over which a rate is measured.
_OVER_S: Final = 0.4
# The shortest one, because acknowledgements arrive in bursts.
_LEAST_OVER_S: Final = 0.25
# It has at least this many round trips, because the first acknowledgement takes one.
_OVER_ROUND_TRIPS: Final = 2.0
# A path whose data in flight arrive within this time is not slow.
_LEAST_S: Final = 0.5
# A path crawls only if its data in flight need this many times as long as over another path,
_TIMES_ELSEWHERE: Final = 3.0
# and if it is this many times slower than before, or was the only path when they were sent. The scheduler
# knows the rate of a path that was always slow.
_SLOWER: Final = 4.0
# But it may have guessed wrong for a path whose rate was not known yet. So any path crawls whose data in
# flight need this time at least, and this many times as long as over another path.
_ALWAYS_S: Final = 4.0
_ALWAYS_TIMES: Final = 8.0
# The half-life of the earlier rate.
_FORGETS_S: Final = 10.0


class CrawlWatch:
    """The watch of one path's rate while data is on its way there."""

    __slots__ = ("_alone", "_arrived", "_had_bps", "_had_s", "crawls")

    def __init__(self) -> None:
        # Whether the path crawls; it does so until the data on its way has nearly arrived.
        self.crawls = False
        # Whether no other path could have carried the data on its way, when that was last judged.
        self._alone = False
        self._arrived: deque[tuple[float, int]] = deque()
        self._had_bps = 0.0
        self._had_s = 0.0

    def observe(
        self,
        delivered_bytes: int,
        on_way_bytes: int,
        elsewhere_s: float,
        rtt_min_s: float,
        now: float,
    ) -> bool:
        """Look again; return whether the path crawls.

        `delivered_bytes`: all that arrived, in order or not. `on_way_bytes`: sent on the path and not
        acknowledged. `elsewhere_s`: in how many seconds another path could deliver that, infinite
        without one. `rtt_min_s`: the path's, 0 unknown.
        """
        if not on_way_bytes:
            # All data has arrived, so that nothing can be slow.
            self.rests()
            return False
        self._alone |= elsewhere_s == inf
        # Keep the samples of the last `_OVER_S`, or of two round trips if these take longer.
        seen = self._arrived
        seen.append((now, delivered_bytes))
        least_s = _OVER_ROUND_TRIPS * rtt_min_s
        while len(seen) > 2 and seen[1][0] <= now - max(_OVER_S, least_s):
            seen.popleft()
        over_s = now - seen[0][0]
        came_bytes = delivered_bytes - seen[0][1]
        if over_s < max(_LEAST_OVER_S, least_s) or not came_bytes:
            return self.crawls  # `PathWatch` notices if nothing arrives at all
        rate_bps = 8 * came_bytes / over_s
        # A path that was fast long ago may be slow now for a good reason: the earlier rate fades.
        had_bps = self._had_bps * 0.5 ** ((now - self._had_s) / _FORGETS_S)
        needs_s = 8 * on_way_bytes / rate_bps
        # It crawls until the rest arrives well in time (half of `_LEAST_S`), so that it does not flap.
        if self.crawls:
            self.crawls = needs_s > _LEAST_S / 2
            if not self.crawls:
                self._had_bps, self._had_s = rate_bps, now
            return self.crawls
        # It begins to crawl if another path would deliver its data in a fraction of the time. It does so
        # sooner if it is much slower than before, or if the other path has only just come.
        if self._alone or rate_bps * _SLOWER < had_bps:
            least_s, times = _LEAST_S, _TIMES_ELSEWHERE
        else:
            least_s, times = _ALWAYS_S, _ALWAYS_TIMES
        self._alone = elsewhere_s == inf
        self.crawls = needs_s > max(least_s, times * elsewhere_s)
        if rate_bps > had_bps:
            self._had_bps, self._had_s = rate_bps, now
        return self.crawls

    def rests(self) -> None:
        """Start a new measurement: no data is on its way, or none gets through."""
        self._arrived.clear()
        self.crawls = self._alone = False


# A path may fall silent this often and is used again at once: on the way through a door Wi-Fi is
# lost once.
FREE: Final = 2
# A path that answers within this time after its silence was noticed has not fallen; it only cost a few
# copies.
FALL_S: Final = 0.3
# This time without a fall cancels one fall.
FORGIVEN_S: Final = 10.0
# The first hold in seconds, and how often it doubles.
_FIRST_S: Final = 1.0
_DOUBLED: Final = 5
_MOST: Final = FREE + 1 + _DOUBLED
_MOST_NETWORKS: Final = 16


class FlappingNetworks:
    """The falls of each network: their number, and when the last one was.

    A fall adds one; each `FORGIVEN_S` without a fall takes one off. With more than `FREE` falls a
    network that comes back is held for 1 s, with each further one for twice as long, up to 32 s.
    """

    __slots__ = ("_falls",)

    def __init__(self) -> None:
        self._falls: dict[str, tuple[int, float]] = {}  # how often, and when last; the oldest first

    def on_fell(self, network: str, now: float) -> None:
        """Note that a network was silent for long, or that its path was lost."""
        count = min(self._count(network, now) + 1, _MOST)
        self._falls.pop(network, None)
        self._falls[network] = count, now
        if len(self._falls) > _MOST_NETWORKS:
            del self._falls[next(iter(self._falls))]

    def hold_s(self, network: str, now: float) -> float:
        """Return for how long a network that is back is left alone; 0: it is believed at once."""
        excess = self._count(network, now) - FREE
        return _FIRST_S * 2.0 ** (excess - 1) if excess > 0 else 0.0

    def _count(self, network: str, now: float) -> int:
        count, at_s = self._falls.get(network, (0, now))
        return max(count - int((now - at_s) / FORGIVEN_S), 0)


# The padding of a probe on a resting connection: with its record, ten segments (RFC 6928) of the
# least size that IPv6 allows. A network of 96 kbit/s carries it in a second, for which
# anticipatory scheduling holds background data back.
PAD_BYTES: Final = 12_000
# The part of the padding in the first segment, which arrives together with the short Ping. Only the rest
# is timed.
FIRST_SEGMENT_BYTES: Final = 1_448
# A path rests if it has carried nothing for this time. Shorter sessions need no estimate. The end that
# accepted the path waits twice as long: if both ends probed at once, Pongs would wait behind Pings.
REST_S: Final = 1.0
# The least time between two estimates.
OLD_S: Final = 30.0
# A path's second probe, and each one over a metered path, waits until the session has sent this many
# times the padding since the last one: probes are at most one byte in a hundred.
LEAST_BYTES_SHARE: Final = 100
# It also waits this many times as long as a probe takes: a path is probed for a thousandth of the time.
LEAST_TIME_SHARE: Final = 1_000
# Pongs closer together than this cannot be timed: both may have waited for this program.
LEAST_SPREAD_S: Final = 0.0005
# Tokens from this number on belong to probes.
FIRST_TOKEN: Final = 1 << 63


class PathProbe:
    """A probe on its way: a short Ping and a padded one; `over` once both were answered."""

    __slots__ = ("answered_s", "asked_s", "heard_bytes", "over", "sent_bytes", "token")

    def __init__(self, token: int, asked_s: float, sent_bytes: int, heard_bytes: int) -> None:
        self.token = token  # the short Ping's; the padded one has the next
        self.asked_s = asked_s
        self.sent_bytes = sent_bytes  # by the session over all its paths until then
        self.heard_bytes = heard_bytes  # over this path until then
        self.answered_s: float | None = None  # when the short Ping was answered
        self.over = False


class PathProber:
    """The prober of a session's paths; `events` get a `Probed` for each answered probe.

    Without `wanted` no path is probed.
    """

    def __init__(
        self,
        in_flight: InFlight,
        sender: Sender,
        control: Control,
        events: list[Event],
        *,
        wanted: bool,
    ) -> None:
        self._in_flight, self._sender, self._control = in_flight, sender, control
        self._events, self._wanted = events, wanted
        self.probes: dict[int, PathProbe] = {}  # the last one over each path, by its id
        self._token = FIRST_TOKEN

    def next_at(self) -> float | None:
        """Return when the next probe is due if nothing else happens; None: never."""
        if not self._wanted or self._in_flight.only is not None or not self._is_free():
            return None
        sent_bytes, first = self._sent_bytes(), None
        for path in self._in_flight.paths.values():  # no list: this is asked very often
            if path.state.in_flight_bytes:
                continue
            at = self._due(path, sent_bytes)
            if at is not None and (first is None or at < first):
                first = at
        return first

    def tick(self, now: float) -> None:
        at = self.next_at()
        if at is None or now < at:
            return
        sent_bytes = self._sent_bytes()
        for path in self._in_flight.paths.values():
            at = self._due(path, sent_bytes)
            if at is not None and at <= now:
                self.probes[path.state.path_id] = PathProbe(
                    self._token, now, sent_bytes, path.heard_bytes
                )
                path.control.append(packing.ping(self._token))
                path.control.append(packing.ping(self._token + 1, PAD_BYTES))
                self._token += 2

    def path_lost(self, path_id: int) -> None:
        self.probes.pop(path_id, None)

    def on_pong(self, path: PathFlight, pong: Pong, now: float) -> None:
        """Take a Pong; the second one of a probe gives the rate."""
        probe = self.probes.get(path.state.path_id)
        if probe is None or probe.over:
            return
        if pong.token == probe.token and probe.answered_s is None:
            probe.answered_s = now
        elif pong.token == probe.token + 1 and probe.answered_s is not None:
            probe.over = True
            # Other data of the peer came in between, and the Pongs may have waited behind it.
            if path.heard_bytes - probe.heard_bytes > FIRST_SEGMENT_BYTES:
                return
            bits, over_s = 8 * (PAD_BYTES - FIRST_SEGMENT_BYTES), now - probe.answered_s
            close = over_s < LEAST_SPREAD_S
            # Too close to be timed: the padding took at most the whole round trip, which bounds the rate.
            if close:
                over_s = now - probe.asked_s
            if over_s > 0:
                round_trip_s = probe.answered_s - probe.asked_s
                self._events.append(
                    Probed(path.state.path_id, bits / over_s, round_trip_s, at_least=close)
                )

    def _is_free(self) -> bool:
        # No foreground data waits, which a probe would delay.
        small, large, *_ = self._sender.send_queues
        return (
            not (small.waiting_bytes or large.waiting_bytes)
            and self._control.state is SessionState.OPEN
        )

    def _sent_bytes(self) -> int:
        count = 0
        for state in self._in_flight.states:
            count += state.sent_bytes
        return count

    def _due(self, path: PathFlight, sent_bytes: int) -> float | None:
        # Probes are a small share of the session's bytes. The first one of an unmetered path is free.
        state, facts = path.state, path.state.facts
        last = self.probes.get(state.path_id)
        few = sent_bytes - (last.sent_bytes if last else 0) < LEAST_BYTES_SHARE * PAD_BYTES
        if last and few:
            return None
        # Only a path at rest, with no frame before the Ping, and a peer that has spoken there.
        if state.peer is None or path.owes_statement or path.control or state.in_flight_bytes:
            return None
        # A metered path is probed only if all labels may use it, and not even once for few bytes.
        metered = facts.metered or state.peer.metered
        forbidden = state.allowed != ALL_RANKS if metered else not state.allowed
        if forbidden or (metered and few) or facts.stalled_at_s is not None:
            return None
        # It is due once the path has rested, foreground data over its network is no longer expected, and
        # the estimate is old.
        at = max(state.up_at_s, state.last_sent_at_s, path.heard_at_s)
        at += REST_S if path.dialled else 2 * REST_S
        at = max(at, facts.foreground_at_s + RECENT_S)
        takes_s = 8 * PAD_BYTES / facts.rate_bps if facts.rate_bps else 0.0
        pause_s = max(OLD_S, LEAST_TIME_SHARE * takes_s)
        if facts.rate_at_s is not None:
            at = max(at, facts.rate_at_s + pause_s)
        return at if last is None else max(at, last.asked_s + pause_s)
