"""The table of transfers with deadlines."""

from dataclasses import replace
from math import isinf

import pytest

from cedos.errors import NotFoundError
from cedos.model import Direction
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.deadlines import transfer_table
from cedos.selector.deadlines.network_state import HostNetworks, SeenNetwork
from cedos.selector.deadlines.transfer_table import SILENT_S, TableTransfer, TransferTable

WIFI, LTE = SeenNetwork("wlan0", True, 0.0), SeenNetwork("lte0", True, 2e-7)
UNIX_S = 1e9


def transfer(key="a", left=1_000_000, in_s=600.0):
    return TableTransfer(key, 0, key, "server", Direction.DOWN, left, 0, UNIX_S + in_s)


@pytest.fixture
def table():
    networks = HostNetworks()
    for at_s in range(-300, 0):
        for name in ("wlan0", "lte0"):
            networks.on_measured(name, Direction.DOWN, 8e6, 1.0, float(at_s))
    return TransferTable(networks)


def plan(table, *seen, now=0.0):
    return table.plan(seen, UNIX_S + now, now)


def test_it_waits_for_wifi_and_goes_over_it(table):
    table.report(transfer(), 0.0)
    plan(table, LTE)
    turn = table.turn("a", 0.0)
    assert turn.networks == ()
    assert 570.0 < turn.prospect.begin_at_s < 600.0
    assert turn.prospect.missed < 0.01
    assert plan(table, WIFI, LTE, now=1.0)
    assert table.turn("a", 1.0).networks == ("wlan0",)


def test_an_empty_table_is_not_planned(table, monkeypatch):
    """The daemon plans each second, and fitting the stays of networks takes most of an event."""
    table.report(transfer(), 0.0)
    assert plan(table, WIFI)
    table.end("a")
    with monkeypatch.context() as patched:
        patched.setattr(HostNetworks, "states", None)
        assert plan(table, WIFI, now=1.0), "the last one has no turn any more"
        assert not plan(table, WIFI, now=2.0)
    table.report(transfer("b"), 3.0)
    assert plan(table, WIFI, now=3.0)


def test_a_wifi_that_has_just_gone_is_expected_back_and_the_last_begin_is_told(table):
    table.report(transfer(in_s=3600.0), 0.0)
    plan(table, WIFI, LTE)
    assert isinf(table.turn("a", 0.0).prospect.begin_at_s)
    plan(table, LTE, WIFI._replace(up=False), now=5.0)
    turn = table.turn("a", 5.0)
    assert turn.networks == ()
    assert 3000.0 < turn.prospect.begin_at_s < 3600.0  # should it not come back
    assert turn.prospect.metered_bytes < 0.1e6


def test_it_uses_the_metered_network_in_time(table):
    table.report(transfer(in_s=1.5), 0.0)
    assert plan(table, LTE)
    turn = table.turn("a", 0.0)
    assert turn.networks == ("lte0",)
    assert turn.prospect.metered_bytes > 0.9e6


def test_equal_transfers_have_turns_of_their_own(table):
    table.report(transfer("a"), 0.0)
    table.report(transfer("b", in_s=700.0), 0.0)
    plan(table, WIFI)
    assert table.turn("a", 0.0).networks == ("wlan0",)
    behind = table.turn("b", 0.0)
    assert (behind.networks, behind.first) == ((), False)
    assert behind.prospect.end_s > table.turn("a", 0.0).prospect.end_s


def test_who_is_silent_takes_no_turn_and_stays_in_the_table(table):
    table.report(transfer("a"), 0.0)
    now = SILENT_S + 1.0
    table.report(transfer("b", in_s=700.0), now)
    plan(table, WIFI, now=now)
    assert table.turn("b", now).networks == ("wlan0",)
    assert [(row.key, runs) for row, _, runs in table.rows(now)] == [("a", False), ("b", True)]


def test_what_nobody_goes_on_with_is_forgotten_some_day(table):
    table.report(transfer(), 0.0)
    plan(table, WIFI, now=600.0 + transfer_table.KEPT_S - 1.0)
    assert len(table) == 1
    plan(table, WIFI, now=600.0 + transfer_table.KEPT_S + 1.0)
    assert len(table) == 0


