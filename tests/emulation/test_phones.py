"""The emulated laptop stands, changes, and goes without a trace."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kit.waiting import wait_until

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed import mahimahi, phones, stale
from emu.testbed.netns import RUN
from emu.testbed.phones import LTE, SERVER, WLAN, Access, Laptop

FAST = Trace.constant(24e6)
WIFI = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.010)
CELLULAR = Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.060)

# A program that builds a laptop, says its token, and waits.
OWNER = """
import sys, time
from cedos.model import NetworkKind
from emu.testbed.phones import Access, Laptop
from emu.testbed.programs.servers import Servers
from emu.places.traces import Trace
fast = Trace.constant(24e6)
with Laptop(*[Access(kind, up=fast, down=fast, rtt_s=0.02) for kind in list(NetworkKind)[:2]]) as laptop:
    with Servers(laptop):
        inside = laptop.client.popen("sleep", "1000")
        print(laptop.token, inside.pid, *[link.pid for link in laptop.links.values()], flush=True)
        time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch):
    """Other testbeds of this machine are none of these tests' business."""
    # Not pytest's own folders: Mahimahi reads its traces as nobody, and those are closed to it.
    with tempfile.TemporaryDirectory(prefix="cedos-test-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", f"{folder}/run")
        yield Path(folder) / "run"


def answers(laptop, interface):
    ping = f"ping -n -c 1 -W 1 -I {interface} {SERVER}".split()
    return laptop.client.run(*ping, check=False).returncode == 0


def rtt_s(laptop, interface):
    output = laptop.client.run(*f"ping -n -q -c 5 -i 0.05 -I {interface} {SERVER}".split()).stdout
    (median,) = re.findall(r"= [0-9.]+/([0-9.]+)/", output)
    return float(median) / 1000


def namespaces(token):
    return [path.name for path in RUN.glob(f"cedos-{token}-*")]


def wait_for(condition, within_s=5.0):
    wait_until(condition, within_s, describe=lambda: "it did not happen in time")


def host_state():
    commands = {
        "rules": "ip rule; ip -6 rule",
        "routes": "ip route show table all; ip -6 route show table all",
        "links": "ip -o link",
        "mptcp": "ip mptcp endpoint; ip mptcp limits",
        "iptables": "iptables-save | grep -v '^#'",
        "sysctls": "sysctl -a --pattern '^net' 2>/dev/null | grep -vE 'conntrack_count|stable_secret'",
    }
    return {
        name: subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False).stdout
        for name, line in commands.items()
    }


def test_both_networks_reach_the_server_and_the_host_stays_as_it_was(runtime):
    host_state()  # the first look loads iptables' modules
    before = host_state()
    with Laptop(WIFI, CELLULAR) as laptop:
        token = laptop.token
        assert 0.010 <= rtt_s(laptop, WLAN) <= 0.030
        assert 0.060 <= rtt_s(laptop, LTE) <= 0.080
        for address in ("198.51.100.2", "198.51.100.9"):
            laptop.client.run(*f"ping -n -c 1 -W 2 {address}".split())
        for host in (laptop.client, laptop.server):
            assert host.sysctl("net.ipv4.tcp_congestion_control") == "cubic"
            if Path("/proc/sys/net/mptcp/blackhole_timeout").exists():  # Linux 6.12
                assert host.sysctl("net.mptcp.blackhole_timeout") == "0"
        assert laptop.alive()
        assert len(namespaces(token)) == 4
        during = host_state()
    assert namespaces(token) == []
    assert [path for path in runtime.iterdir() if path.is_dir()] == []
    assert during == before
    assert host_state() == before


def test_routes_follow_what_is_preferred():
    with Laptop(WIFI, CELLULAR) as laptop:

        def way():
            return laptop.client.ip("route", "get", SERVER)

        original = laptop.client.ip("route")
        assert WLAN in way()
        laptop.prefer(LTE)
        assert LTE in way()
        laptop.prefer(WLAN)
        assert WLAN in way()
        laptop.prefer(None)
        assert laptop.client.ip("route") == original
        assert laptop.client.ip("rule").count("lookup") == 3


def test_links_are_replaced_under_an_interface_that_stays():
    with Laptop(WIFI, CELLULAR) as laptop:
        index = laptop.client.ip("-o", "link", "show", WLAN).partition(":")[0]
        first = laptop.links[NetworkKind.WIFI]
        other = laptop.links[NetworkKind.CELLULAR]
        slow = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.2)
        laptop.attach(slow)
        assert rtt_s(laptop, WLAN) > 0.2
        assert not first.alive()
        assert laptop.links[NetworkKind.CELLULAR] is other
        assert laptop.accesses[NetworkKind.WIFI] is slow
        assert laptop.client.ip("-o", "link", "show", WLAN).partition(":")[0] == index
        laptop.detach("wifi")
        assert list(laptop.links) == [NetworkKind.CELLULAR]
        assert "NO-CARRIER" in laptop.client.ip("link", "show", WLAN)
        assert not answers(laptop, WLAN)
        assert answers(laptop, LTE)
        laptop.detach("wifi")
        laptop.attach(WIFI)
        assert rtt_s(laptop, WLAN) < 0.2


