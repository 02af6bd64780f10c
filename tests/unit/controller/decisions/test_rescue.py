"""Which first packets are rescued, when, and over which network: a kernel that only plays."""

import asyncio
import math
import time
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from cedos.daemon.decisions.rescue import KERNEL_S, LEAST_S, Rescuer

from cedos.errors import SteeringError
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Context, FlowKey, Indicator, Network, NetworkKind, NextHop

pytestmark = pytest.mark.anyio

NETWORKS = [
    Network(
        name=name,
        interface=name,
        index=index,
        kind=kind,
        metered=kind is NetworkKind.CELLULAR,
        addresses=addresses,
        next_hops=tuple(
            NextHop(ip_address(gateway).version, ip_address(gateway)) for gateway in gateways
        ),
    )
    for index, (name, kind, addresses, gateways) in enumerate(
        (
            (
                "wlan0",
                NetworkKind.WIFI,
                (ip_interface("192.0.2.2/24"), ip_interface("2001:db8:1::2/64")),
                ("192.0.2.1", "2001:db8:1::1"),
            ),
            ("lte0", NetworkKind.CELLULAR, (ip_interface("198.51.100.2/24"),), ("198.51.100.1",)),
            ("eth0", NetworkKind.ETHERNET, (ip_interface("203.0.113.2/24"),), ("203.0.113.1",)),
        ),
        start=1,
    )
]
KEY = FlowKey(ip_address("192.0.2.2"), 40000, ip_address("203.0.113.80"), 443)
# Fast enough for a test; a second is still a second.
SHORT_S = 0.12


class Kernel:
    """Sockets that wait, and repeat their first packet every `timeout_s`."""

    def __init__(self, timeout_s=SHORT_S, early=True):
        self.timeout_s, self.early = timeout_s, early
        self.begun: dict[FlowKey, float] = {}
        self.joins: set[FlowKey] = set()
        self.timeouts: list[dict[str, float]] = []
        self.rescued: list[tuple[FlowKey, str, float]] = []
        self.forgotten: list[FlowKey] = []
        self.refuses = False
        self.looks = 0

    def connect(self, key=KEY):
        self.begun[key] = time.monotonic()

    def set_first_timeouts(self, timeouts_s):
        self.timeouts.append(dict(timeouts_s))
        return self.early

    def connecting(self, key):
        self.looks += 1
        if key not in self.begun:
            return None
        waited_s = time.monotonic() - self.begun[key]
        left_s = self.timeout_s - waited_s % self.timeout_s
        return ConnectingSocket(left_s, int(waited_s / self.timeout_s), key in self.joins)

    def rescue(self, key, network_name):
        if self.refuses:
            raise SteeringError("no")
        self.rescued.append((key, network_name, time.monotonic() - self.begun[key]))
        return True

    def remove(self, key):
        self.forgotten.append(key)


def context(seen_at_s=None, **networks):
    """Network -> round trip in s (None: it answers nothing), as of an instant; None: now."""
    now_s = time.monotonic()
    at_s = now_s if seen_at_s is None else seen_at_s
    return Context(
        now_s,
        {
            name: (
                {"available": Indicator(0.0, at_s)}
                if rtt_s is None
                else {"rtt_s": Indicator(rtt_s, at_s), "available": Indicator(1.0, at_s)}
            )
            for name, rtt_s in networks.items()
        },
    )


class Place:
    """A watcher among networks that can be changed."""

    def __init__(
        self,
        monkeypatch,
        kernel,
        networks=NETWORKS,
        dry_run=False,
        may_use=None,
        heard_at_s=None,
        received_bytes=dict,
        **known,
    ):
        monkeypatch.setattr("cedos.daemon.decisions.rescue.LEAST_S", SHORT_S)
        self.kernel, self.known, self.told = kernel, known, []
        self.seen_at_s = time.monotonic()
        self.rescuer = Rescuer(
            kernel,
            lambda: context(self.seen_at_s, **self.known),
            lambda *said: self.told.append(said),
            dry_run=dry_run,
            received_bytes=received_bytes,
            **({} if may_use is None else {"may_use": may_use}),
            **({} if heard_at_s is None else {"heard_at_s": heard_at_s}),
        )
        self.rescuer.networks_changed(networks)

    async def connect(self, *keys):
        for key in keys or (KEY,):
            self.kernel.connect(key)
            self.rescuer.on_open(key, time.monotonic())
        await asyncio.sleep(0)

    async def until_rescued(self, count=1):
        for _ in range(150):
            if len(self.kernel.rescued) >= count:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nothing was rescued")


async def test_what_finds_no_answer_goes_over_the_best_network_that_lives(monkeypatch):
    place = Place(monkeypatch, Kernel(), wlan0=0.01, lte0=0.02, eth0=0.03)
    await place.connect()
    await place.until_rescued()
    await asyncio.sleep(0)
    assert place.kernel.rescued[0][:2] == (KEY, "eth0")  # unmetered, though slower
    assert place.told[0][:2] == (KEY, "eth0")
    assert "no reply to its first packet over wlan0" in place.told[0][2]
    assert place.rescuer.living == {KEY: "eth0"}
    place.rescuer.on_close(KEY)
    assert place.kernel.forgotten == [KEY]
    place.rescuer.close()