def test_the_impossible_is_said_at_once_and_carried_all_the_same(table):
    table.report(transfer(left=10_000_000_000, in_s=60.0), 0.0)
    plan(table, WIFI, LTE)
    turn = table.turn("a", 0.0)
    assert turn.late
    assert turn.networks
    assert turn.prospect.end_low_s > 60.0


def test_one_that_its_server_holds_back_leaves_the_network_to_the_next(table):
    table.report(transfer("a"), 0.0)
    table.report(transfer("b", in_s=700.0), 0.0)
    plan(table, WIFI)
    for at_s in range(1, 8):
        table.add_bytes("a", {"wlan0": 10_000}, 1.0, float(at_s))
    plan(table, WIFI, now=8.0)
    assert table.turn("b", 8.0).networks == ("wlan0",)


def carried(table, bps_of, seconds, seen=(WIFI,), full_bps=8e6):
    """Run transfers for some seconds over one network of `full_bps`; return the bytes of each."""
    done = dict.fromkeys(bps_of, 0)
    for at_s in range(1, seconds + 1):
        now = float(at_s)
        plan(table, *seen, now=now)
        runs = {key: bps for key, bps in bps_of.items() if table.networks_of(key)}
        fair_bps = full_bps / max(len(runs), 1)
        for key, each, _ in [(row.key, row, by) for row, by, _ in table.rows(now)]:
            count = int(min(runs.get(key, 0.0), fair_bps) / 8.0)
            done[key] += count
            table.report(replace(each, done_bytes=done[key]), now)
            table.add_bytes(key, {"wlan0": count} if count else {}, 1.0, now)
    return done


def test_a_server_that_drips_does_not_hold_a_network_of_unknown_rate():
    """A dripping transfer did so for minutes: the network's rate was known from it alone."""
    table = TransferTable()
    table.report(transfer("drip", left=20_000_000, in_s=3600.0), 0.0)
    table.report(transfer("good", left=20_000_000, in_s=7200.0), 0.0)
    done = carried(table, {"drip": 3200.0, "good": 8e6}, 60)
    assert done["good"] > 20_000_000
    assert done["drip"] > 0


def test_a_thousand_transfers_that_drip_do_not_hold_another_server():
    table = TransferTable()
    slow = {f"drip{number}": 3200.0 for number in range(200)}
    for key in slow:
        table.report(replace(transfer(key, in_s=3600.0), server="slow"), 0.0)
    table.report(transfer("good", left=20_000_000, in_s=7200.0), 0.0)
    assert carried(table, {**slow, "good": 8e6}, 60)["good"] > 20_000_000


def test_a_network_that_is_full_stays_with_the_first_transfer():
    table = TransferTable()
    table.report(transfer("a", left=2_000_000, in_s=7200.0), 0.0)
    table.report(transfer("b", left=1_000_000, in_s=9000.0), 0.0)
    done = carried(table, {"a": 1e9, "b": 1e9}, 100, full_bps=64_000.0)
    assert done["b"] < 0.1 * done["a"]


def test_a_network_that_was_faster_for_a_moment_stays_with_the_first_transfer():
    """Others run beside it only while that is tried: it had half of the network for a minute."""
    table = TransferTable()
    table.report(transfer("a", left=200_000_000, in_s=7200.0), 0.0)
    for number in range(9):
        table.report(transfer(f"b{number}", left=200_000_000, in_s=9000.0), 0.0)
    keys = ["a", *(f"b{number}" for number in range(9))]
    done = dict.fromkeys(keys, 0)
    for at_s in range(1, 60):
        plan(table, WIFI, now=float(at_s))
        runs = [key for key in keys if table.networks_of(key)]
        full_bps = 13e6 if 9 <= at_s < 13 else 8e6  # as the first others begin
        for key in keys:
            count = int(full_bps / 8.0 / len(runs)) if key in runs else 0
            done[key] += count
            (row,) = (row for row, _, _ in table.rows(float(at_s)) if row.key == key)
            table.report(replace(row, done_bytes=done[key]), float(at_s))
            table.add_bytes(key, {"wlan0": count} if count else {}, 1.0, float(at_s))
    assert done["a"] > 0.85 * sum(done.values())


