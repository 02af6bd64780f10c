"""Run folders: one experiment's configuration, environment, raw records and summary.

    config.toml  environment.json  flows.parquet  decisions.parquet  summary.json  logs/  report.html

`flows.parquet` has a row for each transfer and policy, `decisions.parquet` one for each decision of the
daemon, and `predictions.parquet` one for each ended transfer that was predicted. `logs/` has the raw
records behind the pictures: `rates.parquet` (interface counters), `capacity.parquet` (what the trace
could carry), `switches.parquet`, and the programs' own logs. Scenarios with pages or videos add
`pages.parquet` and `videos.parquet`, and to the logs each object and segment.
"""

import dataclasses
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cedos.config import toml_file
from cedos.errors import DataSetError
from emu import ROOT, WRITTEN, console
from emu.data import datasets
from emu.runs.scenario import Scenario
from emu.statistics import Floats

_MAP = pa.map_(pa.string(), pa.float64())
_IN_LOGS = ("rates", "capacity", "switches", "objects", "segments")
_ALWAYS = ("flows", "decisions", "predictions", "rates", "capacity", "switches")
Rows = Sequence[Mapping[str, Any]]
_PACKAGES = ("cedos", "pyroute2.minimal", "scikit-learn", "numpy", "pyarrow", "aiohttp", "msgspec")
_PROGRAMS = {
    "mahimahi": ["dpkg-query", "-W", "-f=${Version}", "mahimahi"],
    "nginx": ["nginx", "-v"],
    "curl": ["curl", "--version"],
    "iptables": ["iptables", "--version"],
}


def _schema(*columns: str) -> pa.Schema:
    """Return a schema: the policy, the repeat, and the columns of texts like `type: name name`."""
    fields = [("policy", pa.string()), ("repeat", pa.int32())]
    for text in columns:
        kind, _, names = text.partition(": ")
        type_ = _MAP if kind == "map" else pa.type_for_alias(kind)
        fields += [(name, type_) for name in names.split()]
    return pa.schema(fields)


TABLES = {
    "flows": _schema(
        "int32: number",
        "string: name host direction",
        "int64: size_bytes",
        "bool: mptcp",
        "double: planned_s started_s time_s",
        "bool: censored",
        "string: problem",
        "string: local_ip",
        "int32: local_port",
        "string: network",
        "int64: wifi_bytes cellular_bytes",
    ),
    "decisions": _schema(
        "int64: number", "double: at_s made_unix_s", "string: choice reason record"
    ),
    "predictions": _schema(
        "double: ended_s",
        "string: strategy network",
        "bool: alone",
        "string: direction",
        "int64: size_bytes",
        "double: rate_age_s low_s median_s high_s mean_s took_s lengthened",
        "map: by_strategy columns",
    ),
    "rates": _schema("double: at_s", "string: interface", "int64: received_bytes sent_bytes"),
    "capacity": pa.schema(
        [("network", pa.string()), ("at_s", pa.float64()), ("rate_bps", pa.float64())]
    ),
    "switches": _schema("double: at_s", "string: what to"),
    "pages": _schema(
        "int32: number",
        "string: name url",
        "double: planned_s started_s load_s transfer_s",
        "bool: censored",
        "int32: missing objects",
        "int64: size_bytes received_bytes",
        "string: problem",
    ),
    "objects": _schema(
        "int32: page",
        "string: url",
        "double: started_s ended_s",
        "int32: status",
        "int64: received_bytes",
        "string: protocol problem",
    ),
    "videos": _schema(
        "int32: number",
        "string: name",
        "double: planned_s started_s start_s",
        "int32: stalls",
        "double: stall_s watched_s transfer_s bitrate_bps",
        "int32: segments",
        "int64: received_bytes",
        "bool: censored",
        "string: problem",
    ),
    "segments": _schema(
        "int32: video number",
        "int64: bitrate_bps",
        "double: started_s ended_s",
        "int64: size_bytes",
    ),
}


def tables_of(scenario: Scenario) -> list[str]:
    pages = ["pages", "objects"] if scenario.page else []
    videos = ["videos", "segments"] if scenario.video else []
    return [*_ALWAYS, *pages, *videos]


