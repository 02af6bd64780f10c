"""A file by `cedos-get` from `cedos-serve`: our own programs, as a measure for those of others."""

import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cedos.session import keys
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.service import Service, accepts
from emu.testbed.started import Started
from emu.workloads.unmodified.output import watch_output
from emu.workloads.unmodified.watched import HalfWay, Watched

_PORT: Final = 7008
_LIMIT: Final = "90s"
_START_TIMEOUT_S: Final = 15.0


class SessionServer(Started):
    """`cedos-serve` on the laptop's server, with a file of zeros of each size."""

    def __init__(self, laptop: Laptop, sizes: Iterable[int]) -> None:
        self._laptop, self._sizes = laptop, sizes
        self._folder = laptop.directory / "sessions"
        self._services: list[Service] = []

    def _start(self) -> None:
        served = self._folder / "served"
        served.mkdir(parents=True)
        for size in self._sizes:
            with (served / str(size)).open("wb") as file:
                file.truncate(size)
        self._services.append(
            Service(
                self._laptop.server, *self._command("cedos-serve"), "-l", f"{SERVER}:{_PORT}",
                "--own-key", str(self._folder / "server.key"), "--forget", str(served),
                output=self._folder / "log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(
            lambda: accepts(self._laptop.server, SERVER, _PORT), _START_TIMEOUT_S
        )

    def close(self) -> None:
        for service in self._services:
            service.close()

    def get(
        self,
        where: Namespace,
        size: int,
        *,
        half_way: HalfWay | None = None,
        after_s: float | None = None,
    ) -> Watched:
        """`half_way` is called `after_s` seconds after it began."""
        key = keys.to_text(keys.own(self._folder / "server.key").public)
        began_s = time.monotonic()
        process: subprocess.Popen[bytes] = where.popen(
            *(*self._command("cedos-get"), "-q", "--timeout", _LIMIT, "--key", key),
            *("-o", "-", f"{SERVER}/{size}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return watch_output(process, began_s, size, half_way=half_way, after_s=after_s)

    def _command(self, name: str) -> tuple[str, ...]:
        settings = (f"XDG_CONFIG_HOME={self._folder}", f"CEDOS_RUNTIME_DIR={self._folder}")
        return ("env", *settings, str(Path(sys.executable).with_name(name)))
