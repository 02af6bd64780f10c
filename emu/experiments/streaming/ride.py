"""`cedos-get --bitrate` through a place in the emulated laptop, with a player that reads as one plays."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.session import keys
from emu.experiments.streaming.optimum import Playback, least_metered_bytes
from emu.testbed.access import Access
from emu.testbed.phones import LTE, SERVER, WLAN, Laptop

# Reads what is played in each tenth of a second; says when it had to wait, and how long.
_PLAYER = """
import json, os, select, sys, time
rate, delay = float(sys.argv[1]) / 8, float(sys.argv[2])
got = stalls = 0
stalled = 0.0
data = os.read(0, 1)
got += len(data)
began = time.monotonic()
time.sleep(delay)
due = time.monotonic()
buffer = len(data)
while True:
    want = rate / 10
    first = time.monotonic()
    while buffer < want:
        data = os.read(0, 65536)
        if not data:
            print(json.dumps({"bytes": got, "stalls": stalls, "stalled_s": round(stalled, 2)}))
            sys.exit()
        got += len(data)
        buffer += len(data)
    waited = time.monotonic() - first
    if waited > 0.25:
        stalls += 1
        stalled += waited
        due = time.monotonic()
    buffer -= want
    due += 0.1
    time.sleep(max(due - time.monotonic(), 0))
"""


@dataclass(frozen=True, slots=True)
class Ride:
    """The pauses of a player, and the bytes over each network."""

    played_bytes: int
    stalls: int
    stalled_s: float
    metered_bytes: int
    unmetered_bytes: int
    least_metered_bytes: float | None


def ride(
    laptop: Laptop,
    folder: Path,
    playback: Playback,
    meanwhile: Callable[[], None] = lambda: None,
) -> Ride:
    """Play a stream over whatever the laptop's networks are; `meanwhile` may change them."""
    size = int(playback.bitrate_bps / 8 * playback.seconds)
    served = folder / "served"
    served.mkdir()
    (served / "film").write_bytes(os.urandom(size))
    key = keys.to_text(keys.own(folder / "server.key").public)
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "CEDOS_RUNTIME_DIR": str(folder),
    }
    cedos_serve, cedos_get = (
        str(Path(sys.executable).with_name(name)) for name in ("cedos-serve", "cedos-get")
    )
    (folder / "player.py").write_text(_PLAYER)
    with (folder / "server.log").open("w") as log:
        server = laptop.server.popen(
            *(cedos_serve, "-l", f"{SERVER}:7008", "--own-key", str(folder / "server.key")),
            *("--forget", str(served)),
            env=environment,
            stderr=log,
        )
    try:
        time.sleep(2.0)
        before = carried(laptop)
        line = (
            f"{cedos_get} --timeout 60s --key {key} -o - --bitrate {playback.bitrate_bps:.0f} "
            f"--store {playback.store_bytes / 1e6:.0f}MB {SERVER}/film | "
            f"{sys.executable} {folder / 'player.py'} {playback.bitrate_bps} {playback.delay_s}"
        )
        with laptop.client.popen(
            *("sh", "-c", line), env=environment, stdout=subprocess.PIPE, text=True
        ) as playing:
            meanwhile()
            said = playing.communicate()[0]
        after = carried(laptop)
    finally:
        server.terminate()
        server.wait(20)
    seen: dict[str, Any] = json.loads(said)
    return Ride(
        seen["bytes"],
        seen["stalls"],
        seen["stalled_s"],
        after[LTE] - before[LTE],
        after[WLAN] - before[WLAN],
        _least(laptop, playback),
    )


def _least(laptop: Laptop, playback: Playback) -> float | None:
    wifi, cellular = (
        _rates(access, playback) for access in sorted(laptop.accesses.values(), key=_is_cellular)
    )
    return least_metered_bytes(wifi, cellular, playback)


def _is_cellular(access: Access) -> bool:
    return access.interface == LTE


def _rates(access: Access, playback: Playback) -> list[float]:
    """Bits per second that the network carries in each second of the stream and a little beyond."""
    bins = [float(each) for each in access.down.bins(1.0)]
    seconds = int(playback.seconds + playback.delay_s) + 5
    return [bins[n % len(bins)] for n in range(seconds)]


def carried(laptop: Laptop) -> dict[str, int]:
    """Received and sent bytes of each interface."""
    text = laptop.client.run("cat", "/proc/net/dev").stdout
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        if colon:
            words = rest.split()
            found[name.strip()] = int(words[0]) + int(words[8])
    return found
