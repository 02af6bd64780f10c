"""Amounts and times in the form that people write: `4GB`, `90min`, `18:00`, `tomorrow`, `2026-12-01`."""

import re
from datetime import date, datetime, timedelta
from typing import Final

from cedos.budget_kinds import Resource
from cedos.model import end_wrong

_BYTES: Final = {
    "": 1,
    **{f"{prefix}B": 1000**number for number, prefix in enumerate(("", "k", "M", "G", "T"))},
    **{f"{prefix}iB": 1024**number for number, prefix in enumerate("KMGT", start=1)},
}
_JOULES: Final = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "mWh": 3.6}
_SIZE: Final = 'a size such as "4GB", "500 MB" or "1.5GiB"'
_SECONDS: Final = {
    "": 1.0,
    "s": 1.0,
    "ms": 0.001,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 7 * 86_400.0,
}
_LONGEST_S: Final = 1e9
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_EARLIEST: Final = datetime(1981, 1, 1)
# The hour that a date without a time means.
MORNING_HOUR: Final = 8
# Times of day and dates. They mean the same when they are read again later.
_LASTING = re.compile(r"\d{1,2}:\d{2}$|\d{4}-\d{2}-\d{2}")
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_MOST = 1e15
# From this number on, a size without a unit is meant in bytes: "4" is likely gigabytes.
PLAINLY_BYTES: Final = 1e6


def size_bytes(text: str) -> float:
    """Parse a size. ValueError: the message has what would be right.

    A size without a unit is in bytes, as programs print it, and at least a million. Smaller ones
    are refused, because people who omit the unit mean megabytes or gigabytes.
    """
    if re.fullmatch(r"\s*[\d.]+\s*", text) and _amount(text, _BYTES, _SIZE) < PLAINLY_BYTES:
        number = text.strip()
        raise ValueError(
            f'"{number}": a size needs a unit: "{number}GB", "{number}MB" or "{number} B"'
        )
    return _amount(text, _BYTES, _SIZE)


def joules(text: str) -> float:
    """Parse joules. ValueError: the message has what would be right."""
    return _amount(text, _JOULES, 'an energy such as "5000J", "20 kJ" or "12Wh"')


def money(text: str) -> float:
    """Parse an amount of the user's currency. ValueError: the message has what would be right."""
    return _amount(text, {"": 1.0}, 'an amount of money such as "20" or "7.50"')


# The parser of amounts for each resource.
READERS: Final = {Resource.DATA: size_bytes, Resource.ENERGY: joules, Resource.MONEY: money}


def seconds(text: str) -> float:
    """Parse a duration: `4`, `500ms`, `2min` or `2m`, `1h30min`, `1d`, `1w`. ValueError."""
    parts = re.findall(r"(\d+(?:\.\d+)?) ?(ms|min|m|s|h|d|w|)", text.strip())
    whole = "".join(re.escape(number) + " ?" + unit + r"\s*" for number, unit in parts)
    total = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if (
        not parts
        or not re.fullmatch(whole, text.strip())
        or (len(parts) > 1 and not all(unit for _, unit in parts))
        or not 0.0 < total <= _LONGEST_S
    ):
        raise ValueError(f'"{text}" is no duration such as 4, 500ms, 2min, 1h30min or 1d')
    return total


def by(text: str, now: datetime) -> datetime:
    """Parse a deadline; return local time without a zone.

    A duration counts from now. A time of day is the next one. A day alone means 8:00: `tomorrow`,
    `friday`, `2026-12-01`; `tomorrow 18:00` has its own time. ValueError: the message has what
    would be right.
    """
    text = " ".join(text.split())
    try:
        found = _parse_time(text, now, MORNING_HOUR)
    except (ValueError, OverflowError):
        raise ValueError(
            f'"{text}" is no time: write "18:00", "30min", "2h", "tomorrow", "friday 09:00" or'
            ' "2026-12-01 18:00" (local time)'
        ) from None
    if why := end_wrong(found):
        raise ValueError(f'"{text}": {why}')
    if found <= now:
        raise ValueError(f'"{text}" has passed: it is {now:%Y-%m-%d %H:%M} now')
    return found


