"""Three helpers with emulated uplinks carry a requestor's programs, all programs really running."""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import TCP_GOODPUT_SHARE, Trace
from emu.testbed.access import Access
from emu.testbed.neighbours import LINK, Neighbourhood
from emu.testbed.programs.gateway import PROXY_PORT
from emu.testbed.programs.servers import Servers
from emu.testbed.programs.sharing import SharingHosts
from emu.testbed.services import Service
from emu.testbed.wiring import SERVER

RATE_BPS = 4e6
HELPERS = 3
PERIOD_S = 10


@dataclass
class Download:
    """A program's download through the proxy, as it came."""

    process: "subprocess.Popen[bytes]"
    times_s: list[float] = field(default_factory=list)
    received_bytes: int = 0

    def read_until(self, count: int) -> None:
        assert self.process.stdout is not None
        while self.received_bytes < count:
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                break
            self.received_bytes += len(data)
            self.times_s.append(time.monotonic())

    def end(self) -> int:
        self.read_until(1 << 60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    def longest_pause_s(self, after_s: float) -> float:
        times = [each for each in self.times_s if each >= after_s]
        return max(after - before for before, after in itertools.pairwise(times))


@dataclass
class Street:
    """The neighbourhood, its programs, and what of them runs."""

    there: Neighbourhood
    hosts: SharingHosts
    helpers: list[Service] = field(default_factory=list)

    def download(self, count: int) -> Download:
        proxy = f"socks5h://127.0.0.1:{PROXY_PORT}"
        url = f"http://{SERVER}/bytes/{count}"
        return Download(
            self.there.requestor.popen("curl", "-sS", "-x", proxy, url, stdout=subprocess.PIPE)
        )

    def status(self, host: str = "requestor") -> dict[str, object]:
        found = json.loads(self.hosts.cedos(host, "share", "--json"))
        return dict(found[0]) if found else {}

    def active(self) -> int:
        helpers = self.status().get("helpers", [])
        assert isinstance(helpers, list)
        return sum(each["state"] in ("active", "silent") for each in helpers)

    def wait_for(self, helpers: int, within_s: float = 30.0) -> None:
        until_s = time.monotonic() + within_s
        while self.active() != helpers:
            assert time.monotonic() < until_s, self.status()
            time.sleep(0.3)

    def receipts(self, host: str) -> dict[str, list[dict[str, object]]]:
        return dict(json.loads(self.hosts.cedos(host, "share", "receipts", "--json")))

    def rules(self, host: str) -> str:
        namespace = self.there.requestor
        if host != "requestor":
            namespace = self.there.helpers[int(host.removeprefix("helper-"))].namespace
        parts = [
            namespace.ip("rule"),
            namespace.ip("-4", "addr"),
            namespace.ip("mptcp", "endpoint"),
        ]
        parts += [namespace.ip("-4", "route", "show", "table", "all")]
        parts += [namespace.run("iptables-save").stdout]
        parts += [namespace.run("sysctl", "-a", "-r", r"^net\.ipv4\.conf.*\.forwarding").stdout]
        lines = [line for part in parts for line in part.splitlines()]
        return "\n".join(line for line in lines if not line.startswith(("# ", ":")))


def uplinks(rates_bps: Sequence[float]) -> list[Access]:
    traces = [Trace.constant(rate) for rate in rates_bps]
    return [Access(NetworkKind.CELLULAR, up=each, down=each, rtt_s=0.04) for each in traces]


@pytest.fixture(scope="module")
def standing() -> Iterator[Street]:
    there = Neighbourhood(uplinks([RATE_BPS] * HELPERS))
    with there, Servers(there), SharingHosts(there) as hosts:
        yield Street(there, hosts)


@pytest.fixture
def street(standing: Street) -> Iterator[Street]:
    """All three help, the requestor has found them, and its proxy runs."""
    standing.helpers = [standing.hosts.help(number) for number in range(HELPERS)]
    services = [standing.hosts.request(), standing.hosts.forward(), *standing.helpers]
    standing.wait_for(HELPERS)
    yield standing
    for each in services:
        each.close()


def test_a_download_uses_all_helpers(street: Street) -> None:
    count = 24_000_000
    began_s = time.monotonic()
    download = street.download(count)
    assert download.end() == 0
    assert download.received_bytes == count
    rate_bps = 8 * count / (time.monotonic() - began_s)
    print(f"{rate_bps / (HELPERS * RATE_BPS * TCP_GOODPUT_SHARE):.3f} of the sum")
    assert rate_bps > 0.95 * HELPERS * RATE_BPS * TCP_GOODPUT_SHARE
    # Both ends count what the gateway counts; and everyone has the receipts.
    time.sleep(2 * PERIOD_S)
    owed = street.receipts("requestor")["owed"]
    assert {each["helper"] for each in owed} == {f"helper-{number}" for number in range(HELPERS)}
    assert count < sum(int(str(each["carried_bytes"])) for each in owed) < 1.03 * count
    for number in range(HELPERS):
        (theirs,) = street.receipts(f"helper-{number}")["owed"]
        (ours,) = [each for each in owed if each["helper"] == f"helper-{number}"]
        assert (theirs["requestor"], theirs["amount"]) == ("requestor", ours["amount"])


@pytest.mark.parametrize(
    ("how", "most_s"), [("says so", 0.5), ("is killed", 1.5), ("is gone", 1.5)]
)
def test_a_helper_that_leaves_breaks_nothing(street: Street, how: str, most_s: float) -> None:
    count = 20_000_000
    download = street.download(count)
    download.read_until(count // 4)
    left_s = time.monotonic()
    if how == "is gone":
        street.there.walk_away(0)
    else:
        pid = street.helpers[0].pid
        os.kill(pid, signal.SIGTERM if how == "says so" else signal.SIGKILL)
    assert download.end() == 0
    assert download.received_bytes == count
    print(f"longest pause, {how}: {download.longest_pause_s(left_s - 0.1):.2f} s")
    assert download.longest_pause_s(left_s - 0.1) < most_s
    if how == "is gone":
        street.there.come_back(0)


def test_a_helper_that_drops_what_comes_is_left_within_seconds(street: Street) -> None:
    """It forwards small packets, answers each Hello, and drops the data of a download."""
    count = 24_000_000
    download = street.download(count)
    download.read_until(count // 4)
    helper = street.there.helpers[0].namespace
    rule = ("FORWARD", "-o", LINK, "-m", "length", "--length", "300:65535", "-j", "DROP")

    def paths() -> int:
        """Count the requestor's addresses for helpers: its status would be a second late."""
        return street.there.requestor.ip("-4", "addr").count("169.254.")

    before = paths()
    assert before >= HELPERS
    helper.run("iptables", "-I", *rule)
    began_s = time.monotonic()
    while paths() == before:
        assert time.monotonic() < began_s + 10.0
        time.sleep(0.05)
    took_s = time.monotonic() - began_s
    helper.run("iptables", "-D", *rule)
    print(f"left after {took_s:.1f} s")
    assert took_s < 2.0 + 1.5
    assert download.end() == 0
    assert download.received_bytes == count


def test_everyone_leaves_nothing_behind(standing: Street) -> None:
    hosts = ["requestor", *(f"helper-{number}" for number in range(HELPERS))]
    for host in hosts:  # what killed ones of other tests may have left
        standing.hosts.cedos(host, "restore")
    before = {host: standing.rules(host) for host in hosts}
    services = [standing.hosts.help(number) for number in range(HELPERS)]
    services.append(standing.hosts.request())
    standing.wait_for(HELPERS)
    assert all(standing.rules(host) != before[host] for host in hosts)
    killed, ended = services[:1], services[1:]
    for each in ended:
        each.close()
    for each in killed:
        os.kill(each.pid, signal.SIGKILL)
        each.close()
    left = {host: standing.rules(host) for host in hosts}
    assert left.pop("helper-0") != before["helper-0"]
    assert left == {host: before[host] for host in left}
    said = standing.hosts.cedos("helper-0", "restore")
    assert "CEDOSHARE" in said
    assert standing.rules("helper-0") == before["helper-0"]
    assert standing.hosts.cedos("helper-0", "restore") == "nothing to undo\n"


def test_what_cannot_be_done_is_said(standing: Street) -> None:
    offer = ("share", "help", "--price", "1EUR/GB", "--limit", "1MB")
    for host, options, why in (
        ("gateway", offer, "no gateway is joined"),
        ("helper-0", (*offer, "--link", "wlan7"), "wlan7 does not exist"),
        ("requestor", (*offer, "--link", "wlan0"), "there is no default route"),
        ("requestor", ("share", "register"), r"register: cedos: no connection to [^\n]*\Z"),
        ("helper-1", ("share", "help", "--price", "1", "--limit", "1MB"), "is not a price such as"),
        ("requestor", ("share", "request", "--rate", "fast"), "is not a bit rate"),
    ):
        with pytest.raises(EmulationError, match=why):
            standing.hosts.cedos(host, *options)


def test_a_revoked_helper_is_left_and_does_not_come_again(standing: Street) -> None:
    """Destroys the registration of the last helper, so it is the last test of this street."""
    standing.helpers = [standing.hosts.help(number) for number in range(HELPERS)]
    services = [standing.hosts.request(), standing.hosts.forward(), *standing.helpers]
    standing.wait_for(HELPERS)
    download = standing.download(12_000_000)
    download.read_until(1_000_000)
    name = f"helper-{HELPERS - 1}"
    with pytest.raises(EmulationError, match="no such host is registered"):
        standing.hosts.cedos("gateway", "share", "revoke", "nobody")
    assert "Revoked 1 certificate of" in standing.hosts.cedos("gateway", "share", "revoke", name)
    standing.wait_for(HELPERS - 1)
    assert download.end() == 0
    assert download.received_bytes == 12_000_000
    time.sleep(5)
    assert standing.active() == HELPERS - 1
    with pytest.raises(EmulationError, match="revoked"):
        standing.hosts.cedos(name, "share", "register", "--name", "another")
    for each in services:
        each.close()
