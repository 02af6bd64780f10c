"""Budgets on a real daemon: what all programs carry counts, over restarts and unplugged interfaces."""

import json
import re
import signal
import sys
import time

import pytest
from kit.waiting import wait_until

pytestmark = pytest.mark.netns

SEND = (
    "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
    "[s.sendto(bytes(1000), ('192.168.44.1', 9)) for _ in range({count})]"
)


class Host:
    """A laptop with Wi-Fi and a metered network, and cedos on it."""

    def __init__(self, tethered, install):
        self.laptop, self.plug = tethered.laptop, tethered.plug
        self._installed = install(self.laptop)

    def send(self, count):
        """Some program sends so many kilobytes (and headers: 42 bytes each) over the metered network."""
        self.laptop.run(sys.executable, "-c", SEND.format(count=count))

    def cedos(self, *arguments):
        return self._installed.run(*arguments)

    def budget(self):
        done = self.cedos("budget", "--json")
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)
        return dict(found)

    def spent_reaches(self, count):
        (found,) = wait_until(
            lambda: [
                each for each in self._installed.client.budgets() if each.spent >= count * 1042
            ]
        )
        # The other end says now and then that nobody listens, and each end resolves the other.
        return found.spent < count * 1042 + 30_000

    def used_is_about(self, count):
        """`cedos usage` says the same, with a daemon and without."""
        done = self.cedos("usage", "--since", "1h", "--json")
        assert done.returncode == 0, done.stderr
        networks = {each["network"]: each for each in json.loads(done.stdout)["networks"]}
        carried = networks["lte0"]["metered_bytes"]
        return count * 1042 <= carried < count * 1042 + 30_000

    def problems(self):
        return self._installed.client.status().problems

    def up(self):
        return self._installed.up("--dry-run")


@pytest.fixture
def host(tethered, install):
    return Host(tethered, install)


def test_what_all_programs_carry_counts_whatever_happens(host):
    host.send(50)  # before anybody counted
    with host.up() as process:
        done = host.cedos(
            "budget", "set", "data", "2MB", "--until", "2099-12-01", "--every", "month"
        )
        assert done.returncode == 0, done.stderr
        assert "data" in done.stdout
        host.send(300)
        assert host.spent_reaches(300)
        shown = host.budget()
        assert shown["supply"] == 2e6
        assert shown["s_per_unit"] > 0
        assert "data: a megabyte " in host.cedos("explain").stdout
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    # Without a daemon: what was counted until it ended.
    done = host.cedos("budget")
    assert "No daemon answers" in done.stdout
    assert 300 * 1042 <= host.budget()["spent"] < 300 * 1042 + 30_000
    assert host.used_is_about(300)
    host.send(100)  # counted when the next one starts
    with host.up():
        assert host.spent_reaches(400)
        # The interface vanishes with its counters, and another one comes in its place.
        host.laptop.ip("link", "delete", "lte0")
        time.sleep(1.5)
        host.plug("lte0", 44)
        host.send(200)
        assert host.spent_reaches(600)
        # Killed in the middle (the end of the block), whatever was not written yet.
        host.send(100)
        assert host.spent_reaches(700)
    with host.up():
        assert host.spent_reaches(700)
        assert host.used_is_about(700)
        host.send(1400)
        assert host.spent_reaches(2100)
        shown = host.budget()
        assert shown["spent_up"]
        wait_until(lambda: "exceeded" in str(host.problems()))
        # In its column, or below the row where what stands before it is long.
        assert re.search(r"(  |PRICE NOW )used up", host.cedos("budget").stdout)
        assert (
            host.cedos(
                "budget", "set", "data", "1GB", "--until", "2099-12-01", "--every", "month"
            ).returncode
            == 0
        )
        assert not host.budget()["spent_up"]
        assert host.cedos("budget", "remove", "data").returncode == 0
        assert json.loads(host.cedos("budget", "--json").stdout) == []
        assert host.cedos("budget", "remove", "data").returncode == 1
