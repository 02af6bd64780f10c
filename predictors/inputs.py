"""The inputs of the regressors, the naive completion time, and naive rules as predictors.

**Naive time.** The textbook's time: handshake, request, slow start, then the recent rate. The regressors
learn the logarithm of real over naive time. On a network that stays as it is, it is near 0 at any place,
so that what they learn holds at unknown places, too.

**Inputs.** Trees split one input at a time, so a ratio that matters is given as its logarithm: this
second over the last five, Wi-Fi over cellular, both together over one alone. Rates, times and sizes
are logarithms, too, which moves split points to geometric middles.

**Rules.** The naive time at a rate guessed from the past, without learning: the rate of the last
second, the last round trip alone, and the exponentially weighted and harmonic averages of video
players. A data set has mean rates over windows of 1, 5 and 10 s; from them follow the rates of the
newest second, the four before it and the five before those. The averages run over these, weighted
by their seconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan, log, log1p, nan
from typing import Any

# Ten segments of 1448 bytes (RFC 6928).
FIRST_WINDOW_BYTES = 14_480
# The least rate of a network. One that carried nothing lately may carry again.
SLOWEST_BPS = 8e3
# The round trip of a network that answered nothing: the kernel repeats a first packet after a
# second.
SILENT_RTT_S = 1.0
# Data that arrived within a shorter time had waited together somewhere, so the time tells no rate.
_LEAST_SPAN_S = 0.02


def naive_time_s(size_bytes: float, rtt_s: float, rate_bps: float) -> float:
    """Return the completion time of a single-path TCP transfer on a network that stays as it is.

    Two round trips pass before the first byte arrives (or is acknowledged); the window doubles every
    round trip from ten segments until it fills the path or all is sent; the rest goes at the rate.

    `rate_bps`: what the network carries, bit/s; less than `SLOWEST_BPS` counts as that.

    Returns:
        Seconds from `connect()` to the last byte.
    """
    rate_bps = max(rate_bps, SLOWEST_BPS)
    # The handshake and the request.
    time_s = 2.0 * rtt_s
    left_bytes = size_bytes
    window_bytes = FIRST_WINDOW_BYTES
    path_bytes = rate_bps * rtt_s / 8.0
    # Slow start: one window per round trip, until the window fills the path.
    while window_bytes < left_bytes and window_bytes < path_bytes:
        time_s += rtt_s
        left_bytes -= window_bytes
        window_bytes *= 2
    return time_s + 8.0 * left_bytes / rate_bps


def after_slow_start(size_bytes: float, rtt_s: float, time_s: float) -> tuple[float, float] | None:
    """Return the bytes of a transfer after its slow start, and their time.

    This inverts `naive_time_s`. Bytes over seconds are a lower bound of the network's rate: the real
    rate is higher if the server took time to answer, or a secure connection was made first.

    Returns:
        Bytes and seconds; at least a round trip, in which any last window comes. None: the
        transfer was too short (it began with a larger window, or earlier than is known).
    """
    # Undo slow start window by window, until the next one would fill the path at the rate of the rest.
    left_s, left_bytes = time_s - 2.0 * rtt_s, size_bytes
    window_bytes = FIRST_WINDOW_BYTES
    while True:
        span_s = max(left_s, rtt_s, _LEAST_SPAN_S)
        if window_bytes >= left_bytes or window_bytes >= left_bytes / span_s * rtt_s:
            return (left_bytes, span_s) if left_s > 0.0 else None
        left_s -= rtt_s
        left_bytes -= window_bytes
        window_bytes *= 2


def joined_time_s(
    alone_s: float, rtt_s: float, rate_bps: float, other_rtt_s: float, other_rate_bps: float
) -> float:
    """Return the completion time of an MPTCP transfer whose two networks stay as they are.

    The second subflow joins after the first one's handshake and its own two round trips; from then
    on the rates add up.

    `alone_s`: what the transfer takes on the primary alone, seconds.
    `rate_bps`: what the primary carries, bit/s; less than `SLOWEST_BPS` counts as that.
    `other_rtt_s`: the other network's round trip.
    `other_rate_bps`: what that carries, likewise.
    """
    # Up to the join the primary carries alone; afterwards its share of the joint rate remains.
    join_s = rtt_s + 2.0 * other_rtt_s
    if alone_s <= join_s:
        return alone_s
    rate_bps = max(rate_bps, SLOWEST_BPS)
    both_bps = rate_bps + max(other_rate_bps, SLOWEST_BPS)
    return join_s + (alone_s - join_s) * rate_bps / both_bps


NETWORKS = ("wifi", "cellular")
# Names of completion times in data sets and models: TCP on each network, MPTCP by its primary.
STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")

_RATES = ("past1_bps", "past5_bps", "past10_bps", "udp_bps")
_OF_EACH = (
    "rtt_s",
    "rtt_min_s",
    "ping_loss",
    *_RATES[:3],
    "available",
    "dns_s",
    "udp_bps",
    "udp_loss",
)
_RADIO = (
    "wifi_rssi_dbm", "wifi_link_bps", "wifi_chan_util",
    "cellular_rsrp_dbm", "cellular_rsrq_db", "cellular_sinr_db", "cellular_cqi", "speed_mps",
)  # fmt: skip
_OF_AGE = ("rate_age_s", "recent_bytes", "recent_s", "recent_age_s")
# The ages of the past rates (absent: 0), and the last finished small transfer of each network.
#
# Of the transfer: its bytes, its time and its age. Age is an input, learned on what is known late.
AGE_COLUMNS = tuple(f"{network}_{name}" for network in NETWORKS for name in _OF_AGE)

# The largest age as an input: beyond it only places differ.
LARGEST_AGE_S = 120.0

# The largest measured transfer. A larger one takes as much longer as the naive time says
# (docs/decisions/completion-trees.md).
LARGEST_BYTES = 1e7

_RARE = ("wifi_ap_count", "cellular_dbm")

# The indicators that a data set may contain and a model may use.
CONTEXT_COLUMNS = (
    *(f"{network}_{name}" for network in NETWORKS for name in _OF_EACH),
    *_RADIO,
    *AGE_COLUMNS,
    *_RARE,
)

# The columns that a prediction uses. All but the size may be missing.
COLUMNS = ("size_bytes", "direction_up", *CONTEXT_COLUMNS)

_AS_THEY_ARE = ("ping_loss", "available", "dns_s", "udp_loss")
_DERIVED = (
    "log_rtt", "log_rtt_over_min", "log_past1", "log_past5", "log_past10", "log_udp",
    "log_past1_over_past5", "log_past5_over_past10", "log_naive", "log_naive5_over_naive",
)  # fmt: skip
_AGED = ("log_rate_age", "log_recent_over_naive")
# The names of the values of `inputs_of`, in order.
INPUTS = (
    "log_size",
    "direction_up",
    *(f"{network}_{name}" for network in NETWORKS for name in (*_DERIVED, *_AS_THEY_ARE)),
    "log_wifi_over_cellular_naive",
    "log_wifi_over_cellular_rtt",
    "log_wifi_over_cellular_past1",
    "log_mptcp_wifi_over_wifi",
    "log_mptcp_cellular_over_cellular",
    "log_mptcp_wifi_over_mptcp_cellular",
    "log_mptcp_wifi_over_single",
    *_RADIO,
    *(f"{network}_{name}" for network in NETWORKS for name in _AGED),
    *_RARE,
)

# The number of first inputs that every model uses. The others are used, last to first, if the data
# have them.
ALWAYS = INPUTS.index(f"{NETWORKS[0]}_{_AGED[0]}")

_NAMES = {
    network: tuple(f"{network}_{name}" for name in (*_OF_EACH[:2], *_RATES, *_AS_THEY_ARE))
    for network in NETWORKS
}
_AGES = {network: tuple(f"{network}_{name}" for name in _OF_AGE) for network in NETWORKS}
# The time in which the evidence of a small transfer fades, because rates change that fast.
_RECENT_FADES_S = 4.0

_LEAST_BPS = 1e3
_LEAST_S = 1e-5


def inputs_of(
    columns: Mapping[str, float], typical: Mapping[str, float]
) -> tuple[list[float], dict[str, float]]:
    """Return all inputs of the regressors, and the naive completion time of every strategy.

    Args:
        columns: some of `COLUMNS`, `size_bytes` among them, in their units; absent or NaN: unknown.
        typical: `{network}_rtt_s` and `{network}_past1_bps` that stand in for unknown ones in the
            naive time. The inputs themselves stay NaN where nothing is known.

    Returns:
        The values of `INPUTS`, those of `LARGEST_BYTES` for what is larger, and seconds by strategy.
        MPTCP begins as its primary alone would.

    Raises:
        KeyError: without a size.
    """
    # The trees saw no larger size: they get the largest one, and the naive time scales the rest.
    whole_bytes = max(columns["size_bytes"], 1.0)
    size_bytes = min(whole_bytes, LARGEST_BYTES)
    get = columns.get
    values = [log(size_bytes), get("direction_up", nan)]
    naives, rtts, rates, paths = [], [], [], []
    for network in NETWORKS:
        rtt_s, rtt_min_s, past1, past5, past10, udp, loss, available, dns_s, udp_loss = [
            get(name, nan) for name in _NAMES[network]
        ]
        log_rtt, log_rtt_min = _log(rtt_s, _LEAST_S), _log(rtt_min_s, _LEAST_S)
        log_past1, log_past5, log_past10 = (
            _log(past1, _LEAST_BPS), _log(past5, _LEAST_BPS), _log(past10, _LEAST_BPS),
        )  # fmt: skip
        # The newest known rate; a typical one if nothing is known.
        rate_bps = _first_known(past1, past5, past10, udp, typical[f"{network}_past1_bps"])
        # A network whose pings were all lost gets the kernel's first time-out as its round trip.
        silent_s = SILENT_RTT_S if loss >= 1.0 else typical[f"{network}_rtt_s"]
        path_s = max(_first_known(rtt_s, rtt_min_s, silent_s), _LEAST_S)
        naive_s = naive_time_s(size_bytes, path_s, rate_bps)
        # The naive time at the rate of the last 5 s: beside the one of the last second it tells a trend.
        longer_s = nan if isnan(past5) else naive_time_s(size_bytes, path_s, past5)
        log_naive = log(naive_s)
        naives.append(naive_s)
        rtts.append(log_rtt)
        rates.append(log_past1)
        paths.append((naive_s, path_s, rate_bps))
        values += [
            log_rtt, log_rtt - log_rtt_min, log_past1, log_past5, log_past10, _log(udp, _LEAST_BPS),
            log_past1 - log_past5, log_past5 - log_past10, log_naive, log(longer_s) - log_naive,
            loss, available, dns_s, udp_loss,
        ]  # fmt: skip
    # Ratios between the networks and between the strategies, as logarithms.
    wifi_s, cellular_s = naives
    wifi, cellular = paths
    both_wifi_s = joined_time_s(*wifi, *cellular[1:])
    both_cellular_s = joined_time_s(*cellular, *wifi[1:])
    values += [
        log(wifi_s / cellular_s), rtts[0] - rtts[1], rates[0] - rates[1],
        log(both_wifi_s / wifi_s), log(both_cellular_s / cellular_s),
        log(both_wifi_s / both_cellular_s), log(both_wifi_s / min(naives)),
    ]  # fmt: skip
    values += [get(name, nan) for name in _RADIO]
    for network, (_, path_s, rate_bps) in zip(NETWORKS, paths, strict=True):
        # The age of the rates, and how far the last small transfer was off its naive time.
        age_s, recent_bytes, recent_s, recent_age_s = [get(name, nan) for name in _AGES[network]]
        over = 0.0
        if recent_s > 0.0 and recent_bytes > 0.0 and not isnan(recent_age_s):
            naive_s = naive_time_s(recent_bytes, path_s, rate_bps)
            fresh = exp(-max(recent_age_s, 0.0) / _RECENT_FADES_S)
            over = fresh * (_log(recent_s, _LEAST_S) - log(naive_s))
        values += [log1p(min(age_s, LARGEST_AGE_S)) if age_s > 0.0 else 0.0, over]
    values += [get(name, nan) for name in _RARE]
    # A size beyond the largest one: the naive times are those of the whole.
    if whole_bytes > size_bytes:
        wifi_s, cellular_s = [naive_time_s(whole_bytes, *path[1:]) for path in paths]
    return values, dict(zip(STRATEGIES, (wifi_s, cellular_s, wifi_s, cellular_s), strict=True))


def _log(value: float, least: float) -> float:
    """Return the logarithm of a positive quantity with a floor; NaN stays NaN."""
    return log(least) if value < least else log(value)


def _first_known(*values: float) -> float:
    for value in values:
        if not isnan(value):
            return value
    return nan


# The weight of one second's rate relative to all before it.
EWMA_PER_S = 0.4

_LARGEST = 25.0
# The windows before the start: how many further seconds each adds.
_SECONDS = (1, 4, 5)
_AT = {
    network: tuple(
        INPUTS.index(f"{network}_{name}")
        for name in ("log_rtt", "log_past1", "log_past5", "log_past10", "log_naive")
    )
    for network in ("wifi", "cellular")
}


def ewma_bps(rates_bps: Sequence[float]) -> float:
    """Return the exponentially weighted mean of the windows' rates, newest first, without NaN ones."""
    keep = 1.0 - EWMA_PER_S
    total = weights = 0.0
    before = 1.0
    # `before` and `after` are the weights that are left at the window's two ends.
    for rate_bps, seconds in zip(rates_bps, _SECONDS, strict=True):
        after = before * keep**seconds
        if not isnan(rate_bps):
            total += (before - after) * rate_bps
            weights += before - after
        before = after
    return total / weights if weights else float("nan")


