"""Rules of ranking under Max(S/E), on tables that can be worked out with a pencil."""

from typing import Any

import numpy as np
import pytest

from cedos.errors import DataSetError
from emu.experiments.delphi.analyses import ranking
from emu.lab.data import datasets
from predictors.error import SAMPLES

STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")


def table(wifi_s: list[float], cellular_s: float, *, wifi_dead: bool) -> Any:
    """One row; Wi-Fi's expected time goes evenly through `wifi_s`, all others are certain."""
    samples_s = np.empty((1, 4, SAMPLES))
    samples_s[0, 0] = np.repeat(wifi_s, SAMPLES // len(wifi_s))
    samples_s[0, 1:] = np.array([cellular_s, 40.0, 40.0])[:, None]
    return ranking._Table(
        cost=np.ones((1, 4)),
        samples_s=samples_s,
        dead=np.array([[wifi_dead, False]]),
        watts=np.array([[0.5, 1.5, 2.0, 2.0]]),
        tail_j=np.array([0.0, 6.5, 6.5, 6.5]),
    )


def chosen(of: Any, rule: str, back_s: float = 1.0) -> str:
    return STRATEGIES[ranking._chosen(of, rule, np.full((1, SAMPLES), back_s))[0]]


@pytest.mark.parametrize("by", ["typical", "expected"])
def test_a_dead_network_is_out_weighed_or_waited_for(by: str) -> None:
    # 0.5 t^2 over Wi-Fi, 1.5 t^2 + 6.5 t over cellular: 8 for a second, as much as 4 s of Wi-Fi.
    dead = table([6.0], 1.0, wifi_dead=True)
    assert chosen(dead, f"hard, {by}") == "cellular"
    assert chosen(dead, f"none, {by}") == "cellular"  # 18 to 8
    assert chosen(dead, f"soft, {by}", back_s=3.0) == "wifi"  # 4.5 to 8
    assert chosen(dead, f"soft, {by}", back_s=5.0) == "cellular"
    swift = table([3.0], 1.0, wifi_dead=True)
    assert chosen(swift, f"none, {by}") == "wifi"
    assert chosen(swift, f"hard, {by}") == "cellular"
    alive = table([3.0], 1.0, wifi_dead=False)
    assert chosen(alive, f"hard, {by}") == "wifi"


def test_what_is_rare_counts_in_expected_ratios_only() -> None:
    # 0.3 s or a minute: typically 4.2 s (9 to 8); but where it is swift, cellular costs 177 times more.
    gamble = table([0.3, 60.0], 1.0, wifi_dead=False)
    assert chosen(gamble, "hard, typical") == "cellular"
    assert ranking._expected(gamble, gamble.samples_s)[0, :2] == pytest.approx(
        [0.5 * (1.0 + 1800 / 8), 0.5 * (8 / 0.045 + 1.0)]
    )
    assert chosen(gamble, "hard, expected") == "cellular"
    slower = table([0.3, 40.0], 1.0, wifi_dead=False)
    assert chosen(slower, "hard, expected") == "wifi"


def test_dead_is_what_the_daemon_takes_for_dead() -> None:
    raw = {
        "place": ["a"] * 3,
        "size_bytes": [1] * 3,
        "direction": ["up"] * 3,
        "t_wifi_s": [1.0] * 3,
        "wifi_ping_loss": [1.0, 0.8, None],
        "cellular_available": [1.0, 0.0, None],
    }
    dead = ranking.dead_of(datasets.from_columns(raw, "by hand"))
    assert dead.tolist() == [[True, False], [False, True], [False, False]]


def test_how_long_dead_ones_took_elsewhere_has_one_voice_a_group() -> None:
    # Wi-Fi is back after 2 s in group a, many times, 6 s in b, 4 in c; a megabyte takes 1 s more.
    waits = [("a", 2.0)] * 8 + [("b", 6.0), ("c", 4.0)]
    rows = [(group, 3_000, wait_s) for group, wait_s in waits]
    rows += [(group, 4_000_000, 8.0) for group, _ in waits]
    raw = {
        "place": [group for group, _, _ in rows],
        "size_bytes": [size for _, size, _ in rows],
        "direction": ["down"] * len(rows),
        "t_wifi_s": [time_s for _, _, time_s in rows],
    }
    data = datasets.from_columns(raw, "by hand")
    dead = np.array([[True, False]] * len(rows))
    times_s = ranking._back_s(data, dead, np.full(len(rows), True))(data)
    assert times_s[0, 0] == pytest.approx(2.0, abs=0.02)
    assert times_s[0, -1] == pytest.approx(6.0, abs=0.02)
    assert np.median(times_s[0]) == pytest.approx(4.0, abs=0.3)
    # Beyond the middle wait of 4 s, four megabytes took 4 s.
    assert times_s[-1, 0] - times_s[0, 0] == pytest.approx(4.0, rel=0.1)
    with pytest.raises(DataSetError, match="dead Wi-Fi"):
        ranking._back_s(data, ~dead, np.full(len(rows), True))


def test_all_strategies_are_needed() -> None:
    raw = {"place": ["a"], "size_bytes": [1], "direction": ["up"], "t_wifi_s": [1.0]}
    with pytest.raises(DataSetError, match="all of wifi, cellular"):
        ranking.run(datasets.from_columns(raw, "by hand"))
