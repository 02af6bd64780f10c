"""`cedos-get --bitrate` while Wi-Fi goes and comes back: no stall, and hardly a metered byte too many."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cedos.model import NetworkKind
from cedos.session import keys
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import LTE, SERVER, WLAN, Laptop

FAST = Trace.constant(12e6)
WIFI = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.020)
CELLULAR = Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.060)
RATE = 1.6e6  # 200 kB a second
SECONDS = 14.0
STORE = "0.8MB"  # 4 s: after that the phone has to bring what is played until Wi-Fi is back
AWAY_S = 7.0

# Reads what is played in each tenth of a second, and counts how often it had to wait.
PLAYER = """
import json, os, sys, time
want = float(sys.argv[1]) / 80
got = buffered = len(os.read(0, 1))
stalls = 0
time.sleep(2.0)
due = time.monotonic()
while True:
    first = time.monotonic()
    while buffered < want:
        data = os.read(0, 65536)
        if not data:
            print(json.dumps({"bytes": got, "stalls": stalls}))
            sys.exit()
        got += len(data)
        buffered += len(data)
    if time.monotonic() - first > 0.25:
        stalls += 1
        due = time.monotonic()
    buffered -= want
    due += 0.1
    time.sleep(max(due - time.monotonic(), 0))
"""


def carried(laptop):
    """Received and sent bytes of each interface."""
    found = {}
    for line in laptop.client.run("cat", "/proc/net/dev").stdout.splitlines():
        name, colon, rest = line.partition(":")
        if colon:
            words = rest.split()
            found[name.strip()] = int(words[0]) + int(words[8])
    return found


@pytest.mark.long
@pytest.mark.usefixtures("registry")
def test_the_phone_brings_only_what_wifi_cannot(tmp_path):
    served = tmp_path / "served"
    served.mkdir()
    (served / "film").write_bytes(os.urandom(int(RATE / 8 * SECONDS)))
    (tmp_path / "player.py").write_text(PLAYER)
    key = keys.to_text(keys.own_key(tmp_path / "server.key").public)
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "CEDOS_RUNTIME_DIR": str(tmp_path),
    }
    serve, get = (str(Path(sys.executable).with_name(f"cedos-{name}")) for name in ("serve", "get"))
    with Laptop(WIFI, CELLULAR, source_rules=True) as laptop:
        server = laptop.server.popen(
            *(serve, "-l", f"{SERVER}:7008", "--own-key", str(tmp_path / "server.key")),
            *("--forget", str(served)),
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(2.0)
            before = carried(laptop)
            line = (
                f"{get} --timeout 60s --key {key} -o - --bitrate {RATE:.0f} --store {STORE}"
                f" {SERVER}/film | {sys.executable} {tmp_path / 'player.py'} {RATE}"
            )
            with laptop.client.popen(
                *("sh", "-c", line), env=environment, stdout=subprocess.PIPE, text=True
            ) as playing:
                ends_s = time.monotonic() + 30
                while carried(laptop)[WLAN] < 900_000 and time.monotonic() < ends_s:
                    time.sleep(0.1)
                begun_over_lte = carried(laptop)[LTE]
                laptop.detach(NetworkKind.WIFI)
                time.sleep(AWAY_S)
                laptop.attach(WIFI)
                played = json.loads(playing.communicate()[0])
            after = carried(laptop)
        finally:
            server.terminate()
            server.wait(20)
    assert played == {"bytes": 2_800_000, "stalls": 0}
    assert begun_over_lte < 60_000  # none of it is begun while Wi-Fi is up
    assert 100_000 < after[LTE] - before[LTE] < 200_000 * AWAY_S
    assert after[WLAN] - before[WLAN] > 1_400_000
