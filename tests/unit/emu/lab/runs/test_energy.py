import pytest

from cedos.model import NetworkKind
from cedos.selector.energy import DELPHI
from emu.lab.runs.energy import run_energy_j
from emu.testbed.counters import Sample

LTE = DELPHI.radios[NetworkKind.CELLULAR]


def samples(*moved: tuple[float, int, int]) -> list[Sample]:
    return [Sample(at_s, "lte0", received, sent) for at_s, received, sent in moved]


def test_a_radio_that_never_moved_costs_nothing() -> None:
    assert run_energy_j(samples((0, 0, 0), (1, 0, 0), (9, 0, 0)), NetworkKind.CELLULAR) == 0


def test_receiving_sending_and_the_tail() -> None:
    moved = samples((0, 0, 0), (1, 1000, 10), (3, 1100, 9000))
    expected = LTE.receive_w * 1 + LTE.send_w * 2 + LTE.tail_j
    assert run_energy_j(moved, NetworkKind.CELLULAR) == pytest.approx(expected)


def test_a_short_pause_costs_only_its_part_of_the_tail() -> None:
    moved = samples((0, 0, 0), (1, 10, 0), (3, 10, 0), (4, 20, 0))
    expected = 2 * LTE.receive_w + 2 * LTE.tail_j / LTE.tail_s + LTE.tail_j
    assert run_energy_j(moved, NetworkKind.CELLULAR) == pytest.approx(expected)


def test_a_long_pause_costs_the_whole_tail_once() -> None:
    moved = samples((0, 0, 0), (1, 10, 0), (60, 10, 0), (61, 20, 0))
    expected = 2 * (LTE.receive_w + LTE.tail_j)
    assert run_energy_j(moved, NetworkKind.CELLULAR) == pytest.approx(expected)


def test_wifi_has_no_tail() -> None:
    wifi = DELPHI.radios[NetworkKind.WIFI]
    moved = samples((0, 0, 0), (1, 10, 0), (9, 10, 0))
    assert run_energy_j(moved, NetworkKind.WIFI) == pytest.approx(wifi.receive_w)
