"""Ways in which the laptop's Wi-Fi dies, and what a download makes of it."""

import hashlib
import time
from itertools import pairwise

SIZE = 8_000_000
MOST_STALL_S = 1.5


def silent(laptop):
    for where in (laptop.near, laptop.far):
        where.run("iptables", "-I", "INPUT", "-i", "wlan0", "-j", "DROP")


def unplugged(laptop):
    laptop.near.ip("link", "set", "wlan0", "down")


def renumbered(laptop):
    laptop.near.ip("address", "del", "10.9.1.2/24", "dev", "wlan0")
    laptop.near.ip("address", "add", "10.9.1.77/24", "dev", "wlan0")
    laptop.world.route("wlan0")


def whole_in_spite_of(dies, laptop, curl, data):
    """`curl` prints `data`; an eighth of the way Wi-Fi dies."""
    got, arrivals = bytearray(), []
    while chunk := curl.stdout.read1(1 << 16):
        if len(got) < len(data) // 8 <= len(got) + len(chunk):
            dies(laptop)
        got += chunk
        arrivals.append(time.monotonic())
    assert curl.wait(30) == 0, curl.stderr.read()
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    stall_s = max(later - earlier for earlier, later in pairwise(arrivals))
    print(f"{dies.__name__}: longest stall {1e3 * stall_s:.0f} ms")
    assert stall_s < MOST_STALL_S
