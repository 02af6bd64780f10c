"""Which period of a budget an instant lies in: by the calendar on the wall, where bills are written."""

from calendar import monthrange
from datetime import datetime, timedelta, tzinfo
from typing import NamedTuple

from cedos.model import Budget, Every

_DAYS = {Every.DAY: 1, Every.WEEK: 7}
_MONTHS = {Every.MONTH: 1, Every.YEAR: 12}


class Period(NamedTuple):
    """From its first instant to that of the next one, in seconds since the epoch."""

    begins_s: float
    ends_s: float


def period_at(budget: Budget, now_s: float, zone: tzinfo | None = None) -> Period:
    """The period of a budget at an instant; one that does not recur has only one.

    `budget`: what recurs; where it does not, `since` (or, unknown, the epoch) is its beginning.
    `zone`: of the wall; None: this host's.
    """
    until = datetime.fromisoformat(budget.until)
    if budget.every is None:
        begins_s = stamp(datetime.fromisoformat(budget.since), zone) if budget.since else 0.0
        return Period(begins_s, stamp(until, zone))
    ends = _number(until, budget.every, wall(now_s, zone))
    begin = later(until, budget.every, ends - 1)
    return Period(stamp(begin, zone), stamp(later(until, budget.every, ends), zone))


def later(until: datetime, every: Every, times: int) -> datetime:
    """So many recurrences after `until`, or before; a month too short has its last day."""
    if days := _DAYS.get(every):
        return until + timedelta(days=days * times)
    months = until.year * 12 + until.month - 1 + _MONTHS[every] * times
    year, month = divmod(months, 12)
    return until.replace(
        year=year, month=month + 1, day=min(until.day, monthrange(year, month + 1)[1])
    )


def wall(now_s: float, zone: tzinfo | None = None) -> datetime:
    """What the clock on the wall shows, without its zone."""
    return datetime.fromtimestamp(now_s, zone).replace(tzinfo=None)


def stamp(shown: datetime, zone: tzinfo | None = None) -> float:
    """Seconds since the epoch when the clock on the wall shows this."""
    return shown.replace(tzinfo=zone).timestamp()


def _number(until: datetime, every: Every, now: datetime) -> int:
    """How many recurrences after `until` the period ends that `now` lies in; may be negative."""
    if days := _DAYS.get(every):
        return (now - until) // timedelta(days=days) + 1
    guess = ((now.year - until.year) * 12 + now.month - until.month) // _MONTHS[every]
    while later(until, every, guess) <= now:
        guess += 1
    while later(until, every, guess - 1) > now:
        guess -= 1
    return guess
