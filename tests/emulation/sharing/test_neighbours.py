"""Three helpers with emulated uplinks carry a requestor's programs, all programs really running."""

import json
import os
import signal
import sys
import time

import pytest
from kit.street import HELPERS, PERIOD_S, RATE_BPS
from kit.waiting import wait_until

from cedos.errors import EmulationError
from emu.places.traces import TCP_GOODPUT_SHARE
from emu.testbed.neighbours import LINK
from emu.testbed.services import Service

# Several of these at once are too much for two cores: they run one after the other.
# The first and the last one also set the street up and take it down.
pytestmark = [pytest.mark.xdist_group("sharing"), pytest.mark.timeout(240)]


def test_what_cannot_be_done_is_said(standing):
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
    first = standing.hosts.help(1)
    with pytest.raises(EmulationError, match=rf"already, as process {first.pid}: stop that one"):
        standing.hosts.cedos("helper-1", *offer)


def test_a_download_uses_all_helpers(street):
    count = 24_000_000
    began_s = time.monotonic()
    download = street.download(count)
    assert download.end() == 0
    assert download.received_bytes == count
    rate_bps = 8 * count / (time.monotonic() - began_s)
    print(f"{rate_bps / (HELPERS * RATE_BPS * TCP_GOODPUT_SHARE):.3f} of the sum")
    assert rate_bps > 0.95 * HELPERS * RATE_BPS * TCP_GOODPUT_SHARE
    # Both ends count what the gateway counts.
    street.wait_for_receipts(count)
    owed = street.receipts("requestor")["owed"]
    assert {each["helper"] for each in owed} == {f"helper-{number}" for number in range(HELPERS)}
    assert sum(int(str(each["carried_bytes"])) for each in owed) < 1.03 * count

    # All hosts have the receipts in the end; each asks the gateway in its own time.
    def amounts():
        return {each["helper"]: each["amount"] for each in street.receipts("requestor")["owed"]}

    def theirs(helper):
        (each,) = street.receipts(helper)["owed"]
        assert each["requestor"] == "requestor"
        return each["amount"]

    helpers = [f"helper-{number}" for number in range(HELPERS)]
    wait_until(
        lambda: amounts() == {each: theirs(each) for each in helpers},
        limit_s=2 * PERIOD_S,
        every_s=0.5,
    )


@pytest.mark.parametrize(
    ("how", "most_s"), [("says so", 0.5), ("is killed", 1.5), ("is gone", 1.5)]
)
def test_a_helper_that_leaves_breaks_nothing(street, how, most_s):
    count = 6_000_000
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


def test_programs_reach_ipv6_hosts_over_helpers(street, tmp_path):
    """Helpers forward IPv4 to the gateway, which connects to the origin; the requestor has no IPv6."""
    address, port, count = "2001:db8:6::1", 8006, 2_000_000
    server, requestor = street.there.server, street.there.requestor
    server.sysctl("net.ipv6.conf.lo.disable_ipv6", 0)
    server.ip("addr", "add", f"{address}/128", "dev", "lo")
    assert not requestor.ip("-6", "route")
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / str(count)).write_bytes(bytes(count))
    command = (sys.executable, "-m", "http.server", "--bind", address, str(port))
    origin = Service(server, *command, "--directory", str(tmp_path), output=tmp_path / "log")
    try:
        origin.wait_for(lambda: f":{port}" in server.run("ss", "-6ltn").stdout)
        download = street.hosts.download(count, f"[{address}]:{port}")
        assert download.end() == 0
    finally:
        origin.close()
    assert (download.received_bytes, download.wrong_bytes) == (count, 0)