def harmonic_bps(rates_bps: Sequence[float]) -> float:
    """Return the harmonic mean over the seconds of the windows' rates; a dead second pulls it down."""
    total = seconds_known = 0.0
    for rate_bps, seconds in zip(rates_bps, _SECONDS, strict=True):
        if not isnan(rate_bps):
            total += seconds / max(rate_bps, SLOWEST_BPS)
            seconds_known += seconds
    return seconds_known / total if total else float("nan")


def _last_bps(rates_bps: Sequence[float]) -> float:
    return rates_bps[0]


def _no_limit_bps(rates_bps: Sequence[float]) -> float:
    """Return an unlimited rate, so that only the last round trip counts."""
    return 1e9


RULES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "last-rate": _last_bps,
    "ewma": ewma_bps,
    "harmonic": harmonic_bps,
    "last-rtt": _no_limit_bps,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A naive rule for some strategies; MPTCP is taken for its primary alone."""

    name: str  # one of `RULES`
    strategies: tuple[str, ...]  # whose times it gives, in order

    def walk(self, both: Sequence[float]) -> list[float]:
        """Return the logarithm of the rule's time over the naive one; 0 without a known rate."""
        by_network = {
            network: self._offset(both[0], [both[2 * k] for k in at]) for network, at in _AT.items()
        }
        return [by_network[name.removeprefix("mptcp_")] for name in self.strategies]

    def _offset(self, log_size: float, known: Sequence[float]) -> float:
        # The means overlap: that over 5 s contains the newest second, that over 10 s contains the one
        # over 5 s.
        log_rtt, log_past1, log_past5, log_past10, log_naive = known
        past1, past5, past10 = exp(log_past1), exp(log_past5), exp(log_past10)
        # From means over 1, 5 and 10 s to the rates of the three windows themselves.
        own = (past1, max(5.0 * past5 - past1, 0.0) / 4.0, max(2.0 * past10 - past5, 0.0))
        rate_bps = RULES[self.name](own)
        if isnan(log_rtt) or isnan(rate_bps) or isnan(log_naive):
            return 0.0
        off = log(naive_time_s(exp(log_size), exp(log_rtt), rate_bps)) - log_naive
        return min(max(off, -_LARGEST), _LARGEST)

    def to_dict(self) -> dict[str, Any]:
        return {"rule": self.name, "of": list(self.strategies)}

    @classmethod
    def rebuild(cls, data: Mapping[str, Any], inputs: Sequence[str], outputs: int) -> "Rule":
        """Rebuild a rule; ValueError if it is none for that many strategies."""
        try:
            rule, strategies = str(data["rule"]), tuple(str(name) for name in data["of"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a rule: {error!r}") from error
        if (
            rule not in RULES
            or len(strategies) != outputs
            or not set(strategies) <= set(STRATEGIES)
        ):
            raise ValueError(f"not a rule known here: {rule}")
        return cls(rule, strategies)
