"""CBSP's experiments: the player, the server's chunks, helpers who pass, and what is written."""

from random import Random

import pytest

from emu.experiments.cbsp import cost, helpers
from emu.experiments.cbsp.video import LOWEST_RTT, SWTC, Player, Setting, watch

SHORT = Setting(video_s=6.0)


def test_a_player_starts_pauses_and_goes_on_at_the_threshold():
    player = Player(8e6, 4e6, 1e6)  # a megabyte is a second
    player.on_bytes(0.9e6, 1.0)
    assert player.started_s is None
    player.on_bytes(1.0e6, 2.0)
    assert player.started_s == 2.0
    player.on_bytes(1.5e6, 4.0)  # empty since 3.0; half a second is not enough
    assert player.paused_s == pytest.approx(1.0)
    player.on_bytes(2.0e6, 5.0)
    assert player.paused_s == pytest.approx(2.0)
    player.on_bytes(4.0e6, 5.5)
    player.advance(20.0)
    assert player.ended_s == pytest.approx(8.0)
    assert player.pci == pytest.approx(1 - 2.0 / 4.0)


@pytest.mark.parametrize("scheduler", [SWTC, LOWEST_RTT])
def test_a_run_can_be_repeated_and_plays_a_video_that_fits(scheduler):
    one, other = watch(SHORT, scheduler, 3), watch(SHORT, scheduler, 3)
    assert one == other
    assert one.pci == 1.0
    # 316 kB over 2.1 Mbit/s take 1.2 s and a slow start.
    assert 1.2 < one.startup_s < 2.5


def test_helpers_pass_for_as_long_as_equation_1_says():
    found = helpers.passers(Random(1), (100.0, 1000.0), 1000.0)
    # A chord of a circle of 50 m, at 1 to 10 m/s.
    assert all(0.0 < each.goes_s - each.comes_s <= 100.0 for each in found)
    at_once = [
        sum(each.comes_s <= now < each.goes_s for each in found) for now in range(100, 1000, 10)
    ]
    assert 4.5 < sum(at_once) / len(at_once) < 7.5
    assert found[0].offer(0.0).encounter_s == found[0].goes_s


def test_what_swtc_reads_is_table_1():
    assert tuple(cost.facts_read()) == cost.METRICS["swtc"]


def test_memory_grows_with_paths_and_not_with_packets():
    assert cost.memory_bytes(8) < 12 * cost.memory_bytes(1)
