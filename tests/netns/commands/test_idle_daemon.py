"""A daemon that rests lets the processor rest: events wake it, and one beat a second."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cedos.api.client import ControlClient
from cedos.errors import CedosError
from emu.bench.daemon import wakeups
from emu.testbed.netns import Namespace

SERVER = "198.51.100.1"
_SECONDS = 8.0


def test_an_idle_daemon_is_hardly_woken(
    make_namespace: Callable[[str], Namespace], tmp_path: Path
) -> None:
    """It was 8 to 10 times a second when each task had a beat of its own, and once is usual now."""
    near, far = make_namespace("near"), make_namespace("far")
    for net, name in enumerate(("wlan0", "lte0"), 1):
        near.ip("link", "add", name, "type", "veth", "peer", name, "netns", far.name)
        for side, host in ((near, 2), (far, 1)):
            side.ip("address", "add", f"10.9.{net}.{host}/24", "dev", name)
            side.ip("link", "set", name, "up")
        near.ip("route", "add", "default", "via", f"10.9.{net}.1", "metric", str(600 + net))
    far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
    config = tmp_path / "cedos.toml"
    config.write_text(
        f'[probes]\ntarget = "{SERVER}"\nportal_url = ""\n[providers]\nhost = false\n'
    )
    environment = os.environ | {
        "CEDOS_STATE_DIR": str(tmp_path / "state"),
        "CEDOS_RUNTIME_DIR": str(tmp_path / "run"),
    }
    client = ControlClient(tmp_path / "run" / "control.sock")
    with (tmp_path / "log").open("wb") as log:
        daemon = near.popen(
            *(sys.executable, "-m", "cedos", "up", "--config", str(config)),
            env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until_s = time.monotonic() + 60
        while True:
            try:
                client.status()
                break
            except CedosError:
                assert time.monotonic() < until_s
                time.sleep(0.1)
        time.sleep(4.0)  # past the first pings and decisions
        before = wakeups(daemon.pid)
        time.sleep(_SECONDS)
        woken = wakeups(daemon.pid) - before
    finally:
        daemon.terminate()
        daemon.wait(20)
    assert 0 < woken / _SECONDS < 6
