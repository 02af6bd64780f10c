"""What somebody types over SSH, and what comes back: OpenSSH's own client and server."""

import os
import selectors
import subprocess
import time
from pathlib import Path

from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.service import Service, accepts
from emu.testbed.started import Started
from emu.workloads.unmodified.watched import HalfWay, Watched, as_user, watched

_PORT = 22
_EVERY_S = 0.05
_LIMIT_S = 30.0


class ShellServer(Started):
    """OpenSSH's server on the laptop's server, for one key. `user`: who the client is run as."""

    def __init__(self, laptop: Laptop, user: int) -> None:
        self._laptop, self._user = laptop, user
        self._folder = laptop.directory / "ssh"
        self._services: list[Service] = []

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
            "Port": _PORT,
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self._services.append(
            Service(
                self._laptop.server, "/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", *words,
                output=self._folder / "sshd.log",
            )
        )  # fmt: skip
        self._services[-1].wait_for(lambda: accepts(self._laptop.server, SERVER, _PORT))

    @property
    def key(self) -> Path:
        return self._folder / "mine"

    def close(self) -> None:
        for service in self._services:
            service.close()

    def typing(
        self, where: Namespace, half_way: HalfWay | None = None, *, words: int = 80
    ) -> Watched:
        """A word each 50 ms; when each comes back. `half_way` is called between two of them."""
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
