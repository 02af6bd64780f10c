"""What is made of the instants at which a watched program got something."""

import pytest

from cedos.errors import EmulationError
from emu.workloads.unmodified.watched import as_user, watched


def test_the_longest_pause_is_between_two_arrivals() -> None:
    found = watched(10.0, [10.5, 10.6, 11.6, 11.7], whole=True)
    assert (found.took_s, found.stall_s, found.whole) == (
        pytest.approx(1.7),
        pytest.approx(1),
        True,
    )
    assert watched(10.0, [12.0], whole=False).stall_s == 0


def test_nothing_at_all_is_no_measurement() -> None:
    with pytest.raises(EmulationError, match="nothing"):
        watched(0.0, [], whole=False)


def test_root_needs_no_other_user() -> None:
    assert as_user(0) == ()
    assert "--reuid=7" in as_user(7)
