"""A package fetched by apt from a repository that nginx serves."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER
from emu.workloads.unmodified.watched import HalfWay, Watched, as_user, grown, watched

_NAME: Final = "random"


class PackageArchive:
    """A flat repository of one package of random bytes, in what nginx serves (`www`).

    `folder`: where apt keeps its lists and what it fetches; `user`: who it is run as; `retries`: how
    often it tries again (apt's own default is 3).
    """

    def __init__(self, www: Path, folder: Path, user: int, size: int, *, retries: int = 0) -> None:
        self._folder, self._user, self._size = folder, user, size
        self._retries = retries
        self._fetches = 0
        served = www / "packages"
        served.mkdir()
        folder.mkdir(mode=0o755)
        package = folder / "made"
        (package / "DEBIAN").mkdir(parents=True)
        (package / "DEBIAN" / "control").write_text(
            f"Package: {_NAME}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@example.org>\n"
            "Description: random bytes\n"
        )
        (package / "random").write_bytes(os.urandom(size))
        _run("dpkg-deb", "-Znone", "--build", str(package), str(served / f"{_NAME}_1_all.deb"))
        (served / "Packages").write_bytes(_run("dpkg-scanpackages", "-m", ".", where=served))
        shutil.rmtree(package)
        for name in ("state/lists/partial", "cache/archives/partial", "etc/apt.conf.d"):
            (folder / name).mkdir(parents=True)
        (folder / "sources.list").write_text(f"deb [trusted=yes] http://{SERVER}/packages ./\n")
        (folder / "state" / "status").touch()
        for found in (folder, *folder.rglob("*")):
            os.chown(found, user, user)

    def update(self, where: Namespace) -> None:
        """Reads what the repository has; EmulationError where it cannot."""
        where.run(*self._apt("update"))

    def fetch(self, where: Namespace, half_way: HalfWay | None = None) -> Watched:
        """What comes is seen by the size of the file that apt writes."""
        self._fetches += 1
        target = self._folder / f"fetched-{self._fetches}"
        target.mkdir(mode=0o755)
        os.chown(target, self._user, self._user)
        began_s = time.monotonic()
        process: subprocess.Popen[bytes] = where.popen(
            *("env", "-C", str(target), *self._apt("download", _NAME)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        arrivals = grown(process, lambda: _largest(target), self._size, half_way)
        whole = process.wait() == 0 and _largest(target) >= self._size
        shutil.rmtree(target)
        return watched(began_s, arrivals, whole=whole)

    def _apt(self, *words: str) -> Sequence[str]:
        here = self._folder
        options = {
            "Dir::State": here / "state",
            "Dir::State::status": here / "state" / "status",
            "Dir::Cache": here / "cache",
            "Dir::Etc::sourcelist": here / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::Etc::parts": here / "etc" / "apt.conf.d",
            "Acquire::Retries": self._retries,
            "Acquire::Languages": "none",
        }
        settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return (*as_user(self._user), "env", f"HOME={here}", "apt-get", "-q", *settings, *words)


def _largest(folder: Path) -> int:
    """Of the files there, bytes; one may be renamed meanwhile."""
    found = 0
    for file in folder.rglob("*"):
        try:
            found = max(found, file.stat().st_size if file.is_file() else 0)
        except FileNotFoundError:
            continue
    return found


def _run(*command: str, where: Path | None = None) -> bytes:
    done = subprocess.run(command, cwd=where, capture_output=True, timeout=60, check=False)
    if done.returncode:
        raise EmulationError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
