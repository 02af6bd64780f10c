"""What a transfer waits for, or does, and why: one sentence (`cedos-get`, `cedos transfers`)."""

from datetime import datetime, timedelta

from cedos.api.transfers import TurnMessage


def sentence(turn: TurnMessage, deadline_unix_s: float, now: datetime, *, done: bool = True) -> str:
    """Without a stop. `done`: with when it is expected to be done."""
    parts = [_doing(turn, deadline_unix_s, now)]
    if turn.late:
        passed = now.timestamp() > deadline_unix_s
        when = instant(deadline_unix_s, now)
        likely = turn.end_unix_s is not None and turn.end_unix_s <= deadline_unix_s
        hope = f"{'may not' if likely else 'cannot'} be done by {when}"
        parts.append(f"wanted by {when}, which has passed" if passed else hope)
    if done and (end := expected(turn, now)):
        parts.append(end)
    return "; ".join(parts)


def expected(turn: TurnMessage, now: datetime) -> str:
    """`done about 17:50 (between 17:42 and 17:59)`; empty: nobody can tell."""
    if turn.end_unix_s is None:
        return ""
    low = turn.end_low_unix_s if turn.end_low_unix_s is not None else turn.end_unix_s
    found = f"done about {instant(turn.end_unix_s, now)}"
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


def _begins(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    """When a metered network must begin; the minute alone may be that of the deadline."""
    assert turn.begin_unix_s is not None
    begin = instant(turn.begin_unix_s, now)
    at = f"at {begin}" if begin[0].isdigit() else begin
    left_s = deadline_unix_s - turn.begin_unix_s
    return f"{at}, {left_s:.0f} s before its deadline" if 0.0 < left_s < 120.0 else at


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
        begins = _begins(turn, deadline_unix_s, now)
        return f"waiting for Wi-Fi, without it begins over {spare} {begins}"
    over = " and ".join(turn.networks)
    if turn.metered:
        why = "Wi-Fi alone may be too late" if turn.free_up else "waiting longer may be too late"
        return f"over {over}: {why}"
    if spare and turn.begin_unix_s is not None:
        return f"over {over}, {spare} would join {_begins(turn, deadline_unix_s, now)}"
    return f"over {over}"
