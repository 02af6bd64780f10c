"""Scenarios: an experiment as a TOML file that people write, and as a run keeps it, with all defaults."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from cedos.config import toml_file
from cedos.config.toml_file import Key, key_lines
from cedos.errors import ConfigError
from emu import policies
from emu.places.places import Place
from emu.workloads.mixed import DAY_S, Load, Name, Seconds


class PageLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[page]]`: generated sites, visited in a browser one after another.

    Each of `sites` sites has one page; visits are about `every_s` apart, in a seeded order.
    """

    name: Name
    sites: Annotated[int, Meta(ge=1, le=200)] = 12
    every_s: Annotated[float, Meta(ge=0.5)] = 8.0


class VideoLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[video]]`: `play_s` of video, opened in a browser `at_s` into the run.

    `bitrate_bps` is one of `bitrates_bps`; without it the player adapts to its buffer, which holds
    `buffer_s` at most.
    """

    name: Name
    at_s: Annotated[float, Meta(ge=0)] = 1.0
    play_s: Annotated[float, Meta(ge=2, le=600)] = 40.0
    segment_s: Annotated[float, Meta(ge=1, le=20)] = 4.0
    bitrates_bps: Annotated[tuple[int, ...], Meta(min_length=1)] = (700_000, 2_000_000, 5_000_000)
    bitrate_bps: int | None = None
    buffer_s: float = 12.0

    def __post_init__(self) -> None:
        if list(self.bitrates_bps) != sorted(set(self.bitrates_bps)) or self.bitrates_bps[0] <= 0:
            raise ValueError("bitrates_bps must ascend from above 0")
        if self.bitrate_bps is not None and self.bitrate_bps not in self.bitrates_bps:
            raise ValueError(f"bitrate_bps must be one of {list(self.bitrates_bps)}")
        if self.buffer_s < 2 * self.segment_s:
            raise ValueError("buffer_s must hold two segments")


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment: a place, a part of its time, a load, and policies."""

    load: tuple[Load, ...] = ()
    page: tuple[PageLoad, ...] = ()
    video: tuple[VideoLoad, ...] = ()
    name: Name = "run"
    place: Annotated[str, Meta(max_length=255)] = ""  # "": the first one of the collection
    # Run at each of these, from starts drawn by the seed (`emu.runs.series`).
    places: tuple[str, ...] = ()
    start_s: Seconds = 0.0
    duration_s: Seconds = 0.0  # 0: to the end of the place; beyond the end, traces repeat
    warm_up_s: Seconds = 4.0
    # A transfer that takes longer is cut off, and counts as unfinished (censored).
    limit_s: Annotated[float, Meta(ge=0.1, le=DAY_S)] = 30.0
    # `mahimahi` runs real programs in real time; `simulator` computes their transfers.
    engine: Literal["mahimahi", "simulator"] = "mahimahi"
    # Run all policies so many times, each time with the next seed.
    repeats: Annotated[int, Meta(ge=1, le=1000)] = 1
    seed: int = 1
    policies: Annotated[
        tuple[str, ...], Meta(min_length=1, description="a list of one policy or more")
    ] = ("wifi-first", "cellular-only", "mptcp-wifi", "mptcp-cellular", "cedos")
    policy: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        if not (self.load or self.page or self.video):
            raise ValueError("nothing to do: it needs a [[load]], a [[page]] or a [[video]]")
        if self.engine == "simulator" and (self.page or self.video):
            raise ValueError("the simulator carries [[load]] only")


def read(file: Path) -> Scenario:
    """Read a scenario; ConfigError names the file, the key, and what would be right."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"there is no scenario {file} ({error.strerror})") from error
    found = toml_file.read(file, Scenario)
    wrong: dict[Key, str] = {
        ("policy", name): policies.unknown(name)
        for name in found.policy
        if name not in policies.names()
    }
    for name, settings in found.policy.items():
        if name in policies.names():
            problems = policies.wrong_settings(name, settings).items()
            wrong |= {("policy", name, *filter(None, [key])): why for key, why in problems}
    if wrong:
        lines = key_lines(text)
        raise ConfigError(
            "\n".join(f"{file}:{lines.get(key, 1)}: {why}" for key, why in wrong.items())
        )
    return found


def checked(scenario: Scenario) -> Scenario:
    """Check a scenario that the command line has changed, as one in a file is checked, and return it."""
    try:
        return msgspec.convert(msgspec.to_builtins(scenario), Scenario)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ConfigError(f"{where.rstrip('`') or 'this scenario'}: {what}") from error


def decisive_s(place: Place, duration_s: float) -> float:
    """Return the start (whole seconds) of a window of `duration_s` in which Wi-Fi matters and then fails.

    It maximises the mean Wi-Fi rate of the window's first third, times the fall of the second half below
    that (by its fourth power, so that deep falls count most). 0: the place is not longer than the
    window.
    """
    rates = place.wifi.down.repeated(place.common_s).bins(1.0)[: place.common_s]
    length = int(np.ceil(duration_s))
    third, half = max(1, length // 3), max(1, length // 2)
    best_s, best = 0, -np.inf
    for start in range(len(rates) - length + 1):
        window = rates[start : start + length]
        before = float(window[:third].mean())
        fall = np.clip(1.0 - window[-half:] / max(before, 1.0), 0.0, 1.0)
        worth = before * float((fall**4).mean())
        if worth > best:
            best_s, best = start, worth
    return float(best_s)
