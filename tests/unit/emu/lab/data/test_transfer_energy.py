import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Direction
from emu.data.choices import transfer_energy_j


@pytest.mark.parametrize(
    ("strategy", "direction", "expected_j"),
    [
        ("wifi", "down", 0.428 * 10),
        ("wifi", "up", 0.536 * 10),
        ("cellular", "down", 1.674 * 10 + 6.5),
        ("cellular", "up", 2.778 * 10 + 6.5),
        ("mptcp_wifi", "down", (0.428 + 1.674) * 10 + 6.5),
        ("mptcp_cellular", "up", (0.536 + 2.778) * 10 + 6.5),
        ("redundant", "down", (0.428 + 1.674) * 10 + 6.5),
    ],
)
def test_ten_seconds_of_each(strategy: str, direction: str, expected_j: float) -> None:
    assert math.isclose(transfer_energy_j(strategy, 1_000_000, direction, 10.0), expected_j)


@pytest.mark.parametrize(
    ("strategy", "probe_s", "measured_j"),
    [
        ("wifi", 0.64, 0.331),
        ("wifi", 9.02, 4.730),
        ("wifi", 0.65, 0.366),
        ("cellular", 0.63, 1.378),
        ("cellular", 9.01, 19.697),
        ("cellular", 0.58, 1.613),
    ],
)
def test_the_papers_probes_cost_what_table_3_says(
    strategy: str, probe_s: float, measured_j: float
) -> None:
    """Table 3: DNS, ten pings, UDP; without the tail. A probe sends for a part of its time."""
    low_j, high_j = (
        transfer_energy_j(strategy, 1000, direction, probe_s, cellular_idle_s=0.0)
        for direction in ("down", "up")
    )
    assert low_j * 0.94 <= measured_j <= high_j * 1.06


def test_the_rate_matters_not() -> None:
    """Section 7.2: the power level stays the same regardless of the data rate."""
    assert transfer_energy_j("wifi", 1000, "down", 2.0) == transfer_energy_j(
        "wifi", 10_000_000, "down", 2.0
    )


def test_nothing_costs_nothing() -> None:
    assert transfer_energy_j("cellular", 0, "down", 0.0) == 0.0


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(KeyError):
        transfer_energy_j("pigeon", 1, "down", 1.0)


@given(
    st.sampled_from(["wifi", "cellular", "mptcp_wifi"]),
    st.sampled_from(Direction),
    st.floats(0, 1000),
    st.floats(0, 1000),
)
def test_longer_never_costs_less(
    strategy: str, direction: Direction, a_s: float, b_s: float
) -> None:
    short_s, long_s = sorted((a_s, b_s))
    short_j = transfer_energy_j(strategy, 1, direction, short_s)
    assert short_j <= transfer_energy_j(strategy, 1, direction, long_s)


def test_a_transfer_within_the_tail_pays_only_what_it_prolongs() -> None:
    assert transfer_energy_j("cellular", 1000, "down", 1.0, cellular_idle_s=0.0) == 1.674
    assert transfer_energy_j("cellular", 1000, "down", 1.0, cellular_idle_s=11.5) == 1.674 + 6.5
