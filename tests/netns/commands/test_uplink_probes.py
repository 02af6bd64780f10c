"""The daemon measures uplinks against a real `cedos probe-server`, once a program uploads something."""

import time
from typing import Any

import pytest

TRAIN = 50 * 1228


def test_the_uplink_is_told_within_a_fifth(world: Any) -> None:
    with world.probe_server(), world.daemon():
        world.until(lambda: [*map(len, world.known().values())] == [8, 8])
        assert all("udp_bps" in each for each in world.known().values())

        def told() -> bool:
            world.upload()
            return all("udp_up_bps" in each for each in world.known().values())

        world.until(told)
        time.sleep(5.0)  # trains that no upload goes beside
        status, known = world.status(), world.known()
    for name, mbps in world.mbps.items():
        # tbf counts the Ethernet header, too: 14 bytes of 1242.
        assert known[name]["udp_up_bps"] == pytest.approx(mbps["up"] * 1e6, rel=0.2)
        assert known[name]["udp_bps"] == pytest.approx(mbps["down"] * 1e6, rel=0.2)
        assert known[name]["udp_up_loss"] == 0.0
        cost = world.trains(status)[name]
        assert cost["bytes_up"] > TRAIN, "what was sent is accounted"
        assert cost["bytes_down"] > TRAIN
        assert cost["energy_j"] > 0
