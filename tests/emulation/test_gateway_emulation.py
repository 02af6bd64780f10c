"""An unmodified program through the gateway, on emulated networks: it goes on, and is hardly slower."""

import json
import subprocess
import sys
import time

import pytest

from cedos.controller.rule import RuleRequest
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import through_gateway
from emu.testbed.programs.gateway import GATEWAY, Gatewayed
from emu.testbed.programs.servers import Servers
from emu.testbed.wiring import SERVER_ADDRESSES
from emu.workloads.downloads import download

ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(12e6), Trace.constant(12e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(12e6), Trace.constant(12e6), 0.060),
)
SIZE = 6_000_000
USER = "65534"


def fetch(laptop, variables, size):
    return laptop.client.popen(
        *("env", *(f"{key}={value}" for key, value in variables.items())),
        *("curl", "--silent", "--show-error", "--max-time", "30", "--output", "/dev/null"),
        *("--write-out", "%{json}", f"http://{SERVER}/bytes/{size}"),
        stdout=subprocess.PIPE,
        text=True,
    )


def facts(curl):
    with curl:
        return json.loads(curl.communicate(timeout=40)[0])


@pytest.mark.usefixtures("registry")
def test_plain_tcp_goes_on_without_its_network_and_starts_as_soon_as_ever(tmp_path):
    with (
        Laptop(*ACCESSES, source_rules=True) as laptop,
        Servers(laptop, mptcp=False) as servers,
        Gatewayed(laptop, tmp_path, {}) as gateway,
    ):
        for size in (10_000, SIZE):
            servers.make_size(size)
        facts(fetch(laptop, gateway.environment, 10_000))  # the session is made
        direct = min(facts(fetch(laptop, {}, 10_000))["time_total"] for _ in range(5))
        through = min(
            facts(fetch(laptop, gateway.environment, 10_000))["time_total"] for _ in range(5)
        )
        assert through < direct + 0.03
        curl = fetch(laptop, gateway.environment, SIZE)
        time.sleep(1.2)
        laptop.detach(NetworkKind.WIFI)
        found = facts(curl)
        assert (found["http_code"], found["size_download"]) == (200, SIZE), found


def came(laptop, act):
    """Return the bytes that each network brings meanwhile."""
    before = {name: laptop.received_bytes(name) for name in ("wlan0", "lte0")}
    act()
    return {name: laptop.received_bytes(name) - before[name] for name in before}


OTHER = {"wlan0": "lte0", "lte0": "wlan0"}


ECHO_PORT = 9005
ECHO = f"""
import socket
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(("{SERVER}", {ECHO_PORT}))
print("ready", flush=True)
while True:
    data, sender = one.recvfrom(65535)
    one.sendto(sender[0].encode().ljust(1000), sender)
"""
ASK = f"""
import socket, time
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.settimeout(3)
seen = set()
for _ in range(200):
    one.sendto(bytes(1000), ("{SERVER}", {ECHO_PORT}))
    seen.add(one.recv(2000).strip().decode())
print(*sorted(seen))
"""


@pytest.mark.usefixtures("registry")
def test_what_is_under_a_users_rule_does_not_go_through_the_gateway():
    """A redirected program's connections and datagrams, over either network: it knows of neither."""
    size = 1_000_000

    def ask():
        return laptop.client.run(
            *("setpriv", f"--reuid={USER}", "--clear-groups", sys.executable, "-c", ASK)
        ).stdout.strip()

    def fetch_whole():
        url = f"http://{SERVER}/bytes/{size}"
        assert download(laptop.client, url, size, user=int(USER)).whole

    def ask_directly():
        assert ask() not in SERVER_ADDRESSES

    with (
        Laptop(*ACCESSES, source_rules=False) as laptop,
        Servers(laptop, mptcp=False) as servers,
        through_gateway(laptop, USER, "--fail", "open") as daemon,
        laptop.server.popen(sys.executable, "-c", ECHO, stdout=subprocess.PIPE) as echo,
    ):
        servers.make_size(size)
        assert echo.stdout.readline() == b"ready\n"
        assert ask() in SERVER_ADDRESSES, "from the gateway, which is the server's host"
        for network, other in OTHER.items():
            rules = [
                daemon.client.add_rule(RuleRequest(host=SERVER, port=80, only=(network,))),
                daemon.client.add_rule(
                    RuleRequest(host=f"{SERVER}/32", port=ECHO_PORT, only=(network,))
                ),
            ]
            time.sleep(1.0)  # the proxy has heard of them
            for act, least in ((fetch_whole, size), (ask_directly, 200_000)):
                bytes_by_network = came(laptop, act)
                assert bytes_by_network[network] > least
                assert bytes_by_network[other] < 50_000, "pings, and what keeps the session"
            for rule in rules:
                daemon.client.remove_rule(rule.number)
        echo.terminate()


@pytest.mark.usefixtures("registry")
def test_the_session_with_the_gateway_obeys_a_rule_about_the_gateway():
    size = 1_000_000
    with (
        Laptop(*ACCESSES, source_rules=False) as laptop,
        Servers(laptop, mptcp=False) as servers,
        through_gateway(laptop, USER, "--fail", "open", "--detour", "always") as daemon,
    ):
        servers.make_size(size)
        for never in ("wlan0", "lte0"):
            daemon.client.add_rule(RuleRequest(host=GATEWAY, never=(never,)))
            time.sleep(1.0)  # the proxy has heard of it
            before = laptop.received_bytes(never)
            found = download(laptop.client, f"http://{SERVER}/bytes/{size}", size, user=int(USER))
            assert found.whole
            assert laptop.received_bytes(never) - before < 50_000, never
