"""When a link is out."""

import pytest

from emu.places.stats import next_outage_s
from emu.places.traces import Trace


@pytest.mark.parametrize(
    ("start_s", "within_s", "found_s"),
    [
        (12.0, 0.1, None),
        (9.5, 0.1, 0.5),  # within the next second, however short the transfer
        (10.5, 0.1, 0.0),
        (7.0, 0.1, None),
        (7.0, 5.0, 3.0),
        (14.5, 0.1, None),  # a pause of less than a second
        (20.0, 30.0, 30.0),  # the trace begins again, and is out at its tenth second
    ],
)
def test_an_outage_is_a_second_without_anything(
    start_s: float, within_s: float, found_s: float | None
) -> None:
    silent = (range(10_000, 11_500), range(15_000, 15_950))
    trace = Trace([ms for ms in range(40_000) if not any(ms in each for each in silent)], 40_000)
    assert next_outage_s(trace, start_s, within_s) == pytest.approx(found_s)
