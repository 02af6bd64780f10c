"""A repository cloned by git from git's own server."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.service import Service, accepts
from emu.testbed.started import Started
from emu.workloads.unmodified.watched import LIMIT_S, HalfWay, Watched, as_user, grown, watched

_PORT = 9418


class CloneServer(Started):
    """`git daemon` on the laptop's server with one repository of random bytes."""

    def __init__(self, laptop: Laptop, user: int, size: int) -> None:
        self._laptop, self._user, self._size = laptop, user, size
        self._folder = laptop.directory / "git"
        self._services: list[Service] = []
        self._clones = 0

    def _start(self) -> None:
        repository = self._folder / "served" / "repository"
        repository.mkdir(parents=True)
        self._folder.chmod(0o755)
        (repository / "random").write_bytes(os.urandom(self._size))
        names = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org")
        for words in (("init", "-q"), ("add", "."), (*names, "commit", "-q", "-m", "random")):
            subprocess.run(("git", "-C", str(repository), *words), check=True)
        self._services.append(
            Service(
                self._laptop.server, "git", "daemon", f"--base-path={repository.parent}",
                "--export-all", "--reuseaddr", f"--port={_PORT}", output=self._folder / "log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(lambda: accepts(self._laptop.server, SERVER, _PORT))

    def close(self) -> None:
        for service in self._services:
            service.close()

    def clone(
        self, where: Namespace, half_way: HalfWay | None = None, *, limit_s: float = LIMIT_S
    ) -> Watched:
        """What comes is seen by the size of the pack that git writes."""
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
