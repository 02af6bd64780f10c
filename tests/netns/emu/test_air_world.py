"""Scripted networks in namespaces, and the experiments' programs over them. Root."""

import json
import re
import time

import pytest

from emu.experiments.sessions import cedos_tables, dtp, intnw
from emu.experiments.sessions.world import Scripted, World
from emu.places.traces import Trace
from emu.testbed.hosts import SERVER

pytestmark = pytest.mark.netns


def scripted(name, rtt_s, carrier=None):
    trace = Trace.constant(12e6)
    return Scripted(name, trace, trace, [(0.0, rtt_s)], carrier)


def carrier(world, name):
    (link,) = json.loads(world.client.ip("-j", "link", "show", name))
    return "LOWER_UP" in link["flags"]


def test_both_networks_lead_to_the_server_with_their_delays():
    with World([scripted("wlan0", 0.020), scripted("lte0", 0.100)]) as world:
        world.begin()
        for name, rtt_ms in (("wlan0", 20), ("lte0", 100)):
            output = world.client.run(
                *("ping", "-c", "5", "-i", "0.05", "-W", "5", "-I", name, SERVER)
            ).stdout
            times = [float(t) for t in re.findall(r"time=([0-9.]+)", output)]
            assert len(times) == 5
            # A delay is never shorter; how much longer it is depends on the machine.
            assert min(times) >= rtt_ms
            assert min(times) < rtt_ms + 60


def test_the_carrier_follows_the_contacts_and_addresses_change():
    contacts = [(0.0, 0.5), (1.5, 1000.0)]
    with World([scripted("wlan0", 0.010, contacts)]) as world:
        world.begin()
        end_s = world.began_s + 60
        while carrier(world, "wlan0"):
            assert time.monotonic() < end_s
        world.move("wlan0")
        while not carrier(world, "wlan0"):
            assert time.monotonic() < end_s
        assert "10.1.1.2/24" in world.client.ip("address", "show", "wlan0")
        # A neighbour of nobody: the answer finds its way back to the new address.
        output = world.client.run("ping", "-c", "1", "-W", "10", SERVER).stdout
        assert "1 received" in output


@pytest.mark.parametrize("protocol", ["session", "tcp-restart", "tcp-range"])
def test_a_download_across_a_gap(protocol):
    # 770 KB in contacts of 2, 4, 6 ... s, with gaps of 2.3 s: one gap at least.
    plan = dtp.plan(154, 200, 3e6, 0.02)
    found = dtp.measure(protocol, plan)
    assert found["seconds"] >= plan.bound_s()
    assert found["bytes"] == plan.size_bytes
    if protocol == "tcp-restart":
        assert found["wasted_bytes"] > 0


@pytest.mark.parametrize(
    ("strategy", "application", "options"),
    [
        (intnw.OURS, "mail", {"messages": 6, "picked": 2}),
        ("aggregate", "mail", {"messages": 6, "picked": 2}),
        (intnw.UNLABELLED, "files", {"steps": 2}),
        (intnw.OURS, "sensing", {"duration_s": 9.0}),
    ],
)
def test_an_application(strategy, application, options):
    trial = intnw.Trial(
        strategy, application, intnw.hotspot(), {"seed": 1, **options}, [{}], 1.0, 100.0
    )
    found = intnw.measure(trial)
    assert found["background_bytes"] > 0
    waits = {"mail": 2, "files": 1, "sensing": 15}[application]
    assert len(found["foreground_s"]) == waits
    if application == "sensing":
        # There and back over the quicker network.
        assert min(found["foreground_s"]) >= 0.020


def test_switching_is_seen():
    found = cedos_tables.measure("one-at-a-time", 2, 1.5, 5e6)
    for way, rtt_s in (
        ("wifi-to-lte", cedos_tables.LTE_RTT_S),
        ("lte-to-wifi", cedos_tables.WIFI_RTT_S),
    ):
        (delay_s,) = found[way]["packets_s"]
        assert delay_s >= rtt_s
