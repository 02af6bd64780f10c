"""Keep the indicators of all networks, each with its age. Pure: `now` is an argument."""

import math
import statistics
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from cedos.controller.events import Witness
from cedos.controller.networks.liveness import Liveness
from cedos.controller.networks.rates import QUEUE_EMPTY, RateEstimator, RateSample
from cedos.model import Attachment, Context, Direction, Indicator, NetworkVerdict

WINDOW_S = 10.0
# The fewest segments of a loss rate: one lost of three does not mean a third.
MIN_SEGMENTS = 20


class Losses:
    """The loss rate over the last seconds in which flows were sending.

    It is the sender's view (`tcp_info`): segments sent again, of all data segments sent. What is lost
    on the way to this host only its peers know, so a host that only downloads has none, and its
    `ping_loss` stands in. A value stays, getting older, until there is a newer one.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self._known: Indicator | None = None

    def observe(self, sent: int, lost: int, at_s: float) -> None:
        """Take how many segments were sent, and how many of them again, since the last call."""
        if sent <= 0 or lost < 0:
            return
        self._seen.append((at_s, sent, min(lost, sent)))
        while self._seen[0][0] <= at_s - WINDOW_S:
            self._seen.popleft()
        total = sum(sent for _, sent, _ in self._seen)
        if total >= MIN_SEGMENTS:
            self._known = Indicator(sum(lost for _, _, lost in self._seen) / total, at_s)

    def on_sleep(self, seconds: float) -> None:
        self._seen.clear()
        if self._known is not None:
            measured_at_s = self._known.measured_at_s - seconds
            self._known = replace(self._known, measured_at_s=measured_at_s)

    def indicators(self) -> dict[str, Indicator]:
        return {} if self._known is None else {"loss": self._known}


_MOMENT_S = 0.01
# A small download that takes this long, and this many times as long as the last one, counts before
# it ends.
_LATE_S, _LATE = 0.4, 2.0
# A ping this long before a stretch counts too. Pings are half a second apart, and a stretch is
# shorter.
_ABOUT_S = 0.4
# A packet behind one segment in transmission waits for half of it on average.
_HALF_SEGMENT_BITS = 6_000
_MOST_RTTS = 256


class _Rtts:
    """The last round trips of a network, in the order of their instants.

    Attributes:
        at_s, rtt_s: when each ended, and how long it took.
        active: whether the newest one is a ping's.
    """

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.rtt_s: list[float] = []
        self.active = False

    def add(self, at_s: float, rtt_s: float, window_s: float, *, active: bool) -> None:
        """Add a round trip; those that are older by `window_s`, or too many, go."""
        index = bisect_right(self.at_s, at_s)
        self.at_s.insert(index, at_s)
        self.rtt_s.insert(index, rtt_s)
        if at_s == self.at_s[-1]:
            self.active = active
        # The newest stays, however old: better an old value with its age than none.
        old = max(bisect_left(self.at_s, self.at_s[-1] - window_s), len(self.at_s) - _MOST_RTTS)
        del self.at_s[:old], self.rtt_s[:old]

    def round_trips_since(self, since_s: float) -> list[float]:
        """Return the round trips since an instant, or else the newest one."""
        return self.rtt_s[bisect_left(self.at_s, since_s) :] or self.rtt_s[-1:]


class _NetworkState:
    def __init__(self, pings: int) -> None:
        self.given: dict[str, Indicator] = {}
        self.rtts = _Rtts()
        self.liveness = Liveness(pings)
        self.rates = {direction: RateEstimator(direction) for direction in Direction}
        self.losses = Losses()
        self.up: tuple[float, bool] | None = None
        self.attachment: Attachment | None = None


class ContextKeeper:
    """Keeps the indicators that providers give and derives the others from what is observed.

    Derived: `rtt_s` (median over `rtt_window_s`, or else the newest), `rtt_min_s` (over
    `rtt_min_window_s`), `ping_loss` (of the last `pings`), those of `rates` and `losses`, `available`
    (up, and neither dead nor captive), `captive`, `silence_s`. A provider's indicator is preferred to
    a derived one unless it is older by more than `grace_s`: a provider speaks once a second, of the
    second before, and knows more.
    """

    def __init__(
        self,
        *,
        rtt_window_s: float = 2.0,
        rtt_min_window_s: float = 10.0,
        pings: int = 5,
        grace_s: float = 2.5,
    ) -> None:
        self._rtt_window_s = rtt_window_s
        self._rtt_min_window_s = rtt_min_window_s
        self._pings = pings
        self._grace_s = grace_s
        self._networks: dict[str, _NetworkState] = {}
        self._last: Context | None = None

    def _network(self, name: str) -> _NetworkState:
        self._last = None
        if name not in self._networks:
            self._networks[name] = _NetworkState(self._pings)
        return self._networks[name]

    def update(self, network: str, indicators: Mapping[str, Indicator]) -> None:
        """Take a provider's indicators; a value that is not finite, or older than the known, is not."""
        state = self._network(network)
        for name, indicator in indicators.items():
            known = state.given.get(name)
            if not math.isfinite(indicator.value) or (
                known is not None and indicator.measured_at_s < known.measured_at_s
            ):
                continue
            state.given[name] = indicator
            if name == "available" and indicator.value <= 0.0:
                state.liveness.on_missed(Witness.RADIO, indicator.measured_at_s)
            elif name == "available":
                state.liveness.useless(Witness.RADIO)

    def observe_up(self, network: str, up: bool, at_s: float) -> None:
        known = self._network(network)
        if not up and (known.up is None or known.up[1]):
            # What the old attachment answered says nothing of the next one.
            known.liveness.forget()
        known.up = (at_s, up)

    def observe_ping(
        self, network: str, rtt_s: float | None, at_s: float, asked_s: float | None = None
    ) -> None:
        """Take a ping's round-trip time, None where no answer came in time; `asked_s`: when it left."""
        if rtt_s is None:
            self._network(network).liveness.on_missed(Witness.PING, at_s, asked_s)
        else:
            self._network(network).liveness.on_heard(Witness.PING, at_s)
            self._observe_rtt(network, rtt_s, at_s, active=True)

    def liveness(self, network: str) -> Liveness:
        """Return the state of a network, to be told what was heard, and what was not.

        Readers ask `verdict` and `drops_pings`, which change nothing between two events.
        """
        return self._network(network).liveness

    def verdict(self, network: str, now_s: float) -> NetworkVerdict:
        """Return the state of a network, with its reason."""
        known = self._networks.get(network) or _NetworkState(self._pings)
        return known.liveness.verdict(now_s)

    def drops_pings(self, network: str) -> bool:
        """Return whether a network never answers pings, though it carries other traffic."""
        known = self._networks.get(network)
        return known is not None and known.liveness.drops_pings

    def observe_rtt(self, network: str, rtt_s: float, at_s: float) -> None:
        self._observe_rtt(network, rtt_s, at_s, active=False)

    def _observe_rtt(self, network: str, rtt_s: float, at_s: float, *, active: bool) -> None:
        if not (math.isfinite(rtt_s) and rtt_s > 0):
            return
        # Also those that an outage held back (docs/decisions/passive-rates.md).
        rtts = self._network(network).rtts
        rtts.add(at_s, rtt_s, self._rtt_min_window_s, active=active)

    def observe_bytes(
        self, network: str, received_bytes: int, sent_bytes: int, at_s: float
    ) -> None:
        rates = self._network(network).rates
        rates[Direction.DOWN].on_counter(received_bytes, at_s)
        rates[Direction.UP].on_counter(sent_bytes, at_s)

    def skip_next_counts(self, network: str) -> None:
        """Leave the next counts out: they contain what came from before the network's router."""
        for rates in self._network(network).rates.values():
            rates.begin_anew()

    def observe_delivery(self, network: str, stretches: Mapping[Direction, RateSample]) -> None:
        known = self._network(network)
        for direction, stretch in stretches.items():
            empty = stretch.queue_empty or _queue_empty(known, stretch)
            known.rates[direction].observe(replace(stretch, queue_empty=empty))

    def observe_transfer(
        self, network: str, carried_bytes: int, time_s: float, at_s: float
    ) -> None:
        """Take the last small download: what it took says how a network is."""
        self._network(network).given.update(
            recent_bytes=Indicator(carried_bytes, at_s), recent_s=Indicator(time_s, at_s)
        )

    def observe_wait(self, network: str, size_bytes: int, waited_s: float, at_s: float) -> None:
        """Take a small download that is not over yet: news where it is late beside the last one."""
        last = self._network(network).given.get("recent_s")
        if waited_s >= max(_LATE_S, _LATE * last.value if last is not None else 0.0):
            self.observe_transfer(network, size_bytes, waited_s, at_s)

    def observe_losses(self, network: str, sent: int, lost: int, at_s: float) -> None:
        self._network(network).losses.observe(sent, lost, at_s)

    def access_point(self, network: str) -> str | None:
        """Return the access point that the network was last seen at; None: none was."""
        known = self._networks.get(network)
        return known.attachment.point if known is not None and known.attachment else None

    def observe_attachment(self, network: str, point: str, name: str, at_s: float) -> bool:
        """Take the access point that the network is attached to; return whether it is another one."""
        known = self._network(network)
        before = known.attachment
        if before is not None and before.point == point:
            return False
        known.attachment = Attachment(point, name, at_s)
        if before is None:
            return False
        # The old one's silence is not held against the new one.
        known.liveness.forget()
        return True

    def on_sleep(self, seconds: float) -> None:
        """Make all that is known older by a sleep, which the monotonic clock did not count."""
        self._last = None
        for known in self._networks.values():
            known.given = {
                name: replace(given, measured_at_s=given.measured_at_s - seconds)
                for name, given in known.given.items()
            }
            known.rtts.at_s = [at_s - seconds for at_s in known.rtts.at_s]
            known.liveness.on_sleep(seconds)
            for rates in known.rates.values():
                rates.on_sleep(seconds)
            known.losses.on_sleep(seconds)
            if known.up is not None:
                known.up = (known.up[0] - seconds, known.up[1])

    def forget(self, network: str) -> None:
        self._last = None
        self._networks.pop(network, None)

    def snapshot(self, now_s: float) -> Context:
        """Return what is known of each network, however old.

        While nothing is new, one context is good for a moment. Only events may ask for it: what a reader
        asks between two events is in no log, and would be what the next event uses.
        """
        last = self._last
        if last is None or not 0.0 <= now_s - last.at_s < _MOMENT_S:
            last = self._last = self.fresh(now_s)
        return last

    def fresh(self, now_s: float) -> Context:
        """Return what is known of each network; nothing is kept."""
        verdicts = self.verdicts(now_s)
        return Context(
            at_s=now_s,
            networks={
                name: self._merge(known, verdicts[name], now_s)
                for name, known in self._networks.items()
            },
            attachments={
                name: known.attachment
                for name, known in self._networks.items()
                if known.attachment is not None
            },
            verdicts=verdicts,
        )

    def round_trips(self, now_s: float) -> dict[str, dict[str, Indicator]]:
        """Return the `rtt_s` and the `rtt_min_s` of each network, as far as they are known."""
        return {
            name: self._prefer(self._round_trips(known, now_s), known)
            for name, known in self._networks.items()
        }

    def verdicts(self, now_s: float) -> dict[str, NetworkVerdict]:
        """Return the state of each network."""
        return {name: known.liveness.verdict(now_s) for name, known in self._networks.items()}

    def _merge(
        self, known: _NetworkState, verdict: NetworkVerdict, now_s: float
    ) -> dict[str, Indicator]:
        return self._prefer(self._derive(known, verdict, now_s), known)

    def _prefer(self, derived: dict[str, Indicator], known: _NetworkState) -> dict[str, Indicator]:
        """Return derived indicators and a provider's, which are preferred unless they are old."""
        for name, indicator in known.given.items():
            own = derived.get(name)
            if own is None or indicator.measured_at_s >= own.measured_at_s - self._grace_s:
                derived[name] = indicator
        return derived

    def _derive(
        self, known: _NetworkState, verdict: NetworkVerdict, now_s: float
    ) -> dict[str, Indicator]:
        derived = known.losses.indicators()
        for rates in known.rates.values():
            derived |= rates.indicators()
        derived |= self._round_trips(known, now_s)
        derived |= known.liveness.indicators(verdict, now_s)
        if known.up is not None:
            at_s, up = known.up
            if up and (loss := derived.get("ping_loss")) is not None:
                at_s = max(at_s, loss.measured_at_s)
            derived["available"] = Indicator(float(up and not verdict.condemned), at_s)
        return derived

    def _round_trips(self, known: _NetworkState, now_s: float) -> dict[str, Indicator]:
        rtts = known.rtts
        if not rtts.at_s:
            return {}
        at_s = rtts.at_s[-1]
        late = statistics.median(rtts.round_trips_since(now_s - self._rtt_window_s))
        least = min(rtts.round_trips_since(now_s - self._rtt_min_window_s))
        return {
            "rtt_s": Indicator(late, at_s, rtts.active),
            "rtt_min_s": Indicator(least, at_s, rtts.active),
        }


def _queue_empty(known: _NetworkState, stretch: RateSample) -> bool:
    """Return whether a round trip ended about then, and none that did was longer than without a queue.

    A network that does no more than the stretch's rate makes others wait for what a segment takes at it:
    whose round trips are longer by less than that has none, however unsteady they are.
    """
    rtts = known.rtts
    from_s = stretch.begin_s - _ABOUT_S
    then = rtts.rtt_s[bisect_left(rtts.at_s, from_s) : bisect_right(rtts.at_s, stretch.end_s)]
    if not then or stretch.end_s <= stretch.begin_s or not stretch.carried_bytes:
        return False
    least_s = min(rtts.rtt_s)
    return max(then) <= max(QUEUE_EMPTY * least_s, least_s + _HALF_SEGMENT_BITS / stretch.rate_bps)
