from ipaddress import ip_address, ip_interface
from math import inf

import pytest

from cedos.controller.events import FlowOpened, SizeLearned
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.silence import PATIENCE_S, RoundTrips, Silence
from cedos.model import Direction, FlowKey, FlowSample, Network, NetworkKind, SizeEstimate

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
KEY = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
RTTS = {"wlan0": RoundTrips(0.03, 0.03), "lte0": RoundTrips(0.06, 0.06)}


class World:
    """A download over Wi-Fi, which is sampled every 0.2 s."""

    def __init__(self):
        self.flows = LivingFlows()
        self.flows.networks_changed([WLAN, LTE])
        self.flows.on_open(FlowOpened(KEY, 0.0, 100.0))
        exact = SizeEstimate(1_000_000, 1_000_000, 1_000_000, "content-length")
        self.flows.on_size(SizeLearned(KEY, Direction.DOWN, exact))
        self.silence = Silence()
        self.now_s = 0.0
        self.heard_s = 0.0
        self.rtts = dict(RTTS)

    def check(
        self, *, arrives=True, unacknowledged=0, done=False, answered_at_s=None, **asked_at_s
    ):
        self.now_s += 0.2
        if arrives:
            self.heard_s = self.now_s
        idle_s = self.now_s - self.heard_s
        down = 1_000_000 if done else int(100_000 * self.heard_s)
        sample = FlowSample(
            KEY, self.now_s, 1, None, 0.03, 0.03, 1e6, down, 100, 0, idle_s, unacknowledged, inf
        )
        self.flows.on_samples([sample], self.now_s)
        answered = {} if answered_at_s is None else {"wlan0": answered_at_s}
        found = self.silence.check(
            self.flows.path_waits(), asked_at_s, answered, self.rtts, self.now_s
        )
        self.due = found
        return {name: due.silent_s for name, due in found.items()}


@pytest.fixture
def world():
    return World()


def test_a_download_that_stops_tells_it_within_half_a_second(world):
    assert [world.check() for _ in range(10)] == [{}] * 10
    silent = [world.check(arrives=False) for _ in range(3)]
    assert silent[0] == {}, "a lost packet may take so long"
    assert silent[1] == {"wlan0": pytest.approx(0.4)}
    assert silent[2] == {"wlan0": pytest.approx(0.6)}
    assert world.check() == {}


def test_a_request_after_a_long_rest_is_given_its_time(world):
    for _ in range(20):
        world.check(arrives=False, done=True)
    silent = [world.check(arrives=False, done=True, unacknowledged=1) for _ in range(3)]
    assert silent[:2] == [{}, {}]
    assert silent[2] == {"wlan0": pytest.approx(0.4)}


def test_a_ping_that_waits_tells_it_of_an_idle_network(world):
    world.check(done=True)
    asked_s = world.now_s
    silent = [world.check(done=True, lte0=asked_s) for _ in range(3)]
    assert silent[0] == {}
    assert silent[1] == {"lte0": pytest.approx(0.4)}
    assert PATIENCE_S < 0.4


def test_a_path_that_waits_while_its_network_answers_pings_waits_for_its_own_reasons(world):
    for _ in range(5):
        world.check()
    silent = []
    for look in range(20):  # a ping each half second, answered; nothing comes on the path
        answered_at_s = 1.0 + 0.5 * (0.2 * (look + 1) // 0.5)
        silent.append(world.check(arrives=False, answered_at_s=answered_at_s))
    assert silent[2:] == [{}] * 18


def test_a_network_that_dies_while_a_path_waits_for_its_own_reasons_is_told_by_pings(world):
    for _ in range(10):
        world.check(arrives=False, answered_at_s=world.now_s)
    answered_at_s = world.now_s
    asked_at_s = world.now_s + 0.1
    silent = [
        world.check(arrives=False, answered_at_s=answered_at_s, wlan0=asked_at_s) for _ in range(4)
    ]
    assert silent[1] == {}
    assert silent[3] == {"wlan0": pytest.approx(0.7)}


@pytest.mark.parametrize(
    ("trips", "patience_s"),
    [
        (RoundTrips(0.03, 0.03), 0.35),
        (RoundTrips(0.3, 0.3), 0.9),  # a satellite
        (RoundTrips(0.55, 0.02), 0.55),  # a queue of our own making: it drains, or it is dead
    ],
)
def test_a_long_queue_does_not_hide_that_nothing_comes(world, trips, patience_s):
    world.rtts["wlan0"] = trips
    for _ in range(3):
        world.check()
    found = [bool(world.check(arrives=False)) for _ in range(8)]
    silent_after_s = 0.2 * (found.index(True) + 1)
    assert patience_s < silent_after_s <= patience_s + 0.4


def test_how_long_a_silence_lasted_is_remembered_for_a_while(world):
    world.check()
    for _ in range(4):
        world.check(arrives=False)
    world.check()
    (lasted_s,) = world.silence.pauses(world.now_s)["wlan0"]
    assert lasted_s == pytest.approx(1.0)
    assert world.silence.pauses(world.now_s + 700.0) == {}
