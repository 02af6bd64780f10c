"""Rescues of first packets, with a simulated kernel: of which, when, and over which network."""

import math
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import NamedTuple

import pytest
from kit.controller import TOKEN, Script

from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.decisions import rescue
from cedos.controller.decisions.rescue import KERNEL_S, LEAST_S
from cedos.controller.rule import RuleRequest
from cedos.model import FlowKey, FlowSample, Network, NetworkKind, NextHop

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
BOTH = NETWORKS[:2]
KEY = FlowKey(ip_address("192.0.2.2"), 40000, ip_address("192.88.99.80"), 443)
BEGAN_S = 20.0


class Rescued(NamedTuple):
    key: FlowKey
    network: str
    after_s: float


class Place:
    """A controller among networks, and the kernel: sockets that wait, and repeat their first packet."""

    def __init__(self, networks=NETWORKS, *, early=True, dry_run=False, **rtts_s):
        self.early = early
        self.begun = {}
        # `joins`, `answered`: flows that are further subflows, and those with an answer.
        self.joins = set()
        self.users = {}
        self.answered = set()
        self.refuses = False  # no rescue can be carried out
        # Of an interface, at an instant.
        self.received_bytes = lambda _name, _at_s: 0.0
        self.timeouts = []  # all time-outs that were set
        self.rescued = []
        self.looks = []
        self.timeout_s = LEAST_S if early else KERNEL_S
        self.script = Script(dry_run=dry_run)
        self.tell_all(self.script.networks(*networks, at_s=BEGAN_S - 5.0))
        self.answers(BEGAN_S - 0.5, **rtts_s)

    def answers(self, at_s, **rtts_s):
        """Round trips end, in s; None: the network is dead."""
        for name, rtt_s in rtts_s.items():
            if rtt_s is None:
                self.script.known(at_s, **{name: {"available": 0.0}})
            else:
                self.tell_all(self.script.tell(on.PingEnded(name, rtt_s, at_s, at_s), at_s=at_s))
        self.tell_all(self.script.decide(at_s))

    def connect(self, *keys, at_s=BEGAN_S):
        for key in keys or (KEY,):
            self.begun[key] = at_s
            self.script.tell(on.FlowOpened(key, at_s, 100.0), at_s=at_s)

    def wait(self, until_s):
        return self.script.wait(until_s, self.carry_out)

    def tell_all(self, commands):
        while commands:
            events = [event for each in commands for event in self.carry_out(each)]
            commands = self.script.tell(*events)

    def carry_out(self, command):
        now_s = self.script.now_s
        match command:
            case give.SetFirstTimeouts(timeouts_s):
                self.timeouts.append(dict(timeouts_s))
                return [on.FirstTimeoutsSet(self.early)]
            case give.LookAtFirstPacket(key):
                self.looks.append(key)
                if key in self.joins | self.answered:
                    return [on.FirstPacketAnswered(key)]
                # (On this clock an instant may be a hair before the repetition that it is at.)
                waited_s = now_s - self.begun[key]
                times = math.floor(waited_s / self.timeout_s + 1e-9)
                left_s = (times + 1) * self.timeout_s - waited_s
                received = {
                    each.interface: int(self.received_bytes(each.name, now_s)) for each in NETWORKS
                }
                return [on.FirstPacketSeen(key, left_s, times, received, self.users.get(key, 0))]
            case give.RescueFlow(key, network):
                if self.refuses:
                    return [on.CommandFailed(command)]
                self.rescued.append(Rescued(key, network, now_s - self.begun[key]))
                return [on.CommandDone(command)]
        return []


ALL = {"wlan0": 0.01, "lte0": 0.02, "eth0": 0.03}
TWO = {"wlan0": 0.01, "lte0": 0.02}


def test_a_packet_lost_where_others_are_answered_is_repeated_there_once():
    place = Place(BOTH, **TWO)
    place.connect()
    place.answers(BEGAN_S + 0.05, wlan0=0.01)
    place.wait(BEGAN_S + 1.8 * LEAST_S)
    assert place.rescued == []
    place.wait(BEGAN_S + 2 * LEAST_S)
    assert [each.network for each in place.rescued] == ["lte0"]


def test_the_users_rules_are_kept():
    place = Place(**ALL)
    place.script.tell(on.RuleSet(1, RuleRequest(host=str(KEY.remote), never=("eth0",))))
    place.connect()
    place.wait(BEGAN_S + 0.25)
    assert [each.network for each in place.rescued] == ["lte0"]


def test_no_flow_is_led_by_a_rule_that_the_kernel_does_not_take():
    place = Place(**ALL)
    place.connect(replace(KEY, remote_port=65_535), replace(KEY, local_port=65_535))
    place.connect(replace(KEY, remote_port=65_534))
    place.wait(BEGAN_S + 0.25)
    assert [each.key.remote_port for each in place.rescued] == [65_534]


