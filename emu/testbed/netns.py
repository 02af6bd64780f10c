"""Network namespaces: made, entered, and removed without a trace.

The testbed changes the kernel's settings only inside namespaces, so that the host's own networking stays
as it was.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError

RUN = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise EmulationError(f"cannot enter a network namespace: {os.strerror(code)} (run as root)")


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Let the calling thread run the block inside the namespace at `path`.

    Sockets that the block opens belong to the namespace for good. Never await inside the block: other
    tasks of the thread would run in the namespace, too.
    """
    # Remember this thread's namespace, enter the other one, and come back whatever happens.
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(here)
    finally:
        os.close(here)


class Namespace:
    """A network namespace with a name, as `ip netns` has them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = RUN / name

    @classmethod
    def create(cls, name: str) -> "Namespace":
        """Make the namespace, with its loopback up. EmulationError: the kernel refuses."""
        namespace = cls(name)
        _ip("netns", "add", name)
        namespace.ip("link", "set", "lo", "up")
        return namespace

    @classmethod
    def attach(cls, name: str, pid: int) -> "Namespace":
        _ip("netns", "attach", name, str(pid))
        return cls(name)

    def remove(self) -> None:
        """Remove the name; the kernel frees the namespace when its last process is gone."""
        if self.path.exists():
            _ip("netns", "del", self.name)

    def ip(self, *arguments: str) -> str:
        """Run `ip` inside and return what it printed."""
        return _ip("-n", self.name, *arguments)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs `arguments` inside (by nsenter, which keeps /sys)."""
        return ["nsenter", f"--net={self.path}", "--", *arguments]

    def run(
        self, *arguments: str, check: bool = True, timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; with `check`, a failure is an EmulationError."""
        return _run(self.command(*arguments), check=check, timeout_s=timeout_s)

    def popen(self, *arguments: str, **options: Any) -> "subprocess.Popen[Any]":
        return subprocess.Popen(self.command(*arguments), **options)

    @contextmanager
    def entered(self) -> Iterator[None]:
        with entered(self.path):
            yield

    def sysctl(self, key: str, value: str | int | None = None) -> str:
        """Read a network sysctl inside, or with `value` write it; return its content then."""
        file = Path("/proc/sys") / key.replace(".", "/")
        with self.entered():
            try:
                if value is not None:
                    file.write_text(f"{value}\n")
                return file.read_text().strip()
            except OSError as error:
                raise EmulationError(f"sysctl {key}={value} in {self.name}: {error}") from error


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments]).stdout


def _run(
    command: Sequence[str], *, check: bool = True, timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=timeout_s
        )
    except FileNotFoundError as error:
        raise EmulationError(f"{error.filename} is not installed; ./run installs it") from error
    except subprocess.TimeoutExpired as error:
        raise EmulationError(f"{' '.join(command)}: no end after {timeout_s:g} s") from error
    if check and done.returncode != 0:
        raise EmulationError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done