@pytest.mark.parametrize("side", ["client", "server"])
def test_a_connection_of_a_replaced_link_is_reset_and_not_continued(side):
    with Laptop(WIFI) as laptop:
        with laptop.server.entered():
            listener = socket.create_server((SERVER, 7000))
        with laptop.client.entered():
            client = socket.create_connection((SERVER, 7000), timeout=5)
        server, _ = listener.accept()
        with listener, client, server:
            laptop.attach(WIFI)
            speaker = {"client": client, "server": server}[side]
            speaker.settimeout(10)
            speaker.sendall(b"still there?")
            with pytest.raises(ConnectionError):
                speaker.recv(1)


def test_one_network_is_a_laptop_too():
    with Laptop(CELLULAR) as laptop:
        assert WLAN not in laptop.client.ip("link")
        assert answers(laptop, LTE)
        with pytest.raises(EmulationError, match="wlan0"):
            laptop.prefer(WLAN)
        with pytest.raises(ValueError, match="one network of each kind"):
            laptop.attach(WIFI, WIFI)


async def test_inside_an_event_loop_it_says_what_would_be_right():
    with pytest.raises(EmulationError, match="to_thread"), Laptop():
        pass


def test_two_laptops_stand_side_by_side():
    far = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.1)
    with Laptop(WIFI) as one, Laptop(far) as two:
        assert one.token != two.token
        assert rtt_s(one, WLAN) < 0.05
        assert rtt_s(two, WLAN) > 0.1
        two.close()
        assert answers(one, WLAN)


def test_everything_is_gone_after_an_error(runtime):
    with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117
        with Laptop(WIFI, CELLULAR) as laptop:
            token = laptop.token
            pids = [link.pid for link in laptop.links.values()]
            inside = laptop.client.popen("sleep", "1000")
            raise ZeroDivisionError
    assert inside.wait(5) == -signal.SIGTERM
    assert namespaces(token) == []
    assert all(stale.started_ticks(pid) is None for pid in pids)
    assert not (runtime / token).exists()
    laptop.close()
    with pytest.raises(EmulationError, match="with"):
        laptop.attach(WIFI)


def test_a_link_that_does_not_start_says_why_and_leaves_nothing(runtime, monkeypatch):
    def broken(access, isp, subnet, directory, nice):
        link = mahimahi.launch(access, isp, subnet, directory, nice)
        if access.kind is NetworkKind.CELLULAR:
            (directory / "down.trace").write_text("no number\n")
        return link

    monkeypatch.setattr(phones, "launch", broken)
    with (
        pytest.raises(EmulationError, match=r"mm-delay, mm-link: .*no number"),
        Laptop(WIFI, CELLULAR),
    ):
        pass
    assert [path for path in runtime.iterdir() if path.is_dir()] == []


def test_a_dead_link_is_noticed_and_can_be_replaced():
    with Laptop(WIFI) as laptop:
        os.killpg(laptop.links[NetworkKind.WIFI].pid, signal.SIGKILL)
        wait_for(lambda: not laptop.alive())
        with pytest.raises(EmulationError, match="ended"):
            laptop.links[NetworkKind.WIFI].check()
        laptop.attach(WIFI)
        assert answers(laptop, WLAN)


def owner():
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    token, *pids = process.stdout.readline().split()
    process.stdout.close()
    return process, token, [int(pid) for pid in pids]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_everything_is_gone_after_a_signal(runtime, number):
    process, token, pids = owner()
    assert len(namespaces(token)) == 4
    process.send_signal(number)
    assert process.wait(10) != 0
    assert namespaces(token) == []
    assert not (runtime / token).exists()
    assert all(stale.started_ticks(pid) is None for pid in pids)


def test_what_a_killed_owner_leaves_is_removed_at_the_next_start(runtime):
    process, token, (inside, *links) = owner()
    with Laptop(WIFI) as living:
        process.kill()
        process.wait()
        # The links end by themselves; what was started in the namespaces does not.
        wait_for(lambda: all(stale.started_ticks(pid) is None for pid in links))
        assert stale.started_ticks(inside) is not None
        assert len(namespaces(token)) == 4
        with Laptop():
            assert namespaces(token) == []
            assert stale.started_ticks(inside) is None
            assert not (runtime / token).exists()
        assert len(namespaces(living.token)) == 3
        assert answers(living, WLAN)
