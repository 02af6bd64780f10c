"""Programs connect into a network that has just died, on an emulated laptop with the daemon."""

from collections.abc import Iterator

import pytest
from kit.waiting import wait_until

from emu.bench.rescue import Bench, Measured, emulated

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture
def bench() -> Iterator[Bench]:
    with emulated(0.020, 0.060) as made:
        yield made


def test_programs_are_rescued_explained_and_nothing_stays(bench: Bench) -> None:
    daemon, client = bench.daemon, bench.laptop.client
    measured = Measured()
    bench.trial(measured, print)
    assert measured.rescues
    # The kernel alone would take for ever; the bench measures how much sooner it is.
    assert all(0 < each.took_s < 5.0 for each in measured.rescues)
    assert daemon.rescues() >= len(measured.rescues)
    output = daemon.cedos("explain", "198.51.100.1:80")
    told = " ".join(entry["why"] for entry in daemon.logged("rescued"))
    assert "no reply to its first packet over" in told
    assert output.returncode == 0, output.stderr
    wait_until(lambda: " sport " not in client.ip("rule"), 5)  # the flows have ended
