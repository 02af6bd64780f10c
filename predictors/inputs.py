"""From the columns of a transfer data set to what the trees look at.

Trees split one input at a time, so what matters as a ratio is given as the logarithm of that ratio:
how this second compares with the last five, Wi-Fi with cellular, both together with one alone. Rates,
times and sizes are given as logarithms too, which moves split points to geometric middles.
"""

from collections.abc import Mapping
from math import exp, isnan, log, log1p, nan

from predictors.naive import SILENT_RTT_S, joined_time_s, naive_time_s

NETWORKS = ("wifi", "cellular")
STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
"""Names of completion times in data sets and models: TCP on each network, MPTCP by its primary."""

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
AGE_COLUMNS = tuple(f"{network}_{name}" for network in NETWORKS for name in _OF_AGE)
"""How old the past rates are (absent: 0), and the last finished small transfer of each network: its
bytes, how long it took, and how long ago that was. Age is an input, learned on what is known late."""

LARGEST_AGE_S = 120.0
"""What is older says no less: beyond it places alone differ."""

LARGEST_BYTES = 1e7
"""No larger transfer was measured: more takes as much longer than this as the naive time says
(docs/decisions/completion-trees.md)."""

_RARE = ("wifi_ap_count", "cellular_dbm")

CONTEXT_COLUMNS = (
    *(f"{network}_{name}" for network in NETWORKS for name in _OF_EACH),
    *_RADIO,
    *AGE_COLUMNS,
    *_RARE,
)
"""Every indicator that a data set may hold and a model may look at."""

COLUMNS = ("size_bytes", "direction_up", *CONTEXT_COLUMNS)
"""What a prediction may be told; all but the size may be missing."""

_AS_THEY_ARE = ("ping_loss", "available", "dns_s", "udp_loss")
_DERIVED = (
    "log_rtt", "log_rtt_over_min", "log_past1", "log_past5", "log_past10", "log_udp",
    "log_past1_over_past5", "log_past5_over_past10", "log_naive", "log_naive5_over_naive",
)  # fmt: skip
_AGED = ("log_rate_age", "log_recent_over_naive")
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
"""Names of the values of `inputs_of`, in order."""

ALWAYS = INPUTS.index(f"{NETWORKS[0]}_{_AGED[0]}")
"""So many first inputs every model looks at; the others, last to first, where its data have them."""

_NAMES = {
    network: tuple(f"{network}_{name}" for name in (*_OF_EACH[:2], *_RATES, *_AS_THEY_ARE))
    for network in NETWORKS
}
_AGES = {network: tuple(f"{network}_{name}" for name in _OF_AGE) for network in NETWORKS}
_RECENT_FADES_S = 4.0
"""What a small transfer took says less with time: so fast do rates of either kind of network wander."""

_LEAST_BPS = 1e3
_LEAST_S = 1e-5


def inputs_of(
    columns: Mapping[str, float], typical: Mapping[str, float]
) -> tuple[list[float], dict[str, float]]:
    """All inputs of the trees, and the naive completion time of every strategy.

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
        rate_bps = _first(past1, past5, past10, udp, typical[f"{network}_past1_bps"])
        silent_s = SILENT_RTT_S if loss >= 1.0 else typical[f"{network}_rtt_s"]
        path_s = max(_first(rtt_s, rtt_min_s, silent_s), _LEAST_S)
        naive_s = naive_time_s(size_bytes, path_s, rate_bps)
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
        age_s, recent_bytes, recent_s, recent_age_s = [get(name, nan) for name in _AGES[network]]
        over = 0.0
        if recent_s > 0.0 and recent_bytes > 0.0 and not isnan(recent_age_s):
            naive_s = naive_time_s(recent_bytes, path_s, rate_bps)
            fresh = exp(-max(recent_age_s, 0.0) / _RECENT_FADES_S)
            over = fresh * (_log(recent_s, _LEAST_S) - log(naive_s))
        values += [log1p(min(age_s, LARGEST_AGE_S)) if age_s > 0.0 else 0.0, over]
    values += [get(name, nan) for name in _RARE]
    if whole_bytes > size_bytes:
        wifi_s, cellular_s = [naive_time_s(whole_bytes, *path[1:]) for path in paths]
    return values, dict(zip(STRATEGIES, (wifi_s, cellular_s, wifi_s, cellular_s), strict=True))


def _log(value: float, least: float) -> float:
    """The logarithm of a positive quantity with a floor; NaN stays NaN."""
    return log(least) if value < least else log(value)


def _first(*values: float) -> float:
    for value in values:
        if not isnan(value):
            return value
    return nan
