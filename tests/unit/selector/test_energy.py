"""Spare subflows, where they are worth the joules that they cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.model import Direction, Network, NetworkKind
from cedos.selector.energy import (
    DELPHI,
    Radio,
    RadioPower,
    RadioState,
    RadioWatch,
    not_worth_a_spare,
)
from cedos.selector.objective import WeightedCost
from cedos.storage.model_files import radios

DCH = RadioState("dch", 0.9, 0.8, 4.0, from_bytes_up=151, from_bytes_down=119)


FACH = RadioState("fach", 0.4, 0.4, 6.0)


THREEG = Radio("a test", 0.1, 0.7, 0.5, (DCH, FACH))


LARGE = {"bytes_down": 1e6}


def test_a_first_transfer_pays_promotion_and_the_whole_tail():
    assert THREEG.tail_j == pytest.approx(4 * 0.7 + 6 * 0.3)
    assert THREEG.promotion_j == pytest.approx(0.6 * 0.5)
    assert THREEG.transfer_j(**LARGE, seconds=2.0) == pytest.approx(0.3 + 2 * 0.8 + 4.6)


def test_within_the_tail_only_its_extension_is_paid():
    """IMP: P_tail * T_inactivity, here in two steps."""
    assert THREEG.added_tail_j(0.0) == 0.0
    assert THREEG.added_tail_j(3.0) == pytest.approx(3 * 0.7)
    assert THREEG.added_tail_j(6.0) == pytest.approx(4 * 0.7 + 2 * 0.3)
    assert THREEG.added_tail_j(10.0) == THREEG.added_tail_j(None) == pytest.approx(4.9)


def test_little_data_is_carried_in_the_lower_state():
    """PowerTutor: DCH only for more than 151 bytes up or 119 down."""
    assert THREEG.transfer_j(bytes_up=151, seconds=1.0) == pytest.approx(0.3 + 0.3 + 6 * 0.3)
    assert THREEG.transfer_j(bytes_up=152, seconds=1.0) == pytest.approx(0.3 + 0.8 + 4.6)
    # In DCH already, it stays there; in FACH only FACH is prolonged.
    assert THREEG.transfer_j(bytes_up=100, seconds=1.0, idle_s=1.0) == pytest.approx(0.8 + 0.7)
    assert THREEG.transfer_j(bytes_up=100, seconds=1.0, idle_s=6.0) == pytest.approx(0.3 + 2 * 0.3)


def test_the_future_is_a_mean_over_the_states():
    idle_j = THREEG.transfer_j(**LARGE, seconds=1.0)
    active_j = THREEG.transfer_j(**LARGE, seconds=1.0, idle_s=0.0)
    expected_j = THREEG.expected_j(**LARGE, seconds=1.0, shares={"active": 0.25, "idle": 0.75})
    assert expected_j == pytest.approx(0.25 * active_j + 0.75 * idle_j)
    lingering_j = THREEG.expected_j(**LARGE, seconds=1.0, shares={"fach": 1.0})
    assert lingering_j == pytest.approx(0.8 + 4 * 0.7 + 3 * 0.3)
    assert THREEG.expected_j(**LARGE, seconds=1.0, shares={}) == pytest.approx(idle_j)


def test_states_follow_the_traffic():
    watch = RadioWatch(THREEG)
    assert watch.state(0.0) == "idle"
    assert watch.idle_s(0.0) is None
    watch.add_bytes(10.0, 0, 10_000)
    watch.add_bytes(11.0, 0, 10_000)
    watch.add_bytes(12.0, 0, 10_000)
    assert watch.state(12.0) == watch.state(15.9) == "dch"
    assert watch.state(16.1) == "fach"
    assert watch.state(22.1) == "idle"
    assert watch.idle_s(22.0) == 10.0
    assert watch.energy_j(30.0) == pytest.approx(0.3 + 2 * 0.8 + 4.6)
    shares = watch.shares(30.0)
    assert shares["active"] == pytest.approx(2 / 30)
    assert shares["dch"] == pytest.approx(4 / 30)
    assert sum(shares.values()) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 5000), st.floats(0, 5000)), max_size=20))
def test_a_watch_agrees_with_the_formula(steps):
    """Single events: what each adds is what `transfer_j` says of an event without length."""
    radio = Radio("large only", 0.1, 0.7, 0.5, (RadioState("dch", 0.9, 0.8, 4.0), FACH))
    watch, at_s, expected_j = RadioWatch(radio, sampled_s=0.0), 0.0, 0.0
    for pause_s, up, down in steps:
        at_s += pause_s
        expected_j += radio.transfer_j(
            bytes_up=up, bytes_down=down, seconds=0.0, idle_s=watch.idle_s(at_s)
        )
        watch.add_bytes(at_s, up, down)
    assert watch.energy_j(at_s + 100.0) == pytest.approx(expected_j)


def test_shipped_figures_are_the_sources():
    known = radios()
    assert known["nexus-one"]["3g"].tail_j == pytest.approx(4 * 0.892 + 6 * 0.396)
    lte = known["lte-2012"]["lte"]
    assert lte.active_w(Direction.DOWN, 10e6) == pytest.approx(1.28804 + 10 * 0.05197)
    assert lte.tail_j == pytest.approx(1.060 * 11.576)
    phone = known["nexus-5"]
    for mbps, cellular_w, wifi_w in ((1, 1.282, 0.568), (5, 1.410, 0.686)):
        assert phone["cellular"].active_w(Direction.DOWN, mbps * 1e6) == pytest.approx(cellular_w)
        assert phone["wifi"].active_w(Direction.DOWN, mbps * 1e6) == pytest.approx(wifi_w)
    delphi = known["delphi"]["lte"]
    assert delphi.active_w(Direction.UP) == pytest.approx(2.778)
    assert delphi.active_w(Direction.DOWN) == pytest.approx(1.674)
    assert delphi.transfer_j(bytes_up=9, seconds=1.0) == pytest.approx(2.778 + 6.5, rel=1e-3)
    assert delphi.tail_j == pytest.approx(6.5, rel=1e-3)


def test_a_users_radio_is_added(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[nexus-one.5g]\nsource = "me"\n'
        'states = [{ name = "on", active_w = 2, linger_w = 1, linger_s = 3 }]\n'
    )
    known = radios(file)["nexus-one"]
    assert known["5g"].tail_j == 3.0
    assert "3g" in known


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[a.lte]\nsource = "x"\nstates = []\n', "at least one state"),
        ('[a.lte]\nsource = "x"\nstate = 3\n', "states"),
        ("[a.lte\n", "not valid TOML"),
        (
            '[a.lte]\nsource = "x"\nstates = [{name = "idle", active_w = 1, linger_w = 1, linger_s = 1}]',
            "names of their own",
        ),
    ],
)
def test_a_bad_file_is_named(tmp_path, text, complaint):
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refused:
        radios(file)
    assert "bad.toml" in str(refused.value)


WIFI = DELPHI.radios[NetworkKind.WIFI]


LTE = DELPHI.radios[NetworkKind.CELLULAR]


def test_the_powers_are_those_of_table_4():
    assert (WIFI.send_w, WIFI.receive_w) == (0.536, 0.428)
    assert (LTE.send_w, LTE.receive_w) == (2.778, 1.674)


@given(st.floats(0, 60), st.floats(0, 60))
def test_a_tail_grows_with_the_pause_before_it(a_s, b_s):
    radio = RadioPower(1.0, 1.0, tail_j=6.0, tail_s=12.0)
    short_s, long_s = sorted((a_s, b_s))
    assert radio.added_tail_j(short_s) <= radio.added_tail_j(long_s) <= radio.tail_j


LTE_SPARES = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True)


def test_a_radio_that_is_awake_anyway_takes_spares():
    assert not_worth_a_spare([LTE_SPARES], WeightedCost(0.01), DELPHI, {"lte0": 0.2}) == set()
    assert not_worth_a_spare([LTE_SPARES], WeightedCost(0.01), DELPHI, {"lte0": 5.0}) == {"lte0"}
