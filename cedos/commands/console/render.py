"""Facts as people read them: units, ages, tables."""

from collections.abc import Iterable, Sequence

import click
import msgspec

from cedos.model import SizeEstimate, Strategy, StrategyKind

UNKNOWN = "-"


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def plain(text: str) -> str:
    """A name that others gave: nothing in it moves the cursor or begins a line."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def duration(seconds: float | None) -> str:
    """`23 ms`, `4.5 s`, `3 min`, `2 h`, `5 d`."""
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


def worth(seconds: float) -> str:
    """A price in seconds; what rounds to nothing is still one."""
    return "next to nothing" if seconds < 0.001 else duration(seconds)


def _scaled(value: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.4g} {units[-1]}"


def size(number: float | None) -> str:
    """`3.0 kB`, in powers of 1000."""
    return UNKNOWN if number is None else _scaled(number, ("B", "kB", "MB", "GB", "TB"))


def energy(joules: float | None) -> str:
    """`20 kJ`, in powers of 1000."""
    return UNKNOWN if joules is None else _scaled(joules, ("J", "kJ", "MJ"))


def amount(value: float, resource: str) -> str:
    """What a budget of `data`, `energy` or `money` has or spends."""
    return {"data": size, "energy": energy, "money": number}[resource](value)


def rate(bits_per_s: float | None) -> str:
    """`23.4 Mbit/s`."""
    if bits_per_s is None:
        return UNKNOWN
    return _scaled(bits_per_s, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s"))


def number(value: float | None, unit: str = "") -> str:
    """A number with three digits that matter, and never fewer than are before its point."""
    if value is None:
        return UNKNOWN
    # What is prohibitive is no figure to read: it keeps its power of ten.
    text = f"{value:.0f}" if 999.5 <= abs(value) <= 1e15 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


_UNITS = {"dbm": "dBm", "db": "dB", "mps": "m/s"}


def indicator(name: str, value: float | None) -> str:
    """An indicator's value with the unit that its name ends in."""
    unit = name.rpartition("_")[2]
    if unit == "s":
        return duration(value)
    if unit == "bps":
        return rate(value)
    if name.endswith("loss") or name == "chan_util":
        return UNKNOWN if value is None else f"{value:.0%}"
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
            return f"{first} + {' + '.join(others)} (MPTCP)"
        case StrategyKind.REDUNDANT:
            return f"the same on {' and '.join(chosen.networks)}"
        case StrategyKind.DEFER:
            return "not now"


def estimate(guess: SizeEstimate) -> str:
    """`about 3 kB (1 kB to 9 kB), by history`."""
    if guess.low_bytes == guess.high_bytes:
        return f"{size(guess.median_bytes)}, by {guess.source}"
    return (
        f"about {size(guess.median_bytes)}"
        f" ({size(guess.low_bytes)} to {size(guess.high_bytes)}), by {guess.source}"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Lines of columns aligned to the left, each as wide as its widest cell."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return [f"{indent}{'  '.join(map(str.ljust, line, widths))}".rstrip() for line in lines]
