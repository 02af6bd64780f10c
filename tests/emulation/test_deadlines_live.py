"""`cedos-get --by` beside the daemon on an emulated laptop; both are killed, and all is there in time."""

import json
import signal
import subprocess
import sys
import time

import pytest
from kit.served_file import PORT, ServedFile
from kit.waiting import wait_until

from cedos.controller.rule import RuleRequest
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon

BYTES = 12_000_000
WHEN = "1h"
"""Long enough for LTE to wait though it was never used and so is taken for 1 Mbit/s: with three minutes
it begins at once, and has carried a megabyte when its rate is known."""

_ASKED_BYTES = 500_000
"""Handshakes and the question for the size go over any network, twice here."""
WIFI = Access(NetworkKind.WIFI, Trace.constant(16e6), Trace.constant(16e6), 0.020)
LTE = Access(NetworkKind.CELLULAR, Trace.constant(16e6), Trace.constant(16e6), 0.060)
CONFIG = (
    f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
    "dns = false\n[providers]\nhost = false\n"
)


class Fetching(ServedFile):
    """The daemon and the program at one end, the server at the other."""

    def __init__(self, laptop, folder):
        self.laptop, self.daemon = laptop, Daemon(laptop.client, folder / "daemon", CONFIG)
        environment = self.daemon.environment
        super().__init__(laptop.client, laptop.server, SERVER, folder, BYTES, environment)

    def up(self):
        self.daemon.start()
        self.daemon.wait_for(lambda client: bool(client.status().networks), 20.0)

    def until_more(self, n_bytes, limit_s=30.0):
        wanted = self.have() + n_bytes
        wait_until(lambda: self.have() >= wanted, limit_s)

    def listed(self):
        (found,) = self.daemon.client.transfers()
        return found

    def waiting(self):
        """Return the transfer while its program runs and may use no network yet."""
        found = self.listed()
        waits = found.running and found.turn.networks == () and found.turn.begin_unix_s is not None
        return found if waits else None

    def close(self):
        super().close()
        self.daemon.stop()


@pytest.fixture
def fetching(tmp_path, registry):
    with Laptop(WIFI, LTE) as laptop:
        fetching = Fetching(laptop, tmp_path)
        try:
            yield fetching
        finally:
            fetching.close()


def test_over_wifi_as_far_as_possible_though_both_programs_are_killed(fetching):
    fetching.serve()
    fetching.up()
    program = fetching.get("--by", WHEN)
    fetching.until_more(BYTES // 6)
    program.send_signal(signal.SIGKILL)
    program.wait()
    time.sleep(1.0)
    fetching.daemon.kill()
    kept = fetching.have()
    fetching.up()
    # Out of the door.
    fetching.laptop.detach(NetworkKind.WIFI)
    wait_until(lambda: not fetching.listed().running)
    assert fetching.listed().name == "got"
    program = fetching.get("--by", WHEN)
    waits = wait_until(fetching.waiting)
    assert waits.turn.begin_unix_s > time.time()
    time.sleep(1.0)
    assert fetching.have() - kept < _ASKED_BYTES
    said = subprocess.run(
        fetching.laptop.client.command(sys.executable, "-m", "cedos", "transfers"),
        env=fetching.environment, capture_output=True, text=True, timeout=30, check=True,
    ).stdout  # fmt: skip
    assert "waiting for Wi-Fi, begins at the latest " in said
    assert " over lte0" in said
    explained = fetching.daemon.client.explain()
    assert "defer" in {str(each.strategy.kind) for each in explained.evaluations}
    fetching.laptop.attach(WIFI)
    out, error = program.communicate(timeout=90)
    assert program.returncode == 0, error
    (fact,) = json.loads(out)["files"]
    assert fact["in_time"]
    assert fact["received_bytes"].get("lte0", 0) < _ASKED_BYTES
    assert fetching.is_whole()
    wait_until(lambda: fetching.daemon.client.transfers() == [])


def test_a_users_rule_holds_for_what_sessions_carry(fetching):
    (fetching.folder / "served" / "file").write_bytes(bytes(3_000_000))
    fetching.serve()
    fetching.up()
    client, received_bytes = fetching.daemon.client, fetching.laptop.received_bytes
    for network, other in (("wlan0", "lte0"), ("lte0", "wlan0")):
        rule = client.add_rule(RuleRequest(host=SERVER, port=PORT, only=(network,)))
        before = {name: received_bytes(name) for name in (network, other)}
        program = fetching.get()
        _, error = program.communicate(timeout=60)
        assert program.returncode == 0, error
        assert received_bytes(network) - before[network] > 3_000_000
        assert received_bytes(other) - before[other] < 20_000, "the daemon's own questions"
        client.remove_rule(rule.number)
        (fetching.folder / "got").unlink()


@pytest.mark.long
def test_over_lte_as_much_as_the_deadline_needs(fetching):
    fetching.serve()
    fetching.up()
    program = fetching.get("--by", "40s")
    fetching.until_more(BYTES // 6)
    fetching.laptop.detach(NetworkKind.WIFI)
    out, error = program.communicate(timeout=90)
    assert program.returncode == 0, error
    (fact,) = json.loads(out)["files"]
    assert fact["in_time"]
    assert fact["received_bytes"]["lte0"] > BYTES // 10
