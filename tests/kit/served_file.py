"""A file that `cedos-serve` in one namespace has, and `cedos-get` in another one fetches."""

import hashlib
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cedos.apps.files.partial import files_of
from cedos.session import keys
from emu.testbed.netns import Namespace

PORT = 7008


class ServedFile:
    """The file, both namespaces, and the programs that were started there; they run in `folder`."""

    def __init__(
        self, near: Namespace, far: Namespace, server: str, folder: Path, size: int,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.near, self.far, self.folder = near, far, folder
        self._place = f"{server}:{PORT}"
        (folder / "served").mkdir()
        text = random.Random(3).randbytes(size)
        (folder / "served" / "file").write_bytes(text)
        self._digest = hashlib.sha256(text).digest()
        self.environment = {
            **environment,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.key = keys.to_text(keys.own_key(folder / "server.key").public)
        self._programs: list[subprocess.Popen[str]] = []

    def start(self, where: Namespace, program: str, *arguments: str) -> "subprocess.Popen[str]":
        code = f"from cedos.commands.sessions.{program} import main; main()"
        process = where.popen(
            sys.executable, "-c", code, *arguments,
            env=self.environment, cwd=self.folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._programs.append(process)
        return process

    def serve(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the server, and wait until it is ready."""
        process = self.start(
            self.far, "serve", "-l", self._place, "--own-key", "server.key", *(arguments or ["served"])
        )  # fmt: skip
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "ready" in line, line + process.stderr.read()
        return process

    def get(self, *arguments: str) -> "subprocess.Popen[str]":
        """Fetch it as `got`."""
        asked = ("--json", *arguments, "--key", self.key, "-o", "got", f"{self._place}/file")
        return self.start(self.near, "get", *asked)

    def have(self) -> int:
        """Return how many bytes have come, until all have."""
        try:
            return files_of(self.folder / "got")[0].stat().st_size
        except FileNotFoundError:
            return 0

    def is_whole(self, path: Path | None = None) -> bool:
        """Return whether what was got, or this file, is what is served."""
        found = (path or self.folder / "got").read_bytes()
        return hashlib.sha256(found).digest() == self._digest

    def close(self) -> None:
        for process in self._programs:
            process.kill()
            process.communicate()
