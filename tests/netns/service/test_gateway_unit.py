"""The gateway's unit, as `cedos example gateway-unit` prints it, under a real systemd."""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.netns.gateway.conftest import ORIGIN

PROXY = "socks5h://127.0.0.1:1080"
SIZE = 9_000_000
_ALONE = "[Unit]\nDefaultDependencies=no\nAfter=\nWants=\n[Service]\n"
_FILES = Path("/run/systemd/system")  # where the machine finds what it is given
_STATE = "/var/lib/cedos-gateway"


@pytest.mark.parametrize("options", ["", pytest.param(" --processes 2", marks=pytest.mark.long)])
def test_restart_and_reload_break_nothing(
    laptop: Any, machine: Callable[..., Any], tmp_path: Path, options: str
) -> None:
    laptop.world.shape("20mbit")
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    laptop.gateway.terminate()
    assert laptop.gateway.wait(20) == 0
    printed = subprocess.run(
        [sys.executable, "-m", "cedos", "example", "gateway-unit"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.replace("--log-level warning", f"--allow-local{options}")
    keys = tmp_path / "server" / "cedos"
    copying = " ".join(
        f"install -m 600 -o $$(stat -c %%u {_STATE}/) {_FILES}/{name} {_STATE}/cedos/{name};"
        for name in ("session.key", "gateway-clients.toml")
    )
    access = "NotifyAccess=all\n" if options else ""
    units = {
        **{name: (keys / name).read_text() for name in ("session.key", "gateway-clients.toml")},
        "cedos-gateway.service": printed,
        "cedos-gateway.service.d/alone.conf": f"{_ALONE}{access}StandardError=append:/run/seen/log\n"
        f"ExecStartPre=+/bin/sh -c 'mkdir -p {_STATE}/cedos; {copying}"
        f" chown $$(stat -c %%u {_STATE}/) {_STATE}/cedos; chmod 700 {_STATE}/cedos'\n",
    }
    made = machine(laptop.far, units)

    def log() -> str:
        return str(made.run("cat", "/run/seen/log", check=False).stdout)

    def until(there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 20
        while not there():
            assert time.monotonic() < deadline_s, log()
            time.sleep(0.1)

    done = made.run("systemctl", "start", "cedos-gateway", check=False)
    assert done.returncode == 0, (done.stderr, log(), made.log.read_text())
    laptop.forward("-D", "1080", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    got, pids = bytearray(), [made.shown("cedos-gateway", "MainPID")]
    words = ["restart", "reload"]
    while chunk := curl.stdout.read1(1 << 16):
        got += chunk
        if words and len(got) > (3 - len(words)) * SIZE // 4:
            made.systemctl(words.pop(0), "cedos-gateway")
            until(lambda: log().count("ready ") == 3 - len(words))
            pids.append(made.shown("cedos-gateway", "MainPID"))
    assert curl.wait(60) == 0, (curl.stderr.read(), log())
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    assert len(set(pids)) == 2, pids
    assert pids[1] == pids[2], "reload is the same process"
    assert log().count("goes on ") == 2, log()
    assert made.shown("cedos-gateway", "NFileDescriptorStore") == "0"
    # What is stopped for good keeps nothing open.
    talk = laptop.curl("-x", PROXY, f"telnet://{ORIGIN}:8080")

    def stands() -> bool:
        return bool(
            laptop.far.run("ss", "-Htn", "state", "established", "dport", "=", ":8080").stdout
        )

    until(stands)
    made.systemctl("stop", "cedos-gateway")
    assert made.shown("cedos-gateway", "Result") == "success"
    until(lambda: not stands())
    talk.kill()
