"""Programs connect into a network that has just died, on an emulated laptop with the daemon."""

import time
from collections.abc import Iterator

import pytest

from emu.bench.crash import parts
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
    deadline_s = time.monotonic() + 5
    while " sport " in client.ip("rule"):  # the flows have ended: so have their rules
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_killed_and_restored_the_host_is_as_before(bench: Bench) -> None:
    daemon, client = bench.daemon, bench.laptop.client
    daemon.stop()
    before = parts(client)
    daemon.start()
    holding = [bench.python(mptcp, hold_s=20.0) for mptcp in (False, True)]
    try:
        daemon.until_both_live()
        with bench.dead(daemon.default()):
            for process in holding:
                bench.go(process)
            for process in holding:
                assert process.stdout is not None
                assert float(process.stdout.readline().split()[0]) > 0
        assert " sport " in client.ip("rule")
        assert "CEDOS_NAT" in client.run("iptables-save").stdout
        daemon.kill()
        restored = daemon.cedos("restore")
        assert restored.returncode == 0, restored.stderr
        assert "CEDOS_NAT" in restored.stdout
    finally:
        for process in holding:
            process.kill()
            process.communicate()
    assert parts(client) == before
