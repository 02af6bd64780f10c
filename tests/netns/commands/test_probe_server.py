"""A probe server that answers, and one that is gone: the daemon goes on."""

import pytest


def test_one_that_listens_everywhere_answers_from_where_it_was_asked(world):
    """The server's host has three addresses, and that of its service is on none of the two links."""
    with world.probe_server("0.0.0.0"), world.daemon():
        world.until(
            lambda: (
                len(known := world.known()) == 2
                and all("udp_bps" in each for each in known.values())
            )
        )


def test_one_that_is_gone_is_asked_again(world):
    def failed(least):
        trains = world.trains(world.status())
        return len(trains) == 2 and all(each["failed"] >= least for each in trains.values())

    with world.daemon():
        world.until(lambda: failed(2))
        assert not any(world.known().values()), "nothing was measured"
        assert world.status()["default"]["network"] in world.mbps
        world.upload()  # programs do not notice
        with world.probe_server():
            world.until(lambda: all("udp_bps" in each for each in world.known().values()))
        before = max(each["failed"] for each in world.trains(world.status()).values())
        world.until(lambda: failed(before + 1))
        assert world.status()["default"]["network"] in world.mbps
    assert "Traceback" not in world.log_text()


TRAIN = 50 * 1228


def test_the_rate_is_told_within_a_fifth(world):
    with world.probe_server(), world.daemon():
        world.until(lambda: [*map(len, world.known().values())] == [8, 8])
        status, known = world.status(), world.known()
    for name, mbps in world.mbps.items():
        # tbf counts the Ethernet header, too: 14 bytes of 1242.
        assert known[name]["udp_bps"] == pytest.approx(mbps["down"] * 1e6, rel=0.2)
        cost = world.trains(status)[name]
        assert cost["bytes_down"] > TRAIN, "what came is accounted"
        assert cost["energy_j"] > 0
