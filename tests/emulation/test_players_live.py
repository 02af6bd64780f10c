"""A player that says what it has in store (CMCD), while Wi-Fi is away: it waits, and is never late."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cedos.model import NetworkKind
from emu.experiments.streaming.ride import carried
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import LTE, SERVER, Laptop
from emu.testbed.programs.gateway import PROXY_PORT, Gatewayed
from emu.testbed.programs.servers import Servers

FAST = Trace.constant(12e6)
WIFI = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.020)
CELLULAR = Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.060)
PIECE_BYTES = 100_000  # a second
AHEAD_S, PLAYED_S, AWAY_S = 8.0, 24, 12.0

# One request for each second, as many ahead as it may; says how much too late each of them was.
PLAYER = """
import http.client, json, sys, time
port, url, seconds, ahead_s, piece_bytes = int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:])
late_s, zero_s = 0.0, None
for number in range(int(seconds)):
    def store_s():
        return 0.0 if zero_s is None else max(number - (time.monotonic() - zero_s), 0.0)
    while store_s() + 1.0 > ahead_s:
        time.sleep(0.02)
    said = f'bl={round(10 * store_s()) * 100},br={round(piece_bytes * 8e-3)},d=1000,ot=v,sid="a"'
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", url, headers={"CMCD-Request": said})
    got = connection.getresponse().read()
    assert len(got) == piece_bytes, len(got)
    now = time.monotonic()
    if zero_s is None:
        zero_s = now + 0.5
    late_s = max(late_s, now - zero_s - number)
    print(json.dumps({"number": number, "late_s": late_s, "store_s": store_s()}), flush=True)
"""


@pytest.mark.usefixtures("registry")
def test_a_player_waits_for_wifi_as_long_as_it_can_and_no_longer(tmp_path: Path) -> None:
    with (
        Laptop(WIFI, CELLULAR, source_rules=True) as laptop,
        Servers(laptop, mptcp=False) as servers,
        Gatewayed(laptop, tmp_path, {}),
    ):
        servers.make_size(PIECE_BYTES)
        (tmp_path / "player.py").write_text(PLAYER)
        with laptop.client.popen(
            *(sys.executable, str(tmp_path / "player.py"), str(PROXY_PORT)),
            *(f"http://{SERVER}/bytes/{PIECE_BYTES}", str(PLAYED_S), str(AHEAD_S)),
            str(PIECE_BYTES),
            stdout=subprocess.PIPE,
            text=True,
        ) as playing:
            assert playing.stdout is not None
            seen: list[dict[str, Any]] = []
            while not seen or seen[-1]["store_s"] < AHEAD_S - 2.0:
                seen.append(json.loads(playing.stdout.readline()))
            before = carried(laptop)[LTE]
            laptop.detach(NetworkKind.WIFI)
            time.sleep(3.0)
            waited = carried(laptop)[LTE]
            time.sleep(AWAY_S - 3.0)
            after = carried(laptop)[LTE]
            laptop.attach(WIFI)
            seen += map(json.loads, playing.stdout)
    assert seen[-1]["number"] == PLAYED_S - 1
    assert seen[-1]["late_s"] <= 0.0
    assert waited - before < 60_000  # it has enough
    assert 2 * PIECE_BYTES < after - before < (AWAY_S - 3.0) * PIECE_BYTES