async def test_a_packet_lost_where_others_are_answered_is_repeated_there_once(monkeypatch):
    place = Place(monkeypatch, Kernel(), NETWORKS[:2], wlan0=0.01, lte0=0.02)
    await place.connect()
    place.seen_at_s = time.monotonic()
    await asyncio.sleep(1.5 * SHORT_S)
    assert place.kernel.rescued == []
    await place.until_rescued()
    assert place.kernel.rescued[0][1] == "lte0"
    place.rescuer.close()


async def test_the_users_rules_are_kept(monkeypatch):
    place = Place(
        monkeypatch,
        Kernel(),
        may_use=lambda key, name: (key, name) != (KEY, "eth0"),
        wlan0=0.01,
        lte0=0.02,
        eth0=0.03,
    )
    await place.connect()
    await place.until_rescued()
    assert place.kernel.rescued[0][1] == "lte0"
    place.rescuer.close()


@pytest.mark.parametrize("dead", ["eth0", "lte0"])
async def test_dead_networks_rescue_nobody(monkeypatch, dead):
    known = {"wlan0": 0.01, "lte0": 0.02, "eth0": 0.03} | {dead: None}
    place = Place(monkeypatch, Kernel(), **known)
    await place.connect()
    await place.until_rescued()
    assert place.kernel.rescued[0][1] == ({"eth0", "lte0"} - {dead}).pop()
    place.rescuer.close()


async def test_where_none_lives_each_repetition_tries_another_one(monkeypatch):
    place = Place(monkeypatch, Kernel(), NETWORKS[:2], wlan0=0.01, lte0=None)
    await place.connect()
    await place.until_rescued(2)
    assert [network for _, network, _ in place.kernel.rescued[:2]] == ["lte0", "wlan0"]
    assert place.kernel.rescued[0][2] > SHORT_S  # the first repetition was not for a dead one
    place.rescuer.close()


async def test_it_goes_back_where_the_other_one_does_not_answer_either(monkeypatch):
    place = Place(monkeypatch, Kernel(), NETWORKS[:2], wlan0=0.01, lte0=0.02)
    await place.connect()
    await place.until_rescued(2)
    assert [network for _, network, _ in place.kernel.rescued] == ["lte0", "wlan0"]
    assert place.rescuer.living == {}
    place.rescuer.close()


async def test_a_slow_network_is_waited_for(monkeypatch):
    """Three round trips, however early the kernel repeats."""
    place = Place(monkeypatch, Kernel(), NETWORKS[:2], wlan0=0.15, lte0=0.02)
    wanted_s = place.kernel.timeouts[-1]["wlan0"]
    assert 0.45 <= wanted_s < 0.48
    await place.connect()
    await place.until_rescued()
    assert place.kernel.rescued[0][2] > 0.36
    place.rescuer.close()


async def test_a_network_is_as_slow_as_it_is_or_mostly_was(monkeypatch):
    place = Place(monkeypatch, Kernel(), wlan0=0.2)
    assert place.kernel.timeouts[-1]["wlan0"] >= 0.6
    for rtt_s, wanted_s in ((0.02, 0.33), (0.02, SHORT_S), (0.2, 0.6), (0.02, SHORT_S)):
        place.known = {"wlan0": rtt_s}
        place.rescuer.context_changed(context(wlan0=rtt_s))
        assert wanted_s <= place.kernel.timeouts[-1]["wlan0"] <= wanted_s * 1.05
    place.rescuer.close()


async def test_without_early_repetition_or_a_round_trip_the_kernels_second_counts(monkeypatch):
    for known, early in (({"wlan0": 0.01, "lte0": 0.02}, False), ({"lte0": 0.02}, True)):
        place = Place(monkeypatch, Kernel(KERNEL_S, early), NETWORKS[:2], **known)
        assert ("wlan0" in place.kernel.timeouts[-1]) == ("wlan0" in known)
        await place.connect()
        await asyncio.sleep(0.5)
        assert place.kernel.rescued == []
        await place.until_rescued()
        assert place.kernel.rescued[0][2] > KERNEL_S - 0.1
        place.rescuer.close()


async def test_answers_joins_and_others_addresses_need_no_rescue(monkeypatch):
    place = Place(monkeypatch, Kernel(), wlan0=0.01, lte0=0.02, eth0=0.03)
    join = replace(KEY, local_port=40001)
    place.kernel.joins.add(join)
    foreign = replace(KEY, local=ip_address("10.0.0.1"))
    udp = replace(KEY, local_port=40002, protocol="udp")
    answered = replace(KEY, local_port=40003)
    await place.connect(join, foreign, udp, answered)
    del place.kernel.begun[answered]
    await asyncio.sleep(3 * SHORT_S)
    assert place.kernel.rescued == []
    assert place.kernel.looks == 2  # the join and the answered one, once each
    place.rescuer.close()


