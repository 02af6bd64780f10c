"""Collections of places: a folder with `places.csv`, `wifi/` and `cellular/`.

A place is one Wi-Fi and one cellular trace that are replayed together. `NAME.trace[.gz]` is one
direction used for both, `NAME.down[.gz]` with `NAME.up[.gz]` are both directions, and `NAME.csv` is
the series of indicators beside them. Traces and series are read when they are first asked for.
"""

import csv
import difflib
import hashlib
import math
import random
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from cedos.errors import PlaceError
from cedos.host.monitor.providers import series_file
from cedos.host.monitor.providers.series_file import SeriesFile
from cedos.model import NetworkKind
from cedos.plain_text import plain
from emu import ROOT
from emu.places.traces import LONGEST_S, Trace

T = TypeVar("T")
_UNNAMEABLE = frozenset("/\0\n")
_REQUIRED = ("place", "wifi", "cellular")
# Base RTTs of places without a measured one: median, standard deviation of the logarithm, and
# bounds.
_RTT_DRAWS_S = {
    NetworkKind.WIFI: (0.018, 0.5, 0.006, 0.080),
    NetworkKind.CELLULAR: (0.050, 0.4, 0.030, 0.140),
}
_RTT_BOUNDS_S = (0.0001, 10.0)


@dataclass(frozen=True)
class AccessTrace:
    """A network of a place: its delivery opportunities per direction, and its indicators.

    `up_path` is `down_path` where one direction was measured for both; `given_rtt_s` is what places.csv
    states; an unknown base RTT is drawn from the name of the `place`.
    """

    name: str
    kind: NetworkKind
    down_path: Path
    up_path: Path
    series_path: Path | None
    given_rtt_s: float | None
    place: str

    @cached_property
    def down(self) -> Trace:
        """Delivery opportunities towards the client; TraceError where the file is no trace."""
        return Trace.read(self.down_path)

    @cached_property
    def up(self) -> Trace:
        """Delivery opportunities from the client; the same object as `down` where measured once."""
        return self.down if self.up_path == self.down_path else Trace.read(self.up_path)

    @cached_property
    def series(self) -> SeriesFile:
        """The indicators; empty where none were measured. PlaceError where the CSV is broken."""
        return SeriesFile() if self.series_path is None else series_file.read(self.series_path)

    @cached_property
    def _rtt(self) -> tuple[float, str]:
        if self.given_rtt_s is not None:
            return self.given_rtt_s, "given"
        if measured := self.series.known_values("rtt_ms"):
            return statistics.median(measured) / 1e3, "measured"
        return drawn_rtt_s(self.place, self.kind), "drawn"

    @property
    def rtt_s(self) -> float:
        """The base round-trip time in seconds, queueing not included."""
        return self._rtt[0]

    @property
    def rtt_source(self) -> str:
        """The source of `rtt_s`: `given` in places.csv, `measured` in the series, or `drawn`."""
        return self._rtt[1]

    def second_before(self, t_s: float) -> int:
        """Return the last second of the trace that is over at `t_s` of a replay, which wraps around.

        Never the current second: what it delivers tells the future.
        """
        period_s = self.down.period_s
        second = math.floor(t_s % period_s) - 1
        return second if second >= 0 else math.ceil(period_s) - 1

    def indicators_at(self, t_s: float) -> dict[str, float]:
        """Return the indicators known `t_s` seconds into a replay, named as in `cedos.model.Context`.

        It is the row of the second that completed last (`second_before`); unknown ones are absent.
        """
        if self.series.seconds == 0:
            return {}
        second = self.second_before(t_s)
        return self.series.indicators(second) if second < self.series.seconds else {}


