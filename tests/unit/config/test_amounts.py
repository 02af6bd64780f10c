"""Times as people write them."""

from datetime import datetime

import pytest

from cedos.config import amounts

NOW = datetime(2026, 11, 24, 17, 30)  # a Tuesday


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("18:00", "2026-11-24 18:00"), ("17:00", "2026-11-25 17:00"), ("2h", "2026-11-24 19:30"),
        ("30m", "2026-11-24 18:00"), ("90min", "2026-11-24 19:00"), ("1h30min", "2026-11-24 19:00"),
        ("1d", "2026-11-25 17:30"), ("tomorrow", "2026-11-25 08:00"),
        ("Tomorrow  18:00", "2026-11-25 18:00"), ("today 23:00", "2026-11-24 23:00"),
        ("friday", "2026-11-27 08:00"), ("fri 9:15", "2026-11-27 09:15"),
        ("tuesday", "2026-12-01 08:00"), ("2026-12-01", "2026-12-01 08:00"),
        ("2026-12-01 18:00", "2026-12-01 18:00"), ("2026-12-01T18:00", "2026-12-01 18:00"),
    ],
)  # fmt: skip
def test_a_time_is_meant_as_people_mean_it(text, meant):
    assert f"{amounts.by(text, NOW):%Y-%m-%d %H:%M}" == meant


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "18:60", "today", "tomorrow noon", "2026-13-01", "h", "-2h", "1x"]
)
def test_what_is_no_time_says_what_would_be_right(text):
    with pytest.raises(ValueError, match='write "18:00", "30min", "2h", "tomorrow"'):
        amounts.by(text, NOW)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("4", 4.0), ("500ms", 0.5), ("2min", 120.0), ("1.5 h", 5400.0), ("1d", 86_400.0),
        ("10m", 600.0), ("1h30m", 5400.0), ("1w", 604_800.0),
    ],
)  # fmt: skip
def test_durations(text, meant):
    assert amounts.seconds(text) == meant


@pytest.mark.parametrize("text", ["2026-11-24 08:00", "today 08:00", "2026-11-23"])
def test_the_past_is_refused(text):
    with pytest.raises(ValueError, match="has passed: it is 2026-11-24 17:30 now"):
        amounts.by(text, NOW)
