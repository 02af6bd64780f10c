import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cedos.selector.sharing.encounter import Relative, encounter_s

METRES = st.floats(-200, 200)
SPEEDS = st.floats(-30, 30)


@given(METRES, METRES, SPEEDS, SPEEDS, st.floats(1, 150))
def test_at_the_end_of_the_encounter_the_hosts_are_as_far_apart_as_the_range(
    dx: float, dy: float, rx: float, ry: float, range_m: float
) -> None:
    assume(math.hypot(rx, ry) > 0.01)
    found = encounter_s(Relative(dx, dy, rx, ry), range_m)
    if math.hypot(dx, dy) > range_m:
        assert found == 0.0
    else:
        assert found >= -1e-6
        apart_m = math.hypot(dx + rx * found, dy + ry * found)
        assert apart_m == pytest.approx(range_m, abs=1e-4 * range_m)


def test_a_helper_that_passes_by() -> None:
    # 30 m ahead, going away at 2 m/s: 20 m more until it is out of 50 m.
    assert encounter_s(Relative(30, 0, 2, 0), 50) == pytest.approx(10)
    # Coming nearer at 2 m/s: 30 m to here, and 50 m beyond.
    assert encounter_s(Relative(30, 0, -2, 0), 50) == pytest.approx(40)


def test_hosts_that_move_together_stay_in_range() -> None:
    assert encounter_s(Relative(10, 10, 0, 0), 50) == math.inf
    assert encounter_s(Relative(60, 0, 0, 0), 50) == 0.0