@dataclass(frozen=True)
class Place:
    """A place: one Wi-Fi and one cellular trace that are replayed together.

    Trials of one path share a `group`, by which training and testing are split; `simultaneous`:
    both networks were measured at the same time; `given_common_s`: what places.csv says that
    `common_s` is; `origin_said`: whether it says if the place is synthetic, or measured and how.
    """

    name: str
    scenario: str
    group: str
    simultaneous: bool
    synthetic: bool
    wifi: AccessTrace
    cellular: AccessTrace
    note: str
    given_common_s: int | None = None
    origin_said: bool = True

    @property
    def origin(self) -> str:
        """The source of its traces, in words."""
        if self.synthetic:
            return "synthetic"
        return "measured on real networks" if self.origin_said else "not said whether measured"

    @property
    def networks(self) -> dict[str, AccessTrace]:
        """Both networks under the names that data sets give them: `wifi` and `cellular`."""
        return {"wifi": self.wifi, "cellular": self.cellular}

    @cached_property
    def common_s(self) -> int:
        """The length of the place in whole seconds: as places.csv says, else as its longest network."""
        return self.longest_s if self.given_common_s is None else self.given_common_s

    @property
    def longest_s(self) -> int:
        """Whole seconds until the longer of the two traces repeats, at least one."""
        return max(1, *(net.down.period_ms // 1000 for net in self.networks.values()))


class Places(dict[str, Place]):
    """A collection: place name -> place, in the file's order.

    `places[NAME]` raises PlaceError for an unknown name and suggests what was meant; for a place that
    cannot be used (`broken`: by name) it says why.
    """

    def __init__(
        self, directory: Path, places: Sequence[Place], broken: Mapping[str, str] | None = None
    ) -> None:
        super().__init__((place.name, place) for place in places)
        self.directory = directory
        self.broken = dict(broken or {})

    def __missing__(self, name: str) -> Place:
        if name in self.broken:
            raise PlaceError(self.broken[name])
        close = difflib.get_close_matches(name, self, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(self)}"
        raise PlaceError(f"{self.directory}: no place {name!r}; {hint}")


def default_directory(given: Path | None = None) -> Path:
    """Return the collection to use: the given one, else the real traces beside the repository, else ours.

    PlaceError: nothing was given and neither of the two others is there.
    """
    if given is not None:
        return given
    for candidate in (ROOT.parent / "shared" / "traces-real", ROOT / "traces"):
        if (candidate / "places.csv").is_file():
            return candidate
    raise PlaceError("no collection of places found; name one with --places DIR")


def drawn_rtt_s(place: str, kind: NetworkKind) -> float:
    """Return a base RTT in seconds for a place that measured none: always the same for the same name."""
    median, sigma, low, high = _RTT_DRAWS_S[kind]
    seed = int.from_bytes(hashlib.sha256(f"{kind}:{place}".encode()).digest()[:8])
    draw = median * math.exp(random.Random(seed).gauss(0.0, sigma))
    return round(min(max(draw, low), high), 4)


def load(directory: Path) -> Places:
    """Read a collection's places.csv; traces and series are read when first used.

    Places that cannot be used are left out, and named in `broken`. PlaceError where none can be: the
    first thing wrong: file, row and what would be right.
    """
    places, problems = scan(directory)
    if problems and not places:
        more = f" (and {len(problems) - 1} more: places check)" if len(problems) > 1 else ""
        raise PlaceError(problems[0] + more)
    return places


def scan(directory: Path) -> tuple[Places, list[str]]:
    """Return the places of a collection that can be used, and everything wrong with the others."""
    path = directory / "places.csv"
    try:
        rows = [(line, list(map(plain, row))) for line, row in series_file.csv_rows(path)]
    except FileNotFoundError:
        wanted = "a collection is a folder with places.csv, wifi/ and cellular/"
        return Places(directory, []), [f"{path}: no such file; {wanted}"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = f"{path}: unreadable ({error}); a CSV in UTF-8 is expected"
        return Places(directory, []), [problem]
    # Columns that are missing or doubled make all rows unusable.
    header = rows[0][1] if rows else []
    problems = [
        f"{path}:1: no column {name!r}; needed are {', '.join(_REQUIRED)}"
        for name in _REQUIRED
        if name not in header
    ] + [
        f"{path}:1: column {name!r} appears twice; each column once"
        for name, count in Counter(header).items()
        if count > 1
    ]
    if problems:
        return Places(directory, []), problems
    if len(rows) == 1:
        problems.append(f"{path}: no places; one row per place is expected")
    # Report each row's problems, and go on with the next row.
    listing = {kind: _files(directory / kind) for kind in _RTT_DRAWS_S}
    places: dict[str, Place] = {}
    first_seen: dict[str, int] = {}
    broken: dict[str, str] = {}
    for line, fields in rows[1:]:
        at = len(problems)
        try:
            place = _place(dict(zip(header, fields, strict=True)), directory, listing)
            if place.name in first_seen:
                raise PlaceError(
                    f"place {place.name!r} is also in line {first_seen[place.name]}; names are "
                    "unique"
                )
            places[place.name] = place
            first_seen[place.name] = line
        except PlaceError as error:
            problems += [f"{path}:{line}: {each}" for each in str(error).split("\n")]
        except ValueError:
            problems.append(
                f"{path}:{line}: {len(fields)} fields, but the header has {len(header)} (quote "
                "notes with commas)"
            )
        # Keep, for the error when a broken place is asked for by name, the first problem of its row.
        named = dict(zip(header, fields, strict=False)).get("place", "").strip()
        if named and named not in places:
            broken[named] = problems[at]
    return Places(directory, list(places.values()), broken), problems


def _place(
    row: Mapping[str, str], directory: Path, listing: Mapping[NetworkKind, frozenset[str]]
) -> Place:
    """Return the place of a row; PlaceError with a line for each thing that is wrong."""
    wrong: list[str] = []

    # Collect all mistakes of the row before it is refused.
    def read(part: Callable[[], T], otherwise: T) -> T:
        try:
            return part()
        except PlaceError as error:
            wrong.append(str(error))
            return otherwise

    name = row["place"].strip()
    if not name:
        wrong.append("the place has no name")
    elif name.startswith(".") or not _UNNAMEABLE.isdisjoint(name):
        wrong.append(
            f"place {name!r} would be no file's name; without a dot before or a slash in it"
        )

    def access(kind: NetworkKind) -> AccessTrace:
        trace = row[kind].strip()
        nothing: tuple[Path, Path, Path | None] = directory / kind, directory / kind, None
        down, up, series_path = read(
            lambda: _paths(trace, directory / kind, listing[kind]), nothing
        )
        given_rtt_s = read(lambda: _rtt(row, f"{kind}_rtt_ms"), None)
        return AccessTrace(trace, kind, down, up, series_path, given_rtt_s, place=name)

    origin = ("synthetic", "simultaneous")
    found = Place(
        name=name,
        scenario=row.get("scenario", "").strip(),
        group=row.get("group", "").strip() or _group(name),
        simultaneous=read(lambda: _flag(row, "simultaneous"), False),
        synthetic=read(lambda: _flag(row, "synthetic"), False),
        wifi=access(NetworkKind.WIFI),
        cellular=access(NetworkKind.CELLULAR),
        note=row.get("note", "").strip(),
        given_common_s=read(lambda: _seconds(row, "common_s"), None),
        origin_said=any(row.get(column, "").strip() for column in origin),
    )
    if wrong:
        raise PlaceError("\n".join(wrong))
    return found


def _group(name: str) -> str:
    """Return the group: `sbu7-3` is the third trial of `sbu7`; without a number it is its own group."""
    path, dash, trial = name.rpartition("-")
    return path if dash and path and trial.isdigit() else name


def _flag(row: Mapping[str, str], column: str) -> bool:
    text = row.get(column, "").strip().lower()
    # The collections write `no-paired-by-us`: no, and why.
    if text in ("", "no") or text.startswith("no-"):
        return False
    if text == "yes":
        return True
    raise PlaceError(f"{column} is {row[column]!r}; yes or no would be right")


def _seconds(row: Mapping[str, str], column: str) -> int | None:
    text = row.get(column, "").strip()
    if not text:
        return None
    if text.isdecimal() and text.isascii() and len(text) < 10 and int(text) <= LONGEST_S:
        return int(text)
    raise PlaceError(
        f"{column} is {text!r}; whole seconds up to {LONGEST_S}, or empty, would be right"
    )


def _rtt(row: Mapping[str, str], column: str) -> float | None:
    text = row.get(column, "").strip()
    if not text:
        return None
    low, high = _RTT_BOUNDS_S
    try:
        rtt_s = float(text) / 1e3
    except ValueError:
        rtt_s = math.nan
    if not low <= rtt_s <= high:
        raise PlaceError(
            f"{column} is {text!r}; milliseconds from {low * 1e3:g} to {high * 1e3:g}, or empty, "
            "would be right"
        )
    return rtt_s


def _files(folder: Path) -> frozenset[str]:
    try:
        return frozenset(entry.name for entry in folder.iterdir())
    except OSError:
        return frozenset()  # then each place says which of its files is missing


def _paths(trace: str, folder: Path, there: frozenset[str]) -> tuple[Path, Path, Path | None]:
    if not trace or "/" in trace or "\0" in trace:
        raise PlaceError(f"{folder.name} is {trace!r}; the name of a trace in {folder} is needed")

    def find(role: str) -> Path | None:
        names = [f"{trace}.{role}{packed}" for packed in ("", ".gz")]
        found = [name for name in names if name in there]
        if len(found) > 1:
            raise PlaceError(f"both {' and '.join(found)} are in {folder}; keep one")
        return folder / found[0] if found else None

    # A trace is one file for both directions, or one for each.
    both, down, up = find("trace"), find("down"), find("up")
    for single in (down, up):
        if both and single:
            raise PlaceError(f"both {both.name} and {single.name} are in {folder}; keep one kind")
    csv_path = folder / f"{trace}.csv" if f"{trace}.csv" in there else None
    if both:
        return both, both, csv_path
    if down and up:
        return down, up, csv_path
    if down or up:
        missing = "up" if down else "down"
        raise PlaceError(f"no {trace}.{missing}[.gz] beside the other direction in {folder}")
    # Nothing is there under this name: suggest one that is nearly the same.
    traces = {re.sub(r"\.(trace|down|up)(\.gz)?$", "", name) for name in there}
    close = difflib.get_close_matches(trace, traces, n=1, cutoff=0.8)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise PlaceError(
        f"no trace {trace!r}: {folder} has neither {trace}.trace[.gz] nor {trace}.down[.gz] with "
        f"{trace}.up[.gz]{hint}"
    )