def refuse_finished(directory: Path, *, paged: bool = False) -> None:
    """Raise DataSetError if `directory` holds a finished run, whose records may have taken hours.

    `paged`: a finished run has a page; the error says how to draw one that is missing.
    """
    # A folder without environment.json is no run folder: `RunFolder.create` refuses that in any case.
    if all((directory / name).exists() for name in ("environment.json", "summary.json")):
        if paged and not (directory / "report.html").exists():
            raise DataSetError(
                f"{directory} holds a run without its page: draw it with `cedos-emu report {directory}`,"
                " choose another --out, or remove it"
            )
        raise DataSetError(f"{directory} holds a finished run: choose another --out, or remove it")


def refuse_foreign(directory: Path) -> None:
    """Raise DataSetError unless the folder is new, empty, or that of an earlier run."""
    if directory.is_dir():
        if any(directory.iterdir()) and not (directory / "environment.json").exists():
            raise DataSetError(f"{directory} exists and is no run folder: choose another --out")
    elif directory.exists():
        raise DataSetError(f"{directory}: Not a directory: choose another --out")


def make_way(directory: Path) -> None:
    """Empty an earlier run's folder, which itself stays, since the caller has claimed it.

    Raise DataSetError for any other folder (`refuse_foreign`). Callers that must not replace a finished
    run call `refuse_finished` before.
    """
    refuse_foreign(directory)
    if directory.is_dir():
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


class RunFolder:
    """A run folder while its experiment runs; each table is written once, as a whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.logs = directory / "logs"

    @classmethod
    def create(
        cls, directory: Path, scenario: Scenario, environment: Mapping[str, Any]
    ) -> "RunFolder":
        make_way(directory)
        folder = cls(directory)
        try:
            folder.logs.mkdir(parents=True)
        except OSError as error:
            raise DataSetError(f"{directory}: {error.strerror}: choose another --out") from error
        console.write(directory / "config.toml", msgspec.toml.encode(scenario))
        folder.write_json("environment.json", environment)
        return folder

    def write_json(self, name: str, content: Any) -> None:
        console.write(self.directory / name, json.dumps(content, indent=2) + "\n")

    def write_table(self, name: str, rows: Rows) -> None:
        table = pa.Table.from_pylist(list(rows), schema=TABLES[name])
        console.write(_file(self.directory, name), datasets.parquet(table))


def _file(directory: Path, table: str) -> Path:
    return _file_in(directory / ("logs" if table in _IN_LOGS else ""), f"{table}.parquet")


def _file_in(directory: Path, name: str) -> Path:
    """Return a file's path; DataSetError: a device or a pipe, which has no end, has that name."""
    file = directory / name
    if file.exists() and not file.is_file():
        raise DataSetError(f"{file}: not a file")
    return file


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished run, as read from its folder."""

    directory: Path
    scenario: Scenario
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    flows: Rows
    decisions: Rows
    rates: Rows
    capacity: Rows
    switches: Rows
    predictions: Rows = ()
    pages: Rows = ()
    objects: Rows = ()
    videos: Rows = ()
    segments: Rows = ()

    @property
    def policies(self) -> list[str]:
        return list(self.scenario.policies)

    @property
    def duration_s(self) -> float:
        return float(self.environment["duration_s"])

    @property
    def title(self) -> str:
        kind = " (synthetic)" if self.environment["synthetic"] else ""
        if self.scenario.engine == "simulator":
            kind += " (simulated)"
        return f"{self.scenario.name}: place {self.scenario.place}{kind}, seed {self.scenario.seed}"


def times_s(run: Recorded, policy: str) -> Floats:
    """Return a policy's times; all policies carried the same transfers in this order."""
    rows = [row for row in run.flows if row["policy"] == policy]
    rows.sort(key=lambda row: (row["repeat"], row["number"]))
    return np.array([row["time_s"] for row in rows])


