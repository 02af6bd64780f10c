"""A test's own Redis: Debian's redis-server with a unix socket in a folder, and no port unless told."""

import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path


class RedisServer:
    """`start`, `kill` and start again: what it had is gone then. `close` at the end."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        return f"unix://{self.path}"

    def start(self, *options: str) -> None:
        self.path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.path, "--save", "",
             "--appendonly", "no", "--loglevel", "warning", *options],
            cwd=self.path.parent, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        deadline_s = time.monotonic() + 20
        while time.monotonic() < deadline_s:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as one:
                one.connect(str(self.path))
                return
            time.sleep(0.02)
        raise AssertionError("redis-server does not begin")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop_for_a_while(self) -> None:
        """It takes connections and says nothing."""
        assert self._process is not None
        self._process.send_signal(19)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
