"""The gateway's unit, as `cedos example gateway-unit` prints it, under a real systemd."""

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

from kit.waiting import wait_until

from tests.netns.gateway.conftest import ORIGIN

PROXY = "socks5h://127.0.0.1:1080"
SIZE = 9_000_000
_ALONE = "[Unit]\nDefaultDependencies=no\nAfter=\nWants=\n[Service]\n"
_FILES = Path("/run/systemd/system")  # where the machine finds what it is given
_STATE = "/var/lib/cedos-gateway"


def test_a_restart_breaks_what_it_carried_and_serves_again(laptop, machine, tmp_path):
    laptop.world.shape("20mbit")
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    laptop.gateway.terminate()
    assert laptop.gateway.wait(20) == 0
    printed = subprocess.run(
        [sys.executable, "-m", "cedos", "example", "gateway-unit"],
        check=False,  # 4 where the service could not read this installation
        capture_output=True,
        text=True,
    ).stdout.replace("--log-level warning", "--allow-local")
    keys = tmp_path / "server" / "cedos"
    copying = " ".join(
        f"install -m 600 -o $$(stat -c %%u {_STATE}/) {_FILES}/{name} {_STATE}/cedos/{name};"
        for name in ("session.key", "gateway-clients.toml")
    )
    units = {
        **{name: (keys / name).read_text() for name in ("session.key", "gateway-clients.toml")},
        "cedos-gateway.service": printed,
        "cedos-gateway.service.d/alone.conf": f"{_ALONE}StandardError=append:/run/seen/log\n"
        f"ExecStartPre=+/bin/sh -c 'mkdir -p {_STATE}/cedos; {copying}"
        f" chown $$(stat -c %%u {_STATE}/) {_STATE}/cedos; chmod 700 {_STATE}/cedos'\n",
    }
    made = machine(laptop.far, units)

    def log():
        return str(made.run("cat", "/run/seen/log", check=False).stdout)

    def until(there):
        wait_until(there, describe=log)

    done = made.run("systemctl", "start", "cedos-gateway", check=False)
    assert done.returncode == 0, (done.stderr, log(), made.log.read_text())
    assert laptop.far.sysctl("net.ipv4.tcp_slow_start_after_idle") == "0"
    laptop.forward("-D", "1080", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    assert curl.stdout.read1(1 << 16)
    made.systemctl("restart", "cedos-gateway")
    until(lambda: log().count("ready ") == 2)
    curl.communicate(timeout=20)  # it ends only once its output is read
    assert curl.returncode != 0
    # The proxy refuses connections (`--fail closed`) until its link to the gateway is up again.
    got = b""
    deadline_s = time.monotonic() + 20
    while not got and time.monotonic() < deadline_s:
        again = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
        got = again.communicate(timeout=60)[0]
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    # A stopped gateway leaves nothing open.
    talk = laptop.curl("-x", PROXY, f"telnet://{ORIGIN}:8080")

    def stands():
        return bool(
            laptop.far.run("ss", "-Htn", "state", "established", "dport", "=", ":8080").stdout
        )

    until(stands)
    made.systemctl("stop", "cedos-gateway")
    assert made.shown("cedos-gateway", "Result") == "success"
    until(lambda: not stands())
    assert laptop.far.sysctl("net.ipv4.tcp_slow_start_after_idle") == "1"
    talk.kill()