def read(directory: Path) -> Recorded:
    """Read a run folder; DataSetError names the file that is missing or broken."""
    file = directory
    try:
        file = _file_in(directory, "config.toml")
        scenario = msgspec.convert(toml_file.loads(file.read_text()), Scenario)
        tables: dict[str, Rows] = {}
        for name in tables_of(scenario):
            file = _file(directory, name)
            datasets.must_be_bounded(file)
            tables[name] = pq.read_table(file).to_pylist()
        file = _file_in(directory, "environment.json")
        environment = json.loads(file.read_text())
        file = _file_in(directory, "summary.json")
        summary = json.loads(file.read_text())
    except MemoryError:  # one of Arrow's, too, which is told elsewhere (`console.reading_others`)
        raise
    except (OSError, pa.ArrowException, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise DataSetError(
                f"{directory} is not the folder of a finished run: it has no {file.name}"
            ) from error
        raise DataSetError(f"{file}: not a finished run: {error}") from error
    return Recorded(directory, scenario, environment, summary, **tables)


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Make the folder if it is missing, and lock it until the block ends or the process dies.

    DataSetError: another run has locked it, or it cannot be made (`console.make_folder`).
    """
    console.make_folder(directory, "--out")
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise DataSetError(f"{directory}: {error.strerror}: choose another --out") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataSetError(
                f"another run is writing to {directory}: choose another --out, or wait for its end"
            ) from None
        yield
    finally:
        os.close(descriptor)


def fresh(name: str) -> Path:
    """Make a folder for a run that was given none; its name has the time and the scenario.

    If another run began in the same second, it also has a number. DataSetError: it cannot be made.
    """
    within = Path("runs")
    console.make_folder(within, "--out")
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        directory = within / f"{stamp}-{name}{f'-{number}' if number > 1 else ''}"
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise DataSetError(f"{directory}: {error.strerror}: choose an --out") from error
        return directory
    raise AssertionError("numbers do not end")


def with_transfers(recorded: Sequence[Recorded]) -> Sequence[Recorded]:
    """Return the runs if all of them have transfers; runs of pages and videos have none.

    DataSetError: names a run without transfers.
    """
    for run in recorded:
        if not run.flows:
            raise DataSetError(f"{run.directory} has no transfers: it is a run of pages or videos")
    return recorded


def by_place(recorded: Sequence[Recorded]) -> list[Recorded]:
    """Join the runs of each place into one, with all their repeats, one run after the other.

    Its summary has the mean joules and cellular megabytes of a repeat.
    """
    of_place: dict[str, list[Recorded]] = {}
    for run in recorded:
        of_place.setdefault(run.scenario.place, []).append(run)
    return [_joined(runs) if len(runs) > 1 else runs[0] for runs in of_place.values()]


def _joined(runs: Sequence[Recorded]) -> Recorded:
    first, policies = runs[0], policies_of_all(runs)
    tables: dict[str, Any] = {name: [] for name in tables_of(first.scenario)}
    before = 0
    for run in runs:
        for name, rows in tables.items():
            rows += [
                {**row, "repeat": row["repeat"] + before}
                for row in getattr(run, name)
                if row.get("policy") in policies
            ]
        before += run.scenario.repeats
    # The networks' capacity does not depend on policies, and is the same in each run.
    tables["capacity"] = first.capacity
    mean = {
        name: {
            key: sum(run.summary["policies"][name][key] * run.scenario.repeats for run in runs)
            / before
            for key in ("energy_j", "cellular_mb")
        }
        for name in policies
    }
    scenario = msgspec.structs.replace(first.scenario, policies=tuple(policies), repeats=before)
    return dataclasses.replace(first, scenario=scenario, summary={"policies": mean}, **tables)


def policies_of_all(recorded: Sequence[Recorded], some: Collection[str] = ()) -> list[str]:
    """Return the policies that all runs have, in the first one's order.

    DataSetError: there are none, or `some` names policies and none of these is among them.
    """
    found = [name for name in recorded[0].policies if all(name in r.policies for r in recorded)]
    if not found or (some and not set(some) & set(found)):
        which = f" of {', '.join(some)}" if some else ""
        raise DataSetError(
            f"no policy{which} is in all runs: "
            + "; ".join(f"{run.directory} has {', '.join(run.policies)}" for run in recorded)
        )
    return found


def describe(seed: int | None = None) -> dict[str, Any]:
    """Return the environment as a dictionary for JSON; an unknown value is None."""
    return {
        # Where a folder lies on this machine says nothing elsewhere.
        "arguments": [
            os.path.relpath(each) if each.startswith("/") else each for each in sys.argv[1:]
        ],
        "seed": seed,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "packages": {name: _version(name) for name in _PACKAGES},
        "programs": {name: _output(command) for name, command in _PROGRAMS.items()},
        "git": _git(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: list[str], cwd: Path | None = None) -> str | None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=5, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _git() -> dict[str, Any] | None:
    commit = _output(["git", "rev-parse", "HEAD"], ROOT)
    if commit is None:
        return None
    written = [f":(exclude){each}" for each in WRITTEN]
    status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *written]
    return {"commit": commit, "modified": _output(status, ROOT) is not None}
