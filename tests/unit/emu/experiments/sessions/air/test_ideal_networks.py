"""The virtual networks of the dissertation (2.5.1.4), and the settings of its Table 2.3."""

import numpy as np
import pytest

from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu.experiments.sessions import intnw
from emu.experiments.sessions.world import VIRTUAL, ideal, real
from emu.places.traces import Trace
from emu.testbed.access import Access


def access(kind: NetworkKind, rates_mbps: list[float], rtt_s: float) -> Access:
    """One rate a second."""
    times = [
        1000 * second + round(1000 * (k + 0.5) / max(1, round(1e6 * rate / 12_000)))
        for second, rate in enumerate(rates_mbps)
        for k in range(round(1e6 * rate / 12_000))
    ]
    trace = Trace(times, 1000 * len(rates_mbps))
    return Access(kind, up=trace, down=trace, rtt_s=rtt_s)


BOTH = {
    "wifi": access(NetworkKind.WIFI, [3.0, 3.0, 0.0, 0.6], 0.02),
    "cellular": access(NetworkKind.CELLULAR, [1.2, 1.2, 1.2, 1.2], 0.4),
}


def rates(trace: Trace) -> list[float]:
    return [round(rate / 1e6, 1) for rate in trace.bins(1.0)]


@pytest.mark.parametrize(
    ("kind", "wanted", "rtts"),
    [
        ("lowest-latency", [3.0, 3.0, 1.2, 0.6], [(0.0, 0.02), (2.0, 0.4), (3.0, 0.02)]),
        ("highest-bandwidth", [3.0, 3.0, 1.2, 1.2], [(0.0, 0.02), (2.0, 0.4)]),
        ("aggregate", [4.2, 4.2, 1.2, 1.8], [(0.0, 0.02), (2.0, 0.4), (3.0, 0.02)]),
    ],
)
def test_an_ideal_network(kind: str, wanted: list[float], rtts: list[tuple[float, float]]) -> None:
    found = ideal(BOTH, kind)
    assert found.name == VIRTUAL
    assert rates(found.down) == wanted
    assert rates(found.up) == wanted
    assert list(found.rtts) == rtts
    assert found.carrier is None


def test_the_client_learns_late_that_a_network_is_gone() -> None:
    found = real(BOTH["wifi"], "wlan0", 0.5)
    assert found.carrier is not None
    # The contact that ends the period goes on at its beginning.
    assert (-1.0, 2.5) in [tuple(each) for each in found.carrier]


def test_the_settings() -> None:
    hotspot = intnw.hotspot()
    assert hotspot["wifi"].down.mean_bps == pytest.approx(0.6e6)
    assert hotspot["cellular"].down.mean_bps == pytest.approx(2e6, rel=0.01)
    shares = []
    for seed in range(25):
        drive = intnw.intermittent(seed)
        shares.append(drive["wifi"].down.mean_bps / 3e6)
        assert drive["cellular"].down.mean_bps == pytest.approx(0.3e6, rel=0.01)
    # 10 s in 42 (contacts longer than 250 s are cut).
    assert np.mean(shares) == pytest.approx(10 / 42, abs=0.07)
    assert intnw.intermittent(3)["wifi"].down == intnw.intermittent(3)["wifi"].down


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ConfigError, match=r"best.*lowest-latency"):
        intnw.networks("best", BOTH, 1.0)