def test_no_user_holds_the_networks_of_another(table):
    """A program may report what is not so; others do not wait for it."""
    table.report(transfer("a"), 0.0)
    table.report(replace(transfer("b", in_s=700.0), uid=1000), 0.0)
    table.report(replace(transfer("c", in_s=800.0), uid=1000), 0.0)
    plan(table, WIFI)
    assert [table.networks_of(key) for key in "abc"] == [("wlan0",), ("wlan0",), ()]
    assert not table.turn("b", 0.0).late


def test_another_user_waits_for_wifi_all_the_same(table):
    table.report(transfer("a", in_s=1.5), 0.0)
    table.report(replace(transfer("b", in_s=7200.0), uid=1000), 0.0)
    plan(table, LTE)
    assert [table.networks_of(key) for key in "ab"] == [("lte0",), ()]


def test_more_bytes_than_the_size_make_the_size_unknown(table):
    table.report(replace(transfer(left=20_000), done_bytes=40_000), 0.0)
    (flow,) = table.flows(Direction.DOWN, 0.0)
    assert (flow.left_bytes, flow.exact) == (10e6, False)


def test_a_program_that_was_suspended_is_not_slow_and_says_nothing_of_networks(table):
    """It was: fifteen seconds of SIGSTOP, and the phone was used as its own rate was too low."""
    table.report(transfer(left=60_000_000, in_s=120.0), 0.0)
    plan(table, WIFI, LTE)
    before = table.networks.states([WIFI], Direction.DOWN, 16.0)[0].rate_bps
    table.report(transfer(left=60_000_000, in_s=120.0), 16.0)
    table.add_bytes("a", {"wlan0": 700_000}, 16.0, 16.0)
    plan(table, WIFI, LTE, now=16.0)
    turn = table.turn("a", 16.0)
    assert not turn.late
    assert table.networks.states([WIFI], Direction.DOWN, 16.0)[0].rate_bps == before
    ((_, by, _),) = table.rows(16.0)
    assert by == {"wlan0": 700_000}


def test_the_unknown_size_is_expected_to_be_something(table):
    table.report(transfer(left=None, in_s=8.0), 0.0)
    plan(table, LTE)
    assert table.turn("a", 0.0).networks == ("lte0",)


def test_a_user_has_a_bounded_part_and_nobody_elses(table, monkeypatch):
    monkeypatch.setattr(transfer_table, "MOST_OF_USER", 2)
    table.report(transfer("a"), 0.0)
    table.report(transfer("b"), 0.0)
    with pytest.raises(ValueError, match="2 transfers of this user"):
        table.report(transfer("c"), 0.0)
    table.report(replace(transfer("c"), uid=1000), 0.0)
    with pytest.raises(ValueError, match="another user"):
        table.report(replace(transfer("a"), uid=1000), 0.0)


def test_what_has_ended_is_not_there(table):
    table.report(transfer(), 0.0)
    table.end("a")
    with pytest.raises(NotFoundError):
        table.turn("a", 0.0)


def test_what_was_learned_comes_back():
    networks = HostNetworks()
    for at_s in range(100):
        networks.watch([WIFI._replace(up=at_s % 20 < 10)], float(at_s))
        networks.on_measured("wlan0", Direction.DOWN, 3e6, 1.0, float(at_s))
    again = HostNetworks()
    again.restore(networks.to_state(), 0.0)
    assert again.to_state()["stretches"] == networks.to_state()["stretches"]
    (state,) = again.states([WIFI], Direction.DOWN, 0.0)
    assert state.rate_bps == pytest.approx(3e6)


@pytest.mark.parametrize("kept", [None, [], {"rates": 3, "stretches": [1]}, {"rates": [[1], "x"]}])
def test_what_is_no_state_is_left_out(kept):
    networks = HostNetworks()
    networks.restore(kept, 0.0)
    assert networks.to_state() == {"rates": [], "stretches": {}}


def test_a_spent_budget_forbids_a_dear_one_does_not():
    """The price of a spent budget is a number; dear networks are used where a deadline needs them."""
    networks = HostNetworks()
    prices = {"spent": PROHIBITIVE, "dear": 1e3}
    seen = [SeenNetwork(name, True, price_s) for name, price_s in prices.items()]
    usable = {each.name: each.usable for each in networks.states(seen, Direction.DOWN, 0.0)}
    assert usable == {"spent": False, "dear": True}
