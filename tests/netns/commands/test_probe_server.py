"""A probe server that is gone, and one that lies: the daemon goes on, and believes neither."""

import sys
import time
from contextlib import contextmanager

import pytest

# Knows the key and answers as it should, but for what it reports of trains upwards.
LIAR = """
import socket, sys
from pathlib import Path
from cedos.model import Direction
from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.keyfile import read_key

address, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
key = read_key(Path(sys.argv[4]))
packets = {}
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as served:
    served.bind((address, port))
    while True:
        data, source = served.recvfrom(2048)
        said = wire.decode(data, key)
        answer = None
        if isinstance(said, wire.ProbeHello):
            answer = wire.Cookie(said.session, bytes(16))
        elif isinstance(said, wire.TrainRequest) and said.direction is Direction.UP:
            packets[said.session] = said.packets, said.packet_bytes
            answer = wire.Ready(said.session)
        elif isinstance(said, wire.Done) and said.session in packets:
            count, size = packets[said.session]
            count += how == "never sent"
            arrivals = tuple((n, n / 1e6) for n in range(count))
            answer = wire.Report(said.session, count * size, 0.001, arrivals)
        if answer is not None:
            served.sendto(wire.encode(answer, key), source)
"""


@contextmanager
def liar(world, how):
    process = world.far.popen(
        *(sys.executable, "-c", LIAR, world.server, str(world.port), how, str(world.key))
    )
    try:
        yield
        assert process.poll() is None, "the liar itself failed"
    finally:
        process.terminate()
        process.wait(20)


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


@pytest.mark.parametrize("how", ["a thousand times", "never sent"])
def test_one_that_lies_is_not_believed(world, how):
    """It reports ten gigabits a second, or packets that nobody sent."""

    def judged():
        world.upload()
        if how == "a thousand times":
            return all("udp_up_bps" in each for each in world.known().values())
        trains = world.trains(world.status())  # two of them were sent upwards, to the end
        return len(trains) == 2 and all(e["bytes_up"] > 2 * 50 * 1228 for e in trains.values())

    with world.daemon(), liar(world, how):
        world.until(lambda: world.status() != {})
        world.until(judged)
        known = world.known()
        assert world.status()["default"]["network"] in world.mbps
    for name, mbps in world.mbps.items():
        if how == "never sent":
            assert "udp_up_bps" not in known[name]
        else:
            # Believed up to four times what this end saw, which a busy host sees too short.
            assert known[name]["udp_up_bps"] < 8 * mbps["up"] * 1e6
        assert "udp_bps" not in known[name], "no train came down"
    assert "Traceback" not in world.log_text()


TRAIN = 50 * 1228


def test_the_uplink_is_told_within_a_fifth(world):
    with world.probe_server(), world.daemon():
        world.until(lambda: [*map(len, world.known().values())] == [8, 8])
        assert all("udp_bps" in each for each in world.known().values())

        def told():
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
