"""Unmodified tools: git, apt and ssh with their servers."""

import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.workloads.downloads import (
    LIMIT_S,
    HalfWay,
    Served,
    Watched,
    as_user,
    grown,
    watched,
)

_GIT_PORT = 9418


class CloneServer(Served):
    """`git daemon` on the laptop's server with one repository of random bytes."""

    def __init__(self, laptop: Laptop, user: int, size: int) -> None:
        super().__init__(laptop, "git")
        self._user, self._size = user, size
        self._clones = 0

    def _start(self) -> None:
        repository = self._folder / "served" / "repository"
        repository.mkdir(parents=True)
        self._folder.chmod(0o755)
        (repository / "random").write_bytes(os.urandom(self._size))
        names = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        for words in (("init", "-q"), ("add", "."), (*names, "commit", "-q", "-m", "random")):
            subprocess.run(("git", "-C", str(repository), *words), check=True)
        self._serve(
            _GIT_PORT, "git", "daemon", f"--base-path={repository.parent}",
            "--export-all", "--reuseaddr", f"--port={_GIT_PORT}",
        )  # fmt: skip

    def clone(
        self, where: Namespace, half_way: HalfWay | None = None, *, limit_s: float = LIMIT_S
    ) -> Watched:
        """Clone a repository; progress is the size of the pack that git writes."""
        self._clones += 1
        target = self._folder / f"clone-{self._clones}"
        target.mkdir(mode=0o755)
        os.chown(target, self._user, self._user)
        began_s = time.monotonic()
        process: subprocess.Popen[bytes] = where.popen(
            *as_user(self._user),
            *("env", f"HOME={target}", "git", "clone", "-q"),
            *(f"git://{SERVER}/repository", str(target / "here")),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        packs = "here/.git/objects/pack/tmp_pack_*"
        arrivals = grown(process, lambda: _bytes(target.glob(packs)), self._size, half_way, limit_s)
        whole = process.wait() == 0 and (target / "here" / "random").stat().st_size == self._size
        shutil.rmtree(target)
        return watched(began_s, arrivals, whole=whole)


def _bytes(files: Iterable[Path]) -> int:
    found = 0
    for file in files:
        try:
            found += file.stat().st_size
        except FileNotFoundError:
            continue
    return found


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
        """Read what the repository has; EmulationError where it cannot."""
        where.run(*self._apt("update"))

    def fetch(self, where: Namespace, half_way: HalfWay | None = None) -> Watched:
        """Fetch a package; progress is the size of the file that apt writes."""
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
    """Return the bytes of the largest file; one may be renamed meanwhile."""
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


_SSH_PORT = 22
_EVERY_S = 0.05
_LIMIT_S = 30.0


class ShellServer(Served):
    """OpenSSH's server on the laptop's server, for one key. `user`: who the client is run as."""

    def __init__(self, laptop: Laptop, user: int) -> None:
        super().__init__(laptop, "ssh")
        self._user = user

    def _start(self) -> None:
        self._folder.mkdir(mode=0o755)
        for name in ("host", "mine"):
            subprocess.run(
                ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name)),
                check=True,
            )
        os.chown(self.key, self._user, self._user)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        options = {
            "HostKey": self._folder / "host",
            "AuthorizedKeysFile": self._folder / "mine.pub",
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "Port": _SSH_PORT,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self._serve(_SSH_PORT, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", *words)

    @property
    def key(self) -> Path:
        return self._folder / "mine"

    def typing(
        self, where: Namespace, half_way: HalfWay | None = None, *, words: int = 80
    ) -> Watched:
        """Return a word each 50 ms; when each comes back. `half_way` is called between two of them."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR",
                   "BatchMode=yes")  # fmt: skip
        process: subprocess.Popen[bytes] = where.popen(
            *as_user(self._user),
            *("ssh", "-F", "none", *(word for each in options for word in ("-o", each))),
            *("-i", str(self.key), f"root@{SERVER}", "exec cat"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            return _typed(process, words, half_way)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _typed(process: "subprocess.Popen[bytes]", words: int, half_way: HalfWay | None) -> Watched:
    limit_s = _LIMIT_S + _EVERY_S * words
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"0\n")
    process.stdin.flush()
    began_s = time.monotonic()
    os.set_blocking(process.stdout.fileno(), False)
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        sent, lines, arrivals = 1, 0, []
        next_s, broke = float("inf"), False
        while lines < words and not broke and time.monotonic() - began_s < limit_s:
            if ready.select(max(0.0, min(next_s - time.monotonic(), 0.5))):
                data = process.stdout.read() or b""
                broke = not data
                lines += data.count(b"\n")
                arrivals.append(time.monotonic())
                if next_s == float("inf"):
                    next_s = time.monotonic()  # the shell is there
            if time.monotonic() >= next_s and sent < words:
                next_s += _EVERY_S
                try:
                    process.stdin.write(b"%d\n" % sent)
                    process.stdin.flush()
                except BrokenPipeError:
                    broke = True
                sent += 1
                if sent == words // 3 and half_way is not None:
                    half_way()
    return watched(began_s, arrivals, whole=not broke and lines == words)