@pytest.mark.parametrize(("dead", "living"), [("eth0", "lte0"), ("lte0", "eth0")])
def test_dead_networks_rescue_nobody(dead, living):
    place = Place(**(ALL | {dead: None}))
    place.connect()
    place.wait(BEGAN_S + 0.25)
    assert [each.network for each in place.rescued] == [living]


def test_where_none_lives_each_repetition_tries_another_one():
    place = Place(BOTH, wlan0=0.01, lte0=None)
    place.connect()
    place.wait(BEGAN_S + 2.0)
    assert [each.network for each in place.rescued[:2]] == ["lte0", "wlan0"]
    assert place.rescued[0].after_s > LEAST_S  # the first repetition was not for a dead one


def test_a_network_is_as_slow_as_it_is_or_mostly_was():
    place = Place(BOTH, wlan0=0.2)
    assert place.timeouts[-1]["wlan0"] >= 0.6
    for number, (rtt_s, wanted_s) in enumerate(
        ((0.02, 0.33), (0.02, LEAST_S), (0.2, 0.6), (0.02, LEAST_S)), 1
    ):
        # (Each round trip stands alone: one is the median of the last two seconds.)
        place.answers(BEGAN_S + 2.1 * number, wlan0=rtt_s)
        assert wanted_s <= place.timeouts[-1]["wlan0"] <= wanted_s * 1.05


@pytest.mark.parametrize(
    ("rtts_s", "early"), [({"wlan0": 0.01, "lte0": 0.02}, False), ({"lte0": 0.02}, True)]
)
def test_without_early_repetition_or_a_round_trip_the_kernels_second_counts(rtts_s, early):
    place = Place(BOTH, early=early, **rtts_s)
    place.timeout_s = KERNEL_S
    assert ("wlan0" in place.timeouts[-1]) == ("wlan0" in rtts_s)
    place.connect()
    place.wait(BEGAN_S + 0.9)
    assert place.rescued == []
    place.wait(BEGAN_S + KERNEL_S)
    assert len(place.rescued) == 1


def test_time_outs_that_were_refused_are_set_again():
    place = Place(BOTH, **TWO)
    (*_, last) = place.timeouts
    place.script.tell(on.CommandFailed(give.SetFirstTimeouts(last)))
    place.tell_all(place.script.decide(BEGAN_S))
    assert place.timeouts[-2:] == [last, last]


def test_an_established_subflow_is_not_looked_at():
    """A look asks the privileged process, and half of a hundred flows a second were looked at."""
    place, other = Place(**ALL), replace(KEY, local_port=40001)
    place.connect(KEY, other)
    place.script.tell(on.SubflowJoined(TOKEN, KEY, True), at_s=BEGAN_S + 0.05)
    place.wait(BEGAN_S + 1.0)
    assert set(place.looks) == {other}


def test_an_ipv6_flow_needs_a_network_with_ipv6():
    place = Place(**ALL)
    place.connect(FlowKey(ip_address("2001:db8:1::2"), 40000, ip_address("2001:db8:9::9"), 443))
    place.wait(BEGAN_S + 1.0)
    assert place.looks != []
    assert place.rescued == []


def test_many_are_looked_at_together_and_a_refusal_is_tried_again():
    place = Place(**ALL)
    keys = [replace(KEY, local_port=41000 + number) for number in range(200)]
    place.connect(*keys)
    place.wait(BEGAN_S + LEAST_S)
    assert [key for key, _, _ in place.rescued] == keys
    place.refuses = True
    late = replace(KEY, local_port=45000)
    place.connect(late, at_s=BEGAN_S + 0.3)
    place.wait(BEGAN_S + 0.7)
    assert late not in {key for key, _, _ in place.rescued}
    assert not place.script.controller.flows.is_rescued(late)
    place.refuses = False
    place.wait(BEGAN_S + 1.1)
    assert late in {key for key, _, _ in place.rescued}


def test_a_turn_of_the_event_loop_looks_at_few():
    """Each look asks the kernel: a program with thousands of first packets held up all else."""
    place = Place(**ALL)
    place.connect(*(replace(KEY, local_port=41000 + number) for number in range(200)))
    controller, late_s = place.script.controller, BEGAN_S + 5.0
    seen = []
    while (due_s := controller.rescuer.next_timer_s()) is not None and due_s <= late_s:
        controller.handle(on.TimerFired(), late_s)
        looks = [each for each in controller.commands() if isinstance(each, give.LookAtFirstPacket)]
        seen.append(len(looks))
    assert max(seen) <= 32
    assert sum(seen) == 200


