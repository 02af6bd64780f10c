"""The daemon on a requestor knows its helpers as networks: their prices, their bytes, when they go."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from kit.street import HELPERS, PERIOD_S, RATE_BPS, Street, uplinks
from kit.waiting import wait_until

from cedos.api.client import ControlClient
from cedos.errors import CedosError
from emu.places.traces import TCP_GOODPUT_SHARE
from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import SharingHosts
from emu.testbed.programs.servers import Servers

# Several of these at once are too much for two cores: they run one after the other.
pytestmark = pytest.mark.xdist_group("sharing")

CONFIG = """
[networks.lte0]
kind = "wifi"
metered = false
[probes]
target = "198.51.100.1"
dns = false
portal_url = ""
[providers]
host = false
"""
PRICES = {f"{0.5 + 0.1 * number:.2f}" for number in range(HELPERS)}
COUNT = 10_000_000


class Watched(Street):
    """A street whose requestor has a fast network that costs nothing, and the daemon."""

    def begin_beside(self):
        config = self.there.directory / "cedos.toml"
        config.write_text(CONFIG)
        self.hosts.begin("requestor", "up", "--config", str(config), name="daemon")
        wait_until(self._answers, 30)  # the proxy waits for one that starts for 5 s
        self.begin([("--price", f"{each}EUR/GB", "--limit", "500MB") for each in sorted(PRICES)])

    def _answers(self):
        with suppress(CedosError):
            return self.known() is not None
        return False

    def known(self):
        runtime = Path(self.hosts.variables("requestor")["CEDOS_RUNTIME_DIR"])
        return ControlClient(runtime / "control.sock").status()

    def neighbours(self):
        return {each.name: each for each in self.known().networks if each.kind == "helper"}

    def carried(self):
        return sum(each.carried_bytes for each in self.neighbours().values())

    def paid_for(self):
        """Return whether the receipts name what the daemon counted."""
        paid, counted = sum(self.owed_bytes("requestor").values()), self.carried()
        return abs(counted - paid) < 0.01 * counted


@pytest.fixture
def watched():
    there = Neighbourhood(uplinks([RATE_BPS] * HELPERS), own=uplinks([6 * RATE_BPS])[0])
    with there, Servers(there), SharingHosts(there) as hosts:
        street = Watched(there, hosts)
        street.begin_beside()
        yield street


@pytest.mark.timeout(600)
def test_helpers_are_networks_of_the_daemon(watched):
    # 1. Each has the price that it signed, and leads to the gateway alone.
    wait_until(lambda: len(watched.neighbours()) == HELPERS)
    known = watched.neighbours()
    assert list(known) == [f"helper-{number + 1}" for number in range(HELPERS)]
    assert {f"{each.price_per_gb:.2f}" for each in known.values()} == PRICES
    for each in known.values():
        assert each.up
        assert each.metered
        assert each.interface == "wlan0"
        assert each.leads_to == "198.51.100.9"
    wait_until(
        lambda: (
            {each.neighbour for each in watched.neighbours().values()}
            == {f"helper-{number}" for number in range(HELPERS)}
        )
    )
    assert watched.known().default.network == "lte0"

    # 2. Beside a network that is fast and free they carry next to nothing.
    watched.download(COUNT).end()
    idle_bytes = watched.carried()
    print(f"{idle_bytes} bytes of {COUNT} over helpers beside a free network of 24 Mbit/s")
    assert idle_bytes < 0.1 * COUNT
    assert "would cost more than the time saved is worth" in watched.hosts.cedos(
        "requestor", "explain"
    ).replace("\n  ", " ")

    # 3. Without it all of them carry, and the daemon counts what the gateway's receipts say.
    watched.there.requestor.ip("link", "set", "lte0", "down")
    began_s = time.monotonic()
    assert watched.download(2 * COUNT).end() == 0
    share = 16 * COUNT / (time.monotonic() - began_s) / (HELPERS * RATE_BPS * TCP_GOODPUT_SHARE)
    # The daemon's count is up to a second late, the last receipts are up to a period.
    wait_until(watched.paid_for, limit_s=3 * PERIOD_S, every_s=0.5)
    paid, counted = watched.owed_bytes("requestor"), watched.carried()
    print(f"{share:.3f} of the sum of three; {counted} bytes counted, {sum(paid.values())} paid")
    assert share > 0.85
    assert len(paid) == HELPERS
    wait_until(lambda: watched.known().default.network is None)

    # 4. A hard budget of money that is used up ends their use; one that is raised begins it again.
    most = 0.002
    budget = ("budget", "set", "--hard", "--until", "1h", "money")
    watched.hosts.cedos("requestor", *budget, f"{most}")
    download = watched.download(COUNT)
    reading = threading.Thread(target=download.end)
    reading.start()
    wait_until(lambda: not watched.neighbours(), every_s=0.5)
    assert "hard budget money is used up" in watched.hosts.cedos("requestor", "share")
    (known,) = json.loads(watched.hosts.cedos("requestor", "budget", "--json"))
    print(f"{known['spent']:.4f} of {most} spent")
    second = HELPERS * RATE_BPS / 8e9 * 0.6
    assert known["spent"] < most + 3.0 * second
    watched.hosts.cedos("requestor", *budget, "10")
    watched.wait_for(HELPERS)
    reading.join()
    assert download.received_bytes == COUNT

    # 5. One that goes is gone for the daemon.
    os.kill(watched.helpers[0].pid, signal.SIGTERM)
    wait_until(lambda: len(watched.neighbours()) < HELPERS)
    assert watched.download(COUNT // 4).end() == 0
