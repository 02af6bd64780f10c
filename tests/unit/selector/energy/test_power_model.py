from hypothesis import given
from hypothesis import strategies as st

from cedos.model import NetworkKind
from cedos.selector.energy.power_model import DELPHI, RadioPower

WIFI = DELPHI.radios[NetworkKind.WIFI]
LTE = DELPHI.radios[NetworkKind.CELLULAR]


def test_the_powers_are_those_of_table_4() -> None:
    assert (WIFI.send_w, WIFI.receive_w) == (0.536, 0.428)
    assert (LTE.send_w, LTE.receive_w) == (2.778, 1.674)


def test_a_radio_still_in_its_tail_pays_only_what_it_prolongs() -> None:
    idle_j = [LTE.added_tail_j(idle_s) for idle_s in (None, 100.0, 11.5, 5.75, 0.0, -1.0)]
    assert idle_j == [6.5, 6.5, 6.5, 3.25, 0.0, 0.0]
    assert WIFI.added_tail_j(None) == WIFI.added_tail_j(0.0) == 0.0


@given(st.floats(0, 60), st.floats(0, 60))
def test_a_tail_grows_with_the_pause_before_it(a_s: float, b_s: float) -> None:
    radio = RadioPower(1.0, 1.0, tail_j=6.0, tail_s=12.0)
    short_s, long_s = sorted((a_s, b_s))
    assert radio.added_tail_j(short_s) <= radio.added_tail_j(long_s) <= radio.tail_j
