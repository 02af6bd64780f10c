"""The benches of steering, rescues and trials run through; their times are for a quiet machine."""

import pytest
from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu.bench import crash, switch, trials
from emu.bench.rescue import Measured, emulated


def test_a_killed_process_leaves_transfers_alive_and_the_host_restorable():
    lines = []
    figures = crash.run(lines.append)
    assert figures["restored_share"] == 1.0, lines
    # A dozen transfers share two thin links: one may pause for longer than a look lasts.
    assert figures["connections_survived_share"] > 0.8, lines


def test_living_transfers_move_in_both_directions():
    figures = switch.run(lambda _: None, connections=1, flips=2)
    for direction in ("down", "up"):
        assert figures[f"{direction}_flips"] == 2
        # Found on the new path at all, within the time that the bench looks.
        assert figures[f"{direction}_p95_ms"] < 1000


@pytest.mark.usefixtures("registry")
def test_programs_are_rescued_explained_and_nothing_stays():
    with emulated(0.020, 0.060) as bench:
        daemon, client = bench.daemon, bench.laptop.client
        measured = Measured()
        bench.trial(measured, print)
        assert measured.rescues
        # The kernel alone would take for ever; the bench measures how much sooner it is.
        assert all(0 < each.took_s < 5.0 for each in measured.rescues)
        assert daemon.rescues() >= len(measured.rescues)
        output = daemon.cedos("explain", "198.51.100.1:80")
        told = " ".join(entry["why"] for entry in daemon.logged("rescued"))
        assert "no reply to its first packet over" in told
        assert output.returncode == 0, output.stderr
        wait_until(lambda: " sport " not in client.ip("rule"), 5)  # the flows have ended


@pytest.mark.usefixtures("registry")
def test_wifi_that_was_slow_is_used_again_when_it_is_fast():
    case, log = trials.Case("often"), list[str]()
    fetches = trials.measure(case, 60.0, log)
    slow = [fetch.network for fetch in fetches[2:] if fetch.began_s < case.slow_s]
    assert slow.count(NetworkKind.CELLULAR) > 0.8 * len(slow), "the phone carried them"
    assert trials.again(case, fetches) < 60.0
    assert "to show how fast it is by now" in log[0]
