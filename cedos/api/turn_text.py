"""What a transfer waits for, or does, and why: one sentence (`cedos-get`, `cedos transfers`)."""

from datetime import datetime, timedelta
from typing import Final

from cedos.api.transfers import TurnMessage

_LATE_S: Final = 1.0  # what ends in the same second is in time


def sentence(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    """Without a stop, and first what matters most: that it will be late."""
    late = lateness(turn, deadline_unix_s, now)
    end = "" if _expected_late(turn, deadline_unix_s, now) else expected(turn, now)
    return "; ".join(filter(None, (late, _doing(turn, deadline_unix_s, now), end)))


def lateness(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    """That it has missed its deadline or will, in all likelihood; empty: it will not."""
    when, end = instant(deadline_unix_s, now), turn.end_unix_s
    if now.timestamp() > deadline_unix_s:
        return f"wanted by {when}, which has passed"
    if turn.late:
        # Nobody knows when a network comes where there is none.
        hope = not (turn.networks or turn.spare or turn.free_up) or _in_time(turn, deadline_unix_s)
        return f"{'may not' if hope else 'cannot'} be done by {when}"
    if end is None or _in_time(turn, deadline_unix_s):
        return ""
    expect = instant(end, now)
    if expect == when:  # the same minute
        when, expect = (f"{datetime.fromtimestamp(at):%H:%M:%S}" for at in (deadline_unix_s, end))
    return f"may not be done by {when} (expected {expect})"


def _in_time(turn: TurnMessage, deadline_unix_s: float) -> bool:
    return turn.end_unix_s is not None and turn.end_unix_s - deadline_unix_s < _LATE_S


def _expected_late(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> bool:
    """Whether its lateness says already when it is expected."""
    told = now.timestamp() <= deadline_unix_s and not turn.late and turn.end_unix_s is not None
    return told and not _in_time(turn, deadline_unix_s)


def expected(turn: TurnMessage, now: datetime) -> str:
    """`done about 17:50 (between 17:42 and 17:59)`; empty: nobody can tell."""
    if turn.end_unix_s is None:
        return ""
    low = turn.end_low_unix_s if turn.end_low_unix_s is not None else turn.end_unix_s
    # What waits is done before the latest time for it to begin, where Wi-Fi comes as it is expected to.
    found = f"{'' if turn.networks else 'expected '}done about {instant(turn.end_unix_s, now)}"
    if turn.end_high_unix_s is None:
        return f"{found}, or much later"
    if turn.end_high_unix_s - low < 2.0:
        return found
    return f"{found} (between {instant(low, now)} and {instant(turn.end_high_unix_s, now)})"


def instant(unix_s: float, now: datetime) -> str:
    """`17:42:05` within some minutes, `17:42` today, `tomorrow 8:00`, `Fri 8:00`, `12-24 08:00`."""
    at = datetime.fromtimestamp(unix_s)
    if abs((at - now).total_seconds()) < 600.0:
        return f"{at:%H:%M:%S}"
    if at.date() == now.date():
        return f"{at:%H:%M}"
    if at.date() == (now + timedelta(days=1)).date():
        return f"tomorrow {at:%H:%M}"
    if timedelta(0) < at - now < timedelta(days=6):
        return f"{at:%a %H:%M}"
    return f"{at:%Y-%m-%d %H:%M}"


def at_instant(unix_s: float, now: datetime) -> str:
    """As `instant`, to stand behind a verb: `at 17:42`, `tomorrow 8:00`."""
    text = instant(unix_s, now)
    return f"at {text}" if text[0].isdigit() else text


def _before(turn: TurnMessage, deadline_unix_s: float) -> str:
    """How long before its deadline a metered network begins: the minute alone may be the same."""
    assert turn.begin_unix_s is not None
    left_s = deadline_unix_s - turn.begin_unix_s
    return f", {left_s:.0f} s before its deadline" if 0.0 < left_s < 120.0 else ""


def _doing(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    spare = " or ".join(turn.spare)
    if not turn.networks:
        if not turn.first:
            return "waiting for transfers that are wanted earlier"
        if turn.free_up:
            return "waiting for others that are wanted by the same time"
        if not spare:
            return "waiting for a network"
        if turn.begin_unix_s is None:
            return "waiting for Wi-Fi"
        begins = "goes on" if turn.begun else "begins"
        at = instant(turn.begin_unix_s, now)
        before = _before(turn, deadline_unix_s)
        return f"waiting for Wi-Fi, {begins} at the latest {at} over {spare}{before}"
    over = " and ".join(turn.networks)
    if turn.metered:
        if lateness(turn, deadline_unix_s, now):  # so may be all that is there
            return f"over {over}"
        why = "Wi-Fi alone may be too late" if turn.free_up else "waiting longer may be too late"
        return f"over {over}: {why}"
    if spare and turn.begin_unix_s is not None:
        at = at_instant(turn.begin_unix_s, now)
        joins = f"would join{' again' * turn.begun} {at}"
        return f"over {over}, {spare} {joins}{_before(turn, deadline_unix_s)}"
    return f"over {over}"