def test_a_helper_that_drops_what_comes_is_left_within_seconds(street):
    """It forwards small packets, answers each Hello, and drops the data of a download."""
    count = 10_000_000
    download = street.download(count)
    download.read_until(count // 5)
    helper = street.there.helpers[0].namespace
    rule = ("FORWARD", "-o", LINK, "-m", "length", "--length", "300:65535", "-j", "DROP")

    def paths():
        """Count the requestor's addresses for helpers: its status would be a second late."""
        return street.there.requestor.ip("-4", "addr").count("169.254.")

    before = paths()
    assert before >= HELPERS
    helper.run("iptables", "-I", *rule)
    began_s = time.monotonic()
    wait_until(lambda: paths() != before, every_s=0.05)
    took_s = time.monotonic() - began_s
    helper.run("iptables", "-D", *rule)
    print(f"left after {took_s:.1f} s")
    assert took_s < 2.0 + 1.0
    assert download.end() == 0
    assert download.received_bytes == count


def test_a_helper_that_joins_is_used_soon(standing):
    """The requestor has two of the three that it wants, and invites ever more rarely."""
    hosts = standing.hosts
    hosts.help(0)
    hosts.help(1)
    hosts.request()
    hosts.forward()
    standing.wait_for(HELPERS - 1)
    count = 24_000_000
    download = standing.download(count)
    download.read_until(count // 4)
    hosts.help(HELPERS - 1)
    began_s, seen = time.monotonic(), download.received_bytes
    joins = standing.there.helpers[HELPERS - 1].namespace

    def sent_bytes():
        (link,) = json.loads(joins.ip("-j", "-s", "link", "show", LINK))
        return int(link["stats64"]["tx"]["bytes"])

    before = sent_bytes()
    while sent_bytes() < before + 200_000:
        seen += 100_000
        download.read_until(seen)
        assert download.received_bytes < count
    soon_s = time.monotonic() - began_s
    assert download.end() == 0
    assert download.received_bytes == count
    pause_s = download.longest_pause_s(began_s)
    print(f"used after {soon_s:.1f} s, longest pause {pause_s:.2f} s")
    assert soon_s < 15.0
    assert pause_s < 1.0


# What a connection carried in so many seconds before it broke is not proved to have arrived.
LAST_S = 2.0


@pytest.mark.parametrize("side", ["requestor", "helper-0", "gateway"])
def test_a_side_that_is_killed_loses_at_most_a_period(street, side):
    before = street.owed_bytes("requestor")
    # A gateway that dies takes the receipts of one period along, which must be less than the whole.
    count = 27_000_000 if side == "gateway" else 9_000_000
    download = street.download(count)
    download.read_until(2 * count // 3)
    killed = {"requestor": street.request, "helper-0": street.helpers[0]}
    os.kill(killed.get(side, street.hosts.gateway).pid, signal.SIGKILL)
    if side == "gateway":
        # It ends the programs' connections; those that they begin next use all helpers again.
        street.hosts.serve()
        assert download.end() != 0
        least = download.received_bytes - (PERIOD_S + LAST_S) * HELPERS * RATE_BPS / 8
        until_s = time.monotonic() + 30.0
        while (again := street.download(1_000_000)).end() != 0:
            assert time.monotonic() < until_s
        assert again.received_bytes == 1_000_000
    else:
        assert download.end() == 0
        assert download.wrong_bytes == 0
        assert download.received_bytes == count
        least = count - LAST_S * RATE_BPS / 8
        # Its next process undoes what the dead one left, and fetches the receipts.
        if side == "requestor":
            street.hosts.request()
        else:
            street.hosts.help(0)
    street.wait_for_receipts(sum(before.values()) + int(least))
    owed = street.owed_bytes("requestor")
    mine = ("this host", "helper-0")
    assert owed[mine] > before.get(mine, 0)
    wait_until(
        lambda: [*street.owed_bytes("helper-0").values()] == [street.owed_bytes("requestor")[mine]],
        limit_s=2 * PERIOD_S,
        every_s=0.5,
    )


def test_everyone_leaves_nothing_behind(standing):
    hosts = ["requestor", *(f"helper-{number}" for number in range(HELPERS))]
    # Other tests have killed each of them, and the gateway; the processes after those undid it.
    before = standing.clean
    assert {host: standing.rules(host) for host in before} == before
    services = [standing.hosts.help(number) for number in range(HELPERS)]
    services.append(standing.hosts.request())
    standing.wait_for(HELPERS)
    assert all(standing.rules(host) != before[host] for host in hosts)
    # A helper and the requestor are killed.
    killed, ended = [services[0], services[-1]], services[1:-1]
    for each in ended:
        each.close()
    for each in killed:
        os.kill(each.pid, signal.SIGKILL)
        each.close()
    left = {host: standing.rules(host) for host in hosts}
    assert left.pop("helper-0") != before["helper-0"]
    assert left.pop("requestor") != before["requestor"]
    assert left == {host: before[host] for host in left}
    assert "CEDOSHARE" in standing.hosts.cedos("helper-0", "restore")
    assert "169.254." in standing.hosts.cedos("requestor", "restore")
    for host in before:
        assert standing.rules(host) == before[host]
    assert standing.hosts.cedos("helper-0", "restore") == "nothing to undo\n"


def test_a_helper_whose_filter_is_flushed_ends_and_says_why(standing):
    """A reload of the host's firewall, say: the filter never came back, and helping went on."""
    before = standing.rules("helper-0")
    helper = standing.hosts.help(0)
    standing.hosts.namespace("helper-0").run("iptables", "-F")
    helper.wait_for(lambda: "another program has changed the packet filter" in helper.text)
    wait_until(lambda: standing.rules("helper-0") == before)


def test_a_revoked_helper_is_left_and_does_not_come_again(street):
    """Destroys the registration of the last helper, so it is the last test of this street."""
    download = street.download(8_000_000)
    download.read_until(1_000_000)
    name = f"helper-{HELPERS - 1}"
    with pytest.raises(EmulationError, match="no such host is registered"):
        street.hosts.cedos("gateway", "share", "revoke", "nobody")
    assert "Revoked 1 certificate of" in street.hosts.cedos("gateway", "share", "revoke", name)
    street.wait_for(HELPERS - 1)
    assert download.end() == 0
    assert download.received_bytes == 8_000_000
    time.sleep(5)
    assert street.active() == HELPERS - 1
    with pytest.raises(EmulationError, match="revoked"):
        street.hosts.cedos(name, "share", "register", "--name", "another")
