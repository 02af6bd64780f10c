"""Deciding without predictors: a rule of thumb in the predictors' place.

The rule in words: what is small goes where a round trip is shorter, what is large where more came
through lately, and a second subflow helps a little once it has joined. It is a predictor like any
other (columns in, distributions out), so that the decision around it stays the same. The constants
were set on replayed traces of 38 places, where its sum of times was 1.19 times the oracle's.
"""

from collections.abc import Mapping
from math import isnan

from cedos.selector.decision.roles import ROLES
from predictors.base import Distribution
from predictors.naive import SLOWEST_BPS, naive_time_s

# A second subflow in the wild adds this share of its network's rate, not all of it.
_SECOND_SHARE = 1.0 / 3.0
# Used where nothing was measured: a typical network of each kind.
_TYPICAL_RTT_S = {"wifi": 0.018, "cellular": 0.050}
_TYPICAL_BPS = {"wifi": 20e6, "cellular": 10e6}
_RATES = ("past1_bps", "past5_bps", "past10_bps")
# Real time over the rule's time: evenly spaced quantiles over the same places.
_ERRORS = (0.64, 0.92, 0.97, 0.99, 1.01, 1.03, 1.06, 1.11, 1.2, 1.41, 2.12)


class RuleOfThumb:
    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = (
        "size_bytes",
        *(f"{role}_{name}" for role in ROLES for name in ("rtt_s", *_RATES)),
    )

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        """Seconds to completion per strategy from round trips and recent rates.

        Args:
            features: `size_bytes`, and per network what is known of `rtt_s` and `pastN_bps`.
        """
        size_bytes = features["size_bytes"]
        rtt_s, bps, times = {}, {}, {}
        for role in ROLES:
            rtt_s[role] = _known(features, f"{role}_rtt_s") or _TYPICAL_RTT_S[role]
            bps[role] = _recent_bps(features, role)
            times[role] = naive_time_s(size_bytes, rtt_s[role], bps[role])
        for primary, second in (ROLES, ROLES[::-1]):
            alone_s = times[primary]
            join_s = rtt_s[primary] + 2.0 * rtt_s[second]
            gain = 1.0 + _SECOND_SHARE * bps[second] / bps[primary]
            both_s = join_s + (alone_s - join_s) / gain
            times[f"mptcp_{primary}"] = alone_s if alone_s <= join_s else both_s
        return {
            name: Distribution(tuple(time_s * error for error in _ERRORS))
            for name, time_s in times.items()
        }


def _recent_bps(features: Mapping[str, float], role: str) -> float:
    for name in _RATES:
        bps = _known(features, f"{role}_{name}")
        if bps is not None:
            return max(bps, SLOWEST_BPS)
    return _TYPICAL_BPS[role]


def _known(features: Mapping[str, float], column: str) -> float | None:
    value = features.get(column)
    return None if value is None or isnan(value) else value
