"""The battery's charge as the kernel tells it (Documentation/ABI/testing/sysfs-class-power)."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SUPPLIES: Final = Path("/sys/class/power_supply")


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a host on battery power: a share of a full one, and seconds until it is empty."""

    level: float
    lasts_s: int | None = None


def read_charge(supplies: Path = _SUPPLIES) -> Charge | None:
    """Return the charge of the host's own battery; None: it has none, or mains power."""
    if not supplies.is_dir():
        return None
    for supply in sorted(supplies.iterdir()):
        # Batteries of mice and the like have the scope Device.
        if _word(supply / "type") != "Battery" or _word(supply / "scope") == "Device":
            continue
        level = _number(supply / "capacity")
        if level is None or _word(supply / "status") != "Discharging":
            continue
        return Charge(min(level, 100) / 100, _lasts_s(supply))
    return None


def _lasts_s(supply: Path) -> int | None:
    # In microwatt-hours and microwatts, else in microampere-hours and microamperes.
    for stored, drawn in (("energy_now", "power_now"), ("charge_now", "current_now")):
        left, rate = _number(supply / stored), _number(supply / drawn)
        if left is not None and rate:
            return 3600 * left // rate
    return None


def _word(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int | None:
    word = _word(file).removeprefix("-")  # some drivers count what is drawn below zero
    return int(word) if word.isascii() and word.isdecimal() else None
