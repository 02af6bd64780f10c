"""`cedos-cat` between two hosts with two networks, as a person starts it."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CAT = str(Path(sys.executable).with_name("cedos-cat"))
MEGABYTES = 6


def test_a_stream_goes_over_all_networks(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world()
    world.shape("6mbit")
    data = os.urandom(MEGABYTES * 1_000_000)
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    out = tmp_path / "out"
    with out.open("wb") as got:
        server = world.far.popen(
            *(CAT, "--listen", "10.99.0.1:7100", "--own-key", str(tmp_path / "server.key")),
            stdin=subprocess.DEVNULL,
            stdout=got,
            stderr=subprocess.PIPE,
            env=environment,
        )
    try:
        line = server.stderr.readline().decode()
        key = re.search(r"its key is (\S+)", line)[1]
        began_s = time.monotonic()
        command = (CAT, "--key", key, "--own-key", str(tmp_path / "own.key"), "10.99.0.1", "7100")
        client = world.near.popen(*command, stdin=subprocess.PIPE, env=environment)
        client.communicate(data, timeout=60)
        assert client.returncode == 0
        took_s = time.monotonic() - began_s
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
    assert out.read_bytes() == data
    # Over one of them it takes 8 s at the very least, over both 4.
    assert took_s < 0.8 * 8 * MEGABYTES / 6, took_s