async def test_an_ipv6_flow_needs_a_network_with_ipv6(monkeypatch):
    place = Place(monkeypatch, Kernel(), wlan0=0.01, lte0=0.02, eth0=0.03)
    await place.connect(
        FlowKey(ip_address("2001:db8:1::2"), 40000, ip_address("2001:db8:9::9"), 443)
    )
    await asyncio.sleep(3 * SHORT_S)
    assert place.kernel.rescued == []
    place.rescuer.close()


async def test_many_are_looked_at_together_and_refusals_harm_nobody_else(monkeypatch):
    place = Place(monkeypatch, Kernel(), wlan0=0.01, lte0=0.02, eth0=0.03)
    keys = [replace(KEY, local_port=41000 + number) for number in range(200)]
    await place.connect(*keys)
    # (On a busy machine the first ones may be rescued anew before the last ones are.)
    async with asyncio.timeout(5.0):
        while {key for key, _, _ in place.kernel.rescued} != set(keys):
            await asyncio.sleep(0.01)
    place.kernel.refuses = True
    late = replace(KEY, local_port=45000)
    await place.connect(late)
    await asyncio.sleep(3 * SHORT_S)
    place.rescuer.close()


async def test_in_a_dry_run_each_is_said_once(monkeypatch):
    place = Place(monkeypatch, Kernel(), dry_run=True, wlan0=0.01, eth0=0.03)
    await place.connect()
    await asyncio.sleep(4 * SHORT_S)
    assert len(place.kernel.rescued) == 1
    place.rescuer.close()


def test_the_least_is_what_the_configuration_says():
    assert LEAST_S == 0.25


async def test_where_other_flows_hear_something_the_packet_was_lost_in_a_queue(monkeypatch):
    """A round trip is noted twice a second at most: bytes that came since say as much."""
    heard_at_s = {}
    place = Place(
        monkeypatch,
        Kernel(),
        NETWORKS[:2],
        heard_at_s=lambda name: heard_at_s.get(name, -math.inf),
        wlan0=0.01,
        lte0=0.02,
    )
    heard_at_s["wlan0"] = time.monotonic()
    await place.connect(KEY)
    heard_at_s["lte0"] = time.monotonic()
    await place.until_rescued()
    assert place.kernel.rescued[0][2] < SHORT_S, "what came before it began says nothing"
    second, third = (replace(KEY, local_port=KEY.local_port + more) for more in (1, 2))
    await place.connect(second)
    heard_at_s["wlan0"] = time.monotonic() + 0.005
    await place.until_rescued(2)
    assert place.kernel.rescued[1][0] == second, "it was on its way when the packet went"
    await place.connect(third)
    heard_at_s["wlan0"] = time.monotonic() + 0.02
    await asyncio.sleep(1.5 * SHORT_S)
    assert [key for key, *_ in place.kernel.rescued if key == third] == []
    place.rescuer.close()


def flowing(*names, until_s=math.inf):
    """Counters of interfaces that receive 8 Mbit/s, up to an instant."""
    began_s = time.monotonic()
    return lambda: dict.fromkeys(names, int(1e6 * (min(time.monotonic(), until_s) - began_s)))


async def test_while_the_network_delivers_the_packet_waits_in_a_queue(monkeypatch):
    stops_s = time.monotonic() + 1.5 * SHORT_S
    received_bytes = flowing("wlan0", until_s=stops_s)
    place = Place(
        monkeypatch, Kernel(), NETWORKS[:2], received_bytes=received_bytes, wlan0=0.01, lte0=0.02
    )
    await place.connect()
    await asyncio.sleep(1.4 * SHORT_S)
    assert place.kernel.rescued == []
    # The second repetition goes elsewhere, whatever comes.
    await place.until_rescued()
    assert place.kernel.rescued[0][1] == "lte0"
    assert place.kernel.rescued[0][2] > 1.5 * SHORT_S
    place.rescuer.close()


async def test_what_the_router_sends_by_itself_is_no_sign_of_life(monkeypatch):
    place = Place(
        monkeypatch,
        Kernel(),
        NETWORKS[:2],
        received_bytes=lambda: {"wlan0": int(20_000 * time.monotonic())},
        wlan0=0.01,
        lte0=0.02,
    )
    await place.connect()
    await place.until_rescued()
    assert place.kernel.rescued[0][2] < SHORT_S
    place.rescuer.close()


async def test_a_rescued_packet_stays_where_others_are_carried(monkeypatch):
    """Else it is led to and fro between a full network and a dead one, and ends at the dead one."""
    place = Place(
        monkeypatch, Kernel(), NETWORKS[:2], received_bytes=flowing("lte0"), wlan0=0.01, lte0=0.02
    )
    await place.connect()
    await place.until_rescued()
    assert place.kernel.rescued[0][1] == "lte0"
    await asyncio.sleep(1.6 * SHORT_S)
    assert len(place.kernel.rescued) == 1
    # Only when two have found no answer there, too, is the first network tried again.
    await place.until_rescued(2)
    assert place.kernel.rescued[1][1] == "wlan0"
    place.rescuer.close()