def _parse_time(text: str, now: datetime, day_hour: int) -> datetime:
    """Parse a time; `day_hour` is the hour of a day without a time. ValueError, OverflowError."""
    lower = text.lower()
    day, _, time_of_day = lower.partition(" ")
    named = ["today", "tomorrow"].index(day) if day in {"today", "tomorrow"} else None
    if named is None and len(day) >= 3:
        number = next((n for n, name in enumerate(_DAYS) if name.startswith(day)), None)
        if number is not None:
            named = (number - now.weekday()) % 7 or 7
    if named is None and re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
        named = (date.fromisoformat(day) - now.date()).days
    if named is not None and (day != "today" or time_of_day):
        hour, minute = day_hour, 0
        if time_of_day:
            if not re.fullmatch(r"\d{1,2}:\d{2}", time_of_day):
                raise ValueError(time_of_day)
            hour, minute = map(int, time_of_day.split(":"))
        midnight = datetime.combine(now.date(), datetime.min.time(), now.tzinfo)
        return (midnight + timedelta(days=named)).replace(hour=hour, minute=minute)
    if re.match(r"[\d.]+ ?(ms|min|m|s|h|d|w)", lower):
        return now + timedelta(seconds=seconds(lower))
    if re.fullmatch(r"\d{1,2}:\d{2}", text):
        hour, minute = map(int, text.split(":"))
        found = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return found if found > now else found + timedelta(days=1)
    return datetime.fromisoformat(text)


def parse_past(text: str, now: datetime) -> datetime:
    """Parse a time in the past: a duration ago, or a date with or without a time. Return local time.

    ValueError: the message has what would be right.
    """
    text = text.strip()
    try:
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}.*", text):
            found = datetime.fromisoformat(text)
        elif text[-1:].isalpha():
            found = now - timedelta(seconds=seconds(text))
        else:  # a number without a unit
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f'"{text}" is no time: write "7d", "24h", "2026-11-01" or "2026-11-01 08:00" (local time)'
        ) from None
    if found.tzinfo is not None:
        raise ValueError(f'"{text}": leave the zone out, it is the local time')
    if found < _EARLIEST:
        raise ValueError(f'"{text}" is too long ago')
    if found > now:
        raise ValueError(f'"{text}" is in the future: it is {now:%Y-%m-%d %H:%M} now')
    return found


def parse_end(text: str, now: datetime, *, kept: bool = False) -> datetime:
    """Parse the end of a period; return local time without a zone.

    The forms are those of `by`, but a day alone means its first midnight. `kept`: the text stays
    in a file, where a duration would never end, so durations are refused. ValueError: the message
    has what would be right.
    """
    text = " ".join(text.split())
    try:
        if kept and not _LASTING.match(text):
            raise ValueError(text)
        found = _parse_time(text, now, 0)
    except (ValueError, OverflowError):
        others = "" if kept else '"tomorrow 18:00", "30d", '
        raise ValueError(
            f'"{text}" is no time: write "18:00", {others}"2026-12-01" or "2026-12-01 08:00"'
            " (local time)"
        ) from None
    if why := end_wrong(found):
        raise ValueError(f'"{text}": {why}')
    return found


def _amount(text: str, units: dict[str, float] | dict[str, int], right: str) -> float:
    if text.lstrip().startswith("-"):
        raise ValueError(f'"{text}": an amount is positive: {right}')
    match = _AMOUNT.fullmatch(text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    factor = None
    if match is not None:
        factor = units.get(match[2]) or by_lower.get(match[2].lower())
    if match is None or factor is None:
        raise ValueError(f'"{text}": write {right}')
    if float(match[1]) * factor > _MOST:
        raise ValueError(f'"{text}" is too much: write {right}')
    return float(match[1]) * factor
