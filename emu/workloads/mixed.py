"""A mixed load, carried by an unmodified client: curl, or curl under mptcpize for MPTCP.

Each transfer is a process of its own inside the emulated client. Its time is curl's own account, so that
the start of the process does not count.
"""

import json
import math
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from cedos.errors import EmulationError
from cedos.model import Direction
from emu.testbed.netns import Namespace
from emu.testbed.wiring import SERVER_ADDRESSES

DAY_S = 86_400.0
_Bytes = Annotated[int, Meta(ge=1, le=100_000_000_000)]
# It becomes a part of a folder's name, or a word of files that root writes.
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,59}\Z",
        description="a short name of letters, digits and . _ -",
    ),
]
Seconds = Annotated[float, Meta(ge=0, le=DAY_S)]


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[load]]`: transfers of one kind, to one host (its own address, as another site would have).

    Sizes are log-uniform between `min_bytes` and `max_bytes`; arrivals are Poisson with
    `per_minute`; a share of `mptcp_share` is made by a client that speaks MPTCP. With a `slot_s`
    instead, they come one after the other: rounds of all such loads in a seeded order, each
    transfer with so many seconds to itself.
    """

    name: Name
    host: str
    direction: Direction
    min_bytes: _Bytes
    max_bytes: _Bytes
    per_minute: Annotated[float, Meta(ge=0, le=6000)] = 0.0
    mptcp_share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    slot_s: Seconds = 0.0

    def __post_init__(self) -> None:
        if self.host not in SERVER_ADDRESSES:
            first, last = SERVER_ADDRESSES[0], SERVER_ADDRESSES[-1]
            raise ValueError(f"host must be one of the server's addresses, {first} to {last}")
        if self.min_bytes > self.max_bytes:
            raise ValueError("max_bytes must not be below min_bytes")
        if (self.per_minute > 0) == (self.slot_s > 0):
            raise ValueError("either per_minute or slot_s must be above 0")


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer of the load; `at_s` counts from the start of the measured part of the run."""

    number: int
    name: str
    at_s: float
    host: str
    direction: Direction
    size_bytes: int
    mptcp: bool


def schedule(classes: Sequence[Load], *, duration_s: float, seed: int) -> list[PlannedTransfer]:
    """Return all transfers that start within `duration_s`, in order of time.

    Each class draws from a seed of its own: adding one does not move the others.
    """
    drawn = []
    for kind, draw, at_s in _starts(classes, duration_s, seed):
        log_size = draw.uniform(math.log(kind.min_bytes), math.log(kind.max_bytes))
        drawn.append((at_s, kind, round(math.exp(log_size)), draw.random() < kind.mptcp_share))
    drawn.sort(key=lambda entry: entry[0])
    return [
        PlannedTransfer(
            number, kind.name, round(at_s, 3), kind.host, kind.direction, size_bytes, mptcp
        )
        for number, (at_s, kind, size_bytes, mptcp) in enumerate(drawn)
    ]


def _starts(
    classes: Sequence[Load], duration_s: float, seed: int
) -> Iterator[tuple[Load, random.Random, float]]:
    draws = {kind.name: random.Random(f"{seed}/{kind.name}") for kind in classes}
    for kind in classes:
        if kind.slot_s > 0:
            continue
        draw = draws[kind.name]
        at_s = draw.expovariate(kind.per_minute / 60.0)
        while at_s < duration_s:
            yield kind, draw, at_s
            at_s += draw.expovariate(kind.per_minute / 60.0)
    in_turn = [kind for kind in classes if kind.slot_s > 0]
    order, at_s = random.Random(f"{seed}/order"), 0.0
    while in_turn:
        for kind in order.sample(in_turn, len(in_turn)):
            if at_s + kind.slot_s > duration_s:
                return
            yield kind, draws[kind.name], at_s
            at_s += kind.slot_s


_FORMAT = (
    '{"time_s": %{time_total}, "connect_s": %{time_connect}, "local_ip": "%{local_ip}", '
    '"local_port": %{local_port}, "code": "%{http_code}", "down": %{size_download}, '
    '"up": %{size_upload}}'
)


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a planned transfer. `started_at_s` is monotonic; censored ones hold the limit."""

    planned: PlannedTransfer
    started_at_s: float
    time_s: float
    censored: bool
    local_ip: str
    local_port: int
    problem: str | None


def run(
    client: Namespace,
    plan: Sequence[PlannedTransfer],
    *,
    port: int,
    upload_file: Callable[[int], Path],
    zero_at_s: float,
    limit_s: float,
    prefix: Sequence[str] = (),
) -> list[Completed]:
    """Start every transfer at `zero_at_s + at_s` (monotonic), whether or not earlier ones have ended.

    Transfers are ended and censored after `limit_s`; `upload_file` gives a file of the wanted size,
    `prefix` is a command to put before the client's.
    EmulationError: the client could not be started, or gave no account of itself.
    """
    results: dict[int, Completed] = {}
    lock = threading.Lock()
    running: list[threading.Thread] = []
    failures: list[EmulationError] = []

    def finish(process: "subprocess.Popen[str]", planned: PlannedTransfer, at_s: float) -> None:
        out, err = process.communicate()
        try:
            completed = _completed(planned, at_s, process.returncode, out, err, limit_s)
        except EmulationError as error:
            failures.append(error)
            return
        with lock:
            results[planned.number] = completed

    processes: list[subprocess.Popen[str]] = []
    try:
        # Each transfer starts in time, whether or not earlier ones have ended.
        for planned in plan:
            time.sleep(max(0.0, zero_at_s + planned.at_s - time.monotonic()))
            at_s = time.monotonic()
            process: subprocess.Popen[str] = client.popen(
                *prefix,
                *_command(planned, port, limit_s, upload_file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            processes.append(process)
            thread = threading.Thread(target=finish, args=(process, planned, at_s), daemon=True)
            thread.start()
            running.append(thread)
        for thread in running:
            thread.join()
    finally:
        # After an error no client may outlive the run.
        for process in processes:
            if process.poll() is None:
                process.kill()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]
    return [results[planned.number] for planned in plan]


def _command(
    planned: PlannedTransfer, port: int, limit_s: float, upload_file: Callable[[int], Path]
) -> list[str]:
    command = ["curl", "--silent", "--show-error", "--output", "/dev/null"]
    command += ["--max-time", f"{limit_s:g}", "--write-out", _FORMAT]
    if planned.direction is Direction.UP:
        # Without this header curl would wait for the server's word before it sends a large body.
        command += ["--header", "Expect:", "--upload-file", str(upload_file(planned.size_bytes))]
        command.append(f"http://{planned.host}:{port}/upload/{planned.number}")
    else:
        command.append(f"http://{planned.host}:{port}/bytes/{planned.size_bytes}")
    return ["mptcpize", "run", *command] if planned.mptcp else command


def _completed(
    planned: PlannedTransfer, at_s: float, status: int, out: str, err: str, limit_s: float
) -> Completed:
    try:
        facts = json.loads(out)
    except json.JSONDecodeError as error:
        raise EmulationError(f"curl gave no account of itself: {err.strip() or out!r}") from error
    moved = facts["down"] if planned.direction is Direction.DOWN else facts["up"]
    fine = status == 0 and facts["code"] in ("200", "201", "204") and moved == planned.size_bytes
    return Completed(
        planned=planned,
        started_at_s=at_s,
        time_s=facts["time_s"] if fine else limit_s,
        censored=not fine,
        local_ip=facts["local_ip"],
        local_port=facts["local_port"],
        problem=None if fine else err.strip() or f"HTTP {facts['code']}, {moved} bytes",
    )
