import numpy as np
import pytest

from predictors.inputs import STRATEGIES, naive_time_s
from predictors.training.examples import Examples


def made_up(groups=12, each=30, seed=1):
    """Transfers over networks that do as promised, give or take a place's own habits and chance."""
    draw = np.random.default_rng(seed)
    rows = groups * each
    group = np.repeat(np.arange(groups), each)
    columns = {
        "size_bytes": draw.choice([3e3, 3e4, 3e5, 3e6], rows),
        "direction_up": draw.integers(0, 2, rows).astype(float),
    }
    singles = {}
    for name, rtt_s, rate_bps in (("wifi", 0.02, 20e6), ("cellular", 0.05, 30e6)):
        rtts_s = rtt_s * np.exp(draw.normal(0, 0.3, rows))
        rates_bps = rate_bps * np.exp(draw.normal(0, 0.5, rows))
        naive_s = np.array(
            [
                naive_time_s(size, rtt, rate)
                for size, rtt, rate in zip(columns["size_bytes"], rtts_s, rates_bps, strict=True)
            ]
        )
        habit = np.exp(draw.normal(0, 0.05, groups))[group]
        singles[name] = naive_s * habit * np.exp(draw.normal(0, 0.15, rows))
        columns |= {
            f"{name}_rtt_s": rtts_s,
            f"{name}_past1_bps": rates_bps,
            f"{name}_past5_bps": rates_bps * np.exp(draw.normal(0, 0.2, rows)),
            f"{name}_available": np.ones(rows),
        }
    columns["wifi_past5_bps"][draw.random(rows) < 0.2] = np.nan
    times_s = {
        **singles,
        "mptcp_wifi": np.minimum(singles["wifi"], 1.2 * singles["cellular"]) * 0.95,
        "mptcp_cellular": np.minimum(singles["cellular"], 1.2 * singles["wifi"]) * 0.95,
    }
    times_s = {name: np.minimum(times_s[name], 5.0) for name in STRATEGIES}
    return Examples(
        columns, times_s, {name: time_s >= 5.0 for name, time_s in times_s.items()}, group
    )


@pytest.fixture(scope="session", name="made_up")
def made_up_fixture():
    return made_up


@pytest.fixture(scope="session")
def examples():
    return made_up()


@pytest.fixture
def usual():
    """The columns of an ordinary moment."""
    return {
        "size_bytes": 300_000.0, "direction_up": 0.0, "wifi_rtt_s": 0.02, "wifi_past1_bps": 20e6,
        "wifi_past5_bps": 18e6, "wifi_available": 1.0, "cellular_rtt_s": 0.05,
        "cellular_past1_bps": 30e6, "cellular_past5_bps": 32e6, "cellular_available": 1.0,
    }  # fmt: skip
