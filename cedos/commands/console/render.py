"""Formats for people: units, ages, tables."""

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from cedos.budget_kinds import Resource
from cedos.model import SizeEstimate, Strategy, StrategyKind
from cedos.plain_text import plain, plain_json, round_figures

UNKNOWN = "-"

_NO_BREAK: Final = "\N{NO-BREAK SPACE}"
# The longest line of sentences: longer ones are hard to read.
_WIDTH: Final = 100
# The least width of a terminal that output is fitted to.
_LEAST: Final = 40


def print_json(value: object) -> None:
    click.echo(plain_json(value, indent=2))


class JsonFiles:
    """The JSON of a command's files, printed as they come: a server may have a million.

    Nothing else goes to standard output until `end`.
    """

    _BEGIN: Final = '{\n  "files": ['
    _END: Final = "\n  ]"

    def __init__(self) -> None:
        self._between = self._BEGIN + "\n"

    def add(self, fact: Mapping[str, object]) -> None:
        text = plain_json({"files": [fact]}, indent=2)
        one = text.removeprefix(self._BEGIN + "\n").removesuffix(self._END + "\n}")
        click.echo(self._between + one, nl=False)
        self._between = ",\n"

    def end(self, errors_left_out: int = 0) -> None:
        """End the object; `errors_left_out`: failures that were counted alone."""
        empty = self._between.startswith(self._BEGIN)
        more = f',\n  "errors_left_out": {errors_left_out}' if errors_left_out else ""
        click.echo((f"{self._BEGIN}]" if empty else self._END) + f"{more}\n}}")


def echo(text: object, *, err: bool = False) -> None:
    """Print one line. It may contain names from elsewhere."""
    click.echo(plain(str(text)), err=err)


