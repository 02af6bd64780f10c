"""Real programs whose Wi-Fi dies under way, on an emulated laptop whose daemon closes what is stuck."""

from collections.abc import Iterator

import pytest

from emu.bench.caught_parts.programs import Bench, Trials, emulated
from emu.testbed.phones import SERVER

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture
def bench() -> Iterator[Bench]:
    with emulated("after 3s") as made:
        yield made


def test_programs_try_again_elsewhere_ssh_is_left_alone_and_all_is_told(bench: Bench) -> None:
    trials = Trials()
    bench.trial(trials, 15.0, ("curl", "curl-retry-all", "wget", "apt", "ssh"))
    again = [trials.of[each][0] for each in ("curl-retry-all", "wget", "apt")]
    assert all(each.done and each.took_s < 14.0 for each in again), trials
    assert not trials.of["curl"][0].done, "it was told not to try again"
    assert trials.of["ssh"][0].done
    closed = bench.daemon.logged("closed")
    assert closed
    assert all(f"{SERVER}:80" in entry["flow"] for entry in closed)
    explained = bench.daemon.cedos("explain", closed[0]["flow"])
    assert "the connection was closed, so that its program connects again" in " ".join(
        explained.stdout.split()
    )
    (told,) = bench.daemon.client.status().closed
    assert told.startswith(f"{len(closed)} connections on wlan0 were closed after 3 s of silence")
    assert told in " ".join(bench.daemon.cedos("status").stdout.split())