def test_in_a_dry_run_each_is_said_once():
    place = Place(dry_run=True, wlan0=0.01, eth0=0.03)
    place.connect()
    place.wait(BEGAN_S + 4 * LEAST_S)
    assert len(place.rescued) == 1


def heard(place, network, at_s):
    """Another flow over a network receives something."""
    own = {each.name: each.addresses[0].ip for each in NETWORKS}[network]
    key = replace(KEY, local=own, local_port=50000)
    sample = FlowSample(key, at_s, 1, None, 0.01, 0.01, None, int(at_s * 1e3), 9, 0, 0.0, 0, 0.0)
    place.script.controller.flows.on_samples([sample], at_s)


@pytest.mark.parametrize(
    ("after_s", "stays"), [(-0.01, False), (0.005, False), (0.02, True)],
    ids=["before it began", "on its way already", "since"],
)  # fmt: skip
def test_where_other_flows_hear_something_the_packet_was_lost_in_a_queue(after_s, stays):
    """A round trip is noted twice a second at most: bytes that came since say as much."""
    place = Place(BOTH, **TWO)
    place.connect()
    heard(place, "wlan0", BEGAN_S + after_s)
    heard(place, "lte0", BEGAN_S + 0.1)
    place.wait(BEGAN_S + 0.4)
    assert (place.rescued == []) is stays


def flowing(network, until_s=math.inf):
    """Counters of interfaces of which one receives 8 Mbit/s, up to an instant."""
    return lambda name, at_s: 1e6 * (min(at_s, until_s) - BEGAN_S) if name == network else 0.0


def test_a_rescued_packet_stays_where_others_are_carried():
    """Else it is led to and fro between a full network and a dead one, and ends at the dead one."""
    place = Place(BOTH, **TWO)
    place.received_bytes = flowing("lte0")
    place.connect()
    place.wait(BEGAN_S + 2.6 * LEAST_S)
    assert [each.network for each in place.rescued] == ["lte0"]
    # Only when two have found no answer there, too, is the first network tried again.
    place.wait(BEGAN_S + 3 * LEAST_S)
    assert [each.network for each in place.rescued] == ["lte0", "wlan0"]


def black_holes(place, user, count, first_port=1024):
    """Return connections of a user to hosts that answer over no network."""
    there = ip_address("192.0.0.1")
    keys = [replace(KEY, local_port=first_port + n, remote=there) for n in range(count)]
    place.users |= dict.fromkeys(keys, user)
    place.connect(*keys)
    return keys


@pytest.fixture
def few(monkeypatch):
    """The bounds are a tenth or less of the real ones."""
    monkeypatch.setattr(rescue, "_MOST_WATCHED_OF_ONE", 40)
    monkeypatch.setattr(rescue, "_MOST_WATCHED", 120)
    monkeypatch.setattr(rescue, "_MOST_RESCUED_OF_ONE", 10)
    monkeypatch.setattr(rescue, "_MOST_RESCUED", 25)


@pytest.mark.usefixtures("few")
def test_one_user_s_connections_into_the_void_leave_rescues_to_others():
    """10,000 of them made a rule each: 1.4 ms of the daemon, and slower routes for the whole host."""
    place = Place(BOTH, **TWO)
    void = black_holes(place, user=1000, count=100)
    other = replace(KEY, local_port=50_000)
    place.users[other] = 1001
    place.connect(other)
    place.wait(BEGAN_S + 0.3)
    led = {each.key for each in place.rescued}
    assert other in led
    assert len(led - {other}) == 10
    # Of those that are too many for one user, none is looked at again.
    assert len(set(place.looks)) == 101
    assert len({key for key in void if place.looks.count(key) > 1}) == 40
    place.wait(BEGAN_S + 3.0)
    assert len({each.key for each in place.rescued}) == 11
    # What has ended leaves its place to others.
    for key in void:
        place.script.tell(on.FlowClosed(key, 0.0, 0, 0, at_s=BEGAN_S + 3.0), at_s=BEGAN_S + 3.0)
    assert place.script.controller.rescuer.living.keys() <= {other}
    later = [replace(KEY, local_port=60_000 + n) for n in range(10)]
    place.users |= dict.fromkeys(later, 1000)
    place.connect(*later, at_s=BEGAN_S + 3.0)
    place.wait(BEGAN_S + 3.5)
    assert {each.key for each in place.rescued} >= set(later)


@pytest.mark.usefixtures("few")
def test_all_users_together_have_a_bounded_number_of_rescues():
    place = Place(BOTH, **TWO)
    for user in range(5):
        black_holes(place, user=user, count=30, first_port=1024 + 1000 * user)
    place.wait(BEGAN_S + 0.3)
    assert len(set(place.looks)) == 120
    assert len({each.key for each in place.rescued}) == 25