def show(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines. They may contain names from elsewhere."""
    click.echo("\n".join(map(plain, lines)), err=err)


def tell(facts: object, lines: Iterable[str], *, as_json: bool) -> None:
    """Print facts as JSON, or the lines for people."""
    if as_json:
        print_json(facts)
    else:
        show(lines)


def duration(seconds: float | None) -> str:
    """Format a duration: `23 ms`, `4.5 s`, `3 min`, `2 h`, `5 d`."""
    if seconds is None:
        return UNKNOWN
    if abs(seconds) < 0.9995:
        return f"{seconds * 1000:.3g} ms" if abs(seconds) >= 0.001 else "0 ms"
    if abs(seconds) < 9.95:
        return f"{seconds:.1f} s"
    for limit, unit, divisor in ((99.5, "s", 1), (5970, "min", 60), (172_000, "h", 3600)):
        if abs(seconds) < limit:
            return f"{seconds / divisor:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def age(seconds: float) -> str:
    """Format an age in whole seconds: `under 1 s`, `5 s`, `3 min`."""
    if seconds < 0.95:
        return "under 1 s"
    return duration(seconds) if seconds >= 9.95 else f"{seconds:.0f} s"


def format_ago(seconds: float) -> str:
    """Format a time in the past: `just now`, `5 s ago`."""
    return "just now" if seconds < 0.95 else f"{age(seconds)} ago"


def worth(seconds: float) -> str:
    """Format a price in seconds; a tiny one is not shown as zero."""
    return "under 1 ms" if seconds < 0.001 else duration(seconds)


def local_time(unix_s: float) -> datetime:
    """Return a local time, or that of UTC where a zone's would lie before the year 1 or after 9999."""
    universal = datetime.fromtimestamp(0, UTC) + timedelta(seconds=unix_s)
    with suppress(OverflowError, ValueError, OSError):
        return universal.astimezone()
    return universal


def instant(unix_s: float) -> str:
    """Format a local time to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def sentence(text: str) -> str:
    """Add the full stop that the last sentence of a reason lacks."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _scale(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} {units[-1]}"


def size(number: float | None) -> str:
    """Format bytes in powers of 1000: `3.0 kB`."""
    return UNKNOWN if number is None else _scale(number, ("B", "kB", "MB", "GB", "TB"))


def networks(sizes: Mapping[str, int]) -> str:
    """Format bytes by network, most first: `lte0 1 GB, wlan0 5 B`."""
    most = sorted(sizes.items(), key=lambda each: -each[1])
    return ", ".join(f"{network} {size(carried)}" for network, carried in most)


def energy(joules: float | None) -> str:
    """Format joules in powers of 1000: `20 kJ`."""
    return UNKNOWN if joules is None else _scale(joules, ("J", "kJ", "MJ"))


def amount(value: float, resource: str) -> str:
    """Format an amount of a budget of `data`, `energy` or `money`."""
    symbols = Resource(resource).unit.symbols
    return _scale(value, symbols) if symbols else number(value)


def rate(bits_per_s: float | None) -> str:
    """Format a bit rate: `23.4 Mbit/s`."""
    if bits_per_s is None:
        return UNKNOWN
    return _scale(bits_per_s, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"))


def number(value: float | None, unit: str = "") -> str:
    """Format a number with three significant digits, and all digits before its point."""
    if value is None:
        return UNKNOWN
    text = f"{value:.3g}" if abs(value) > 1e15 else round_figures(value, 3)
    return f"{text} {unit}".rstrip()


def cost(value: float | None) -> str:
    """Format a strategy's cost; a spent budget makes it prohibitive."""
    return "kept back by a budget" if value is not None and value > 1e15 else number(value)


_UNITS: Final = {"dbm": "dBm", "db": "dB", "mps": "m/s"}

_OBJECTIVES: Final = {"budgets": "at the prices that your budgets set"}


def objective(name: str) -> str:
    """Format the objective of a decision: `[decision] objective`, or the budgets' prices."""
    return _OBJECTIVES.get(name, f"objective {name}")


# The order of windows, by length.
_ORDER: Final = (
    "past1_bps",
    "past5_bps",
    "past10_bps",
    "past1_up_bps",
    "past5_up_bps",
    "past10_up_bps",
)

_NAMES: Final = {
    "available": "reachable",
    "ap_count": "access points heard",
    "captive": "log-in needed",
    "chan_util": "channel in use",
    "cqi": "CQI",
    "delivery_down_bps": "download, best lately",
    "delivery_up_bps": "upload, best lately",
    "dns_s": "DNS answer",
    "link_bps": "radio link",
    "past1_bps": "download, last 1 s",
    "past1_up_bps": "upload, last 1 s",
    "past5_bps": "download, last 5 s",
    "past5_up_bps": "upload, last 5 s",
    "past10_bps": "download, last 10 s",
    "past10_up_bps": "upload, last 10 s",
    "ping_loss": "pings lost",
    "recent_bytes": "last small transfer",
    "recent_s": "time it took",
    "rsrp_dbm": "RSRP",
    "rsrq_db": "RSRQ",
    "rssi_dbm": "RSSI",
    "rtt_min_s": "lowest RTT",
    "rtt_s": "RTT",
    "silence_s": "no reply for",
    "sinr_db": "SINR",
    "speed_mps": "moving at",
}


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of indicators, with windows by length."""
    named = sorted(names)
    windows = iter([each for each in _ORDER if each in named])
    return [next(windows) if each in _ORDER else each for each in named]


def worth_telling(name: str, value: float | None) -> bool:
    """Return whether an indicator is shown: a silence of zero is not."""
    return name != "silence_s" or value is None or value > 0.0


def indicator_name(name: str) -> str:
    """Return the usual name of an indicator, or its name in `--json`."""
    return _NAMES.get(name, name)


def indicator(name: str, value: float | None) -> str:
    """Format an indicator with the unit that its name ends in."""
    unit = name.rpartition("_")[2]
    if unit == "s":
        return duration(value)
    if unit == "bps":
        return rate(value)
    if unit == "bytes":
        return size(value)
    if name.endswith("loss") or name == "chan_util":
        return UNKNOWN if value is None else percent(value)
    if name in ("available", "captive"):
        return UNKNOWN if value is None else ("yes" if value else "no")
    return number(value, _UNITS.get(unit, ""))


def strategy(chosen: Strategy | None) -> str:
    if chosen is None:
        return UNKNOWN
    first, *others = chosen.networks or ("",)
    match chosen.kind:
        case StrategyKind.SINGLE:
            return first
        case StrategyKind.MPTCP:
            return f"{first} + {' + '.join(others)} (together)"
        case StrategyKind.REDUNDANT:
            return f"{' + '.join(chosen.networks)} (sent twice)"
        case StrategyKind.DEFER:
            return "later"


_SOURCES: Final = {
    "content-length": "as its header says",
    "default": "assumed",
    "hint": "as the program said",
    "history": "from earlier transfers",
    "progress": "as much as is left of it",
}


def estimate(guess: SizeEstimate) -> str:
    """Format a size: `about 3 kB (1 kB to 9 kB), from earlier transfers`."""
    source = _SOURCES.get(guess.source, f"by {guess.source}")
    if guess.low_bytes == guess.high_bytes:
        return f"{size(guess.median_bytes)}, {source}"
    return (
        f"about {size(guess.median_bytes)}"
        f" ({size(guess.low_bytes)} to {size(guess.high_bytes)}), {source}"
    )


def columns() -> int | None:
    """Return the width of the terminal; None: standard output is a file or a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return max(int(given), _LEAST)
    try:
        width = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return None
    return max(width, _LEAST) if width else None


def wrap(text: str, indent: str = "", hanging: str = "") -> list[str]:
    """Return sentences as lines that fit the terminal; no word is broken.

    `hanging`: further indentation of all lines but the first.
    """
    return textwrap.wrap(
        text,
        min(columns() or _WIDTH, _WIDTH),
        initial_indent=indent,
        subsequent_indent=indent + hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )


def format_list(words: Iterable[str], lead: str = "", indent: str = "") -> list[str]:
    """Return `lead` and words with semicolons as lines that fit; each of the words is on one line."""
    room = min(columns() or _WIDTH, _WIDTH) - len(indent) - 3
    text = "; ".join(each.replace(" ", _NO_BREAK) if len(each) < room else each for each in words)
    return [line.replace(_NO_BREAK, " ") for line in wrap(lead + text, indent, "  ")]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return the lines of a table with left-aligned columns, as `rows_of_table` does."""
    return [line for row in rows_of_table(header, rows, indent) for line in row]


def rows_of_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = ""
) -> list[list[str]]:
    """Return the lines of the header, and of each row, of a table with left-aligned columns.

    Columns at the right end that do not fit the terminal follow below their row: `HEADER value`.
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    limit = columns()
    # The columns that fit side by side: at least the first one.
    fits = len(header)
    while (
        limit is not None and fits > 1 and len(indent) + sum(widths[:fits]) + 2 * fits - 2 > limit
    ):
        fits -= 1
    shown = []
    for number, line in enumerate(lines):
        side_by_side = "  ".join(map(str.ljust, line[:fits], widths)).rstrip()
        shown.append(wrap(side_by_side, indent, "  ") if fits == 1 else [indent + side_by_side])
        if number:
            rest = zip(header[fits:], line[fits:], strict=True)
            told = [f"{title} {value}" for title, value in rest if value not in ("", UNKNOWN)]
            shown[-1] += format_list(told, indent=f"{indent}    ")
    return shown
