"""Remains of a killed testbed, which are found and removed at the next start.

Each instance registers itself in a folder of its own under the runtime directory, before it makes
anything. The record has the owner's pid with its start time, the instance's token, which is part of the
names of all its namespaces, and the processes that it started. If the owner is dead, the next start
removes the instance. It never touches one whose owner lives.
"""

import json
import os
import secrets
import select
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cedos.errors import EmulationError
from emu.testbed.netns import RUN, Namespace

PREFIX = "cedos"
_END_TIMEOUT_S = 5.0


def runtime_directory() -> Path:
    """Return where instances register: `/run/cedos-emu`, or `CEDOS_EMU_RUNTIME_DIR`.

    Unprivileged users must be able to read it: as such a user, Mahimahi reads its traces there.
    """
    return Path(os.environ.get("CEDOS_EMU_RUNTIME_DIR") or "/run/cedos-emu")


def started_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; with its pid that identifies it for ever.

    None: there is no such process, or it is a zombie.
    """
    fields = _stat(pid)
    return None if fields is None or fields[0] == "Z" else int(fields[19])


class Instance:
    """The registration of a testbed; `close` ends its processes and removes its namespaces."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(3)
        self.directory = runtime_directory() / self.token
        self._sessions: dict[int, int] = {}
        try:
            # Mahimahi reads traces as an unprivileged user.
            self.directory.mkdir(parents=True, mode=0o755)
        except OSError as error:
            raise EmulationError(f"cannot register the testbed: {error}") from error
        self._write()

    def namespace_name(self, role: str) -> str:
        return f"{PREFIX}-{self.token}-{role}"

    def namespace(self, role: str) -> Namespace:
        return Namespace.create(self.namespace_name(role))

    def add_session(self, pid: int) -> None:
        """Record a process that was started as the leader of a session of its own."""
        self._sessions[pid] = started_ticks(pid) or 0
        self._write()

    def remove_session(self, pid: int) -> None:
        if self._sessions.pop(pid, None) is not None:
            self._write()

    def close(self) -> None:
        _remove(self.directory, self.token, self._sessions)

    def _write(self) -> None:
        facts = {
            "pid": os.getpid(),
            "started_ticks": started_ticks(os.getpid()),
            "token": self.token,
            "sessions": {str(pid): ticks for pid, ticks in self._sessions.items()},
        }
        new = self.directory / "instance.new"
        new.write_text(json.dumps(facts))
        new.replace(self.directory / "instance.json")


@contextmanager
def registered() -> Iterator[Instance]:
    """Remove remains of dead instances, register a new one, and remove it at the end."""
    remove_stale()
    instance = Instance()
    try:
        yield instance
    finally:
        instance.close()


def remove_stale() -> list[str]:
    """Remove every instance whose owner is dead and return their tokens."""
    removed = []
    directory = runtime_directory()
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        try:
            facts = json.loads((entry / "instance.json").read_text())
            owner, ticks = int(facts["pid"]), int(facts["started_ticks"])
            token = str(facts["token"])
            sessions = {int(pid): int(began) for pid, began in facts["sessions"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            # It is being made at this moment, or removed by another process, or is no instance.
            continue
        # The owner lives, or the record is of another instance.
        if token != entry.name or started_ticks(owner) == ticks:
            continue
        _remove(entry, token, sessions)
        removed.append(token)
    return removed


def _remove(directory: Path, token: str, sessions: dict[int, int]) -> None:
    namespaces = sorted(RUN.glob(f"{PREFIX}-{token}-*"))
    # Processes first: a namespace is freed with its last process.
    _end(_of_sessions(sessions) | _inside(namespaces))
    for path in namespaces:
        with suppress(EmulationError):
            Namespace(path.name).remove()
    left = [path.name for path in namespaces if path.exists()]
    if left:
        raise EmulationError(f"cannot remove namespaces {', '.join(left)}; `ip netns del` does it")
    # Remove the record last: if anything fails before, the next start tries again.
    shutil.rmtree(directory, ignore_errors=True)


def _end(processes: Iterable[tuple[int, int]]) -> None:
    """End processes, given as (pid, started_ticks), by SIGTERM, then by SIGKILL; no other process."""
    handles = []
    for pid, ticks in processes:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            # The handle stays with this process even if its pid is given to another one. So compare the
            # start time only now.
            if started_ticks(pid) == ticks:
                handles.append(handle)
            else:
                os.close(handle)
    try:
        # First ask all of them to end, then end them.
        for number, wait_s in ((signal.SIGTERM, 0.5), (signal.SIGKILL, _END_TIMEOUT_S)):
            for handle in handles:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
            deadline_s = time.monotonic() + wait_s
            while not all(_ended(handle) for handle in handles):
                if time.monotonic() > deadline_s:
                    break
                time.sleep(0.005)
    finally:
        for handle in handles:
            os.close(handle)


def _ended(handle: int) -> bool:
    # A handle becomes readable when its process has ended, waited for or not.
    return bool(select.select([handle], [], [], 0)[0])


def _of_sessions(sessions: dict[int, int]) -> set[tuple[int, int]]:
    """Return the processes of sessions, given as leader's pid -> started_ticks.

    A pid is not given again while a session with that number has members. So if the leader is gone,
    members of its session are ours. If it exists with another start time, ours have all ended.
    """
    ours = {
        leader
        for leader, ticks in sessions.items()
        if (now := started_ticks(leader)) is None or now == ticks
    }
    found = set()
    for pid in _processes() if ours else ():
        fields = _stat(pid)
        if fields is not None and int(fields[3]) in ours and fields[0] != "Z":
            found.add((pid, int(fields[19])))
    return found


def _inside(namespaces: Iterable[Path]) -> set[tuple[int, int]]:
    """Return the processes in these namespaces, all of which were started for this testbed."""
    wanted = set()
    for path in namespaces:
        with suppress(OSError):
            wanted.add(path.stat().st_ino)
    found = set()
    for pid in _processes() if wanted else ():
        with suppress(OSError):
            # Read the start time before the namespace: a pid may be given again in between.
            ticks = started_ticks(pid)
            if Path(f"/proc/{pid}/ns/net").stat().st_ino in wanted and ticks is not None:
                found.add((pid, ticks))
    return found


def _processes() -> Iterable[int]:
    me = os.getpid()
    return [int(e) for e in os.listdir("/proc") if e.isdigit() and int(e) != me]  # noqa: PTH208


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
