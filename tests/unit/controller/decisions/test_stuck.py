"""The closing of stuck connections, by scripts of events: which are closed, and which never are."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import LTE, WLAN, Script, size_of

from cedos.controller import events as on
from cedos.controller.commands import AskNetwork, CloseConnection, LookAtFlows
from cedos.controller.rule import RuleRequest
from cedos.model import Direction, FlowKey, FlowSample, NextHop

LAPTOP = ip_address("10.0.0.2")
SERVER = ip_address("198.51.100.1")


class Silence:
    """Wi-Fi falls silent at 20 s, and a ping over it has no reply since 21 s; LTE replies all the time.

    Attributes:
        closed: when which connection was closed.
        asked: the networks that the controller had pinged.
        pinged: of pings without a reply, when they were sent.
        seen: what looks show of a connection, beside its silence since 20 s.
        replying: the networks whose pings are answered with each look.
        refusing, looking: whether closing is refused, and whether sockets can be looked at.
    """

    def __init__(self, when="after", after_s=3.0, replying=("lte0",)):
        self.closed = []
        self.asked = []
        self.pinged = {}
        self.seen = {}
        self.replying = list(replying)
        self.refusing, self.looking = False, True
        self.script = Script(close_stuck=when, closes_after_s=after_s)
        for name in ("wlan0", "lte0"):
            self.script.tell(on.PingEnded(name, 0.02, 8.0, 8.0))
        self.run(19.0)

    def opens(self, port=80, *, key=None, **more):
        """A connection begins, on which nothing comes since 20 s."""
        key = key or FlowKey(LAPTOP, 4000 + port % 1000, SERVER, port)
        self.script.tell(on.FlowOpened(key, 19.0, 119.0, **more))
        self.seen[key] = {}
        return key

    def downloads(self, key, size=240_000, source="content-length"):
        self.script.tell(on.SizeLearned(key, Direction.DOWN, size_of(size, source)))

    def run(self, until_s):
        for at_s, event in (
            (20.0, on.Witnessed("wlan0", True, on.Witness.NAME, 20.0)),
            (21.0, None),
        ):
            if self.script.now_s < at_s <= until_s:
                self.script.wait(at_s, self.carry_out)
                if event is not None:
                    self.script.tell(event)
                else:
                    self.pinged = {"wlan0": 21.0}
        self.script.wait(until_s, self.carry_out)

    def when(self, key):
        return [at_s for at_s, each in self.closed if each == key]

    def carry_out(self, command):
        now_s = self.script.now_s
        match command:
            case LookAtFlows() if self.looking:
                replies = [on.PingEnded(name, 0.02, now_s, now_s) for name in self.replying]
                samples = tuple(self.sample(key, now_s, **it) for key, it in self.seen.items())
                return [*replies, on.FlowsSampled(samples, dict(self.pinged))]
            case AskNetwork(name):
                self.asked.append(name)
            case CloseConnection(key) if self.refusing:
                return [on.CommandFailed(command)]
            case CloseConnection(key):
                self.closed.append((now_s, key))
                return [on.CommandDone(command)]
        return []

    @staticmethod
    def sample(key, at_s, silent_since_s=20.0, **seen):
        silent_s = max(0.0, at_s - silent_since_s)
        sample = FlowSample(
            key, at_s, 1, None, 0.02, 0.02, None, 50_000, 300, 0, silent_s, 0, silent_s
        )
        return replace(sample, **seen)


@pytest.fixture
def silence():
    return Silence()


def test_a_download_that_stands_still_is_closed_once_and_told(silence):
    key = silence.opens()
    silence.downloads(key)
    silence.run(40.0)
    (at_s,) = silence.when(key)
    assert 23.0 <= at_s < 23.2
    (decision,) = [each for each in silence.script.decisions if "was closed" in each.reason]
    assert decision.transfer.flow == key
    assert str(decision.choice) == "single(lte0)"
    assert "wlan0 has not replied for 3." in decision.reason
    assert "and lte0 lives" in decision.reason
    (told,) = silence.script.controller.stuck.messages(30.0)
    assert told == (
        "1 connection on wlan0 was closed after 3 s of silence so that its program connects again"
    )
    assert silence.script.controller.stuck.messages(2_000.0) == []


@pytest.mark.parametrize(
    "seen",
    [
        {"idle_down_s": 0.5}, {"idle_ack_s": 0.5}, {"state": 2}, {"state": 8}, {"token": 7},
    ],
    ids=str,
)  # fmt: skip
def test_what_hears_something_or_is_another_kind_stays(silence, seen):
    key = silence.opens()
    silence.downloads(key)
    silence.seen[key] = seen
    silence.run(30.0)
    assert silence.closed == []


def test_what_no_look_has_seen_lately_stays(silence):
    key = silence.opens()
    silence.seen[key] = {"unacknowledged": 3}
    silence.run(20.9)
    silence.looking = False
    silence.run(30.0)
    assert silence.closed == []


@pytest.mark.parametrize("port", [22, 25, 143, 993, 1194, 5222, 3306])
def test_ports_that_the_user_does_not_name_are_left_alone(silence, port):
    silence.seen[silence.opens(port)] = {"unacknowledged": 3}
    silence.run(30.0)
    assert silence.closed == []


def test_what_others_opened_what_is_near_ruled_or_the_daemons_own_stays(silence):
    silence.opens(key=FlowKey(LAPTOP, 4001, ip_address("10.0.0.9"), 80))
    silence.opens(key=FlowKey(ip_address("10.8.0.2"), 4002, SERVER, 80))
    silence.opens(key=FlowKey(LAPTOP, 4003, SERVER, 80), own=True)
    silence.opens(443, incoming=True)
    ruled = ip_address("198.51.100.9")
    silence.script.tell(on.RuleSet(1, RuleRequest(host=str(ruled), never=("lte0",))))
    silence.opens(key=FlowKey(LAPTOP, 4004, ruled, 80))
    for key in silence.seen:
        silence.seen[key] = {"unacknowledged": 3}
    silence.run(30.0)
    assert silence.closed == []


@pytest.mark.parametrize("given_up", [False, True], ids=["the ping waits", "it was given up"])
def test_a_slow_server_is_waited_for(silence, given_up):
    """While one connection waits without other traffic, only a ping tells whether the network lives."""
    key = silence.opens()
    silence.downloads(key)
    silence.seen[key] = {"unacknowledged": 1}
    silence.run(21.0)
    silence.pinged.clear()
    silence.asked.clear()
    silence.run(40.0)
    assert silence.closed == []
    assert set(silence.asked) == {"wlan0"}
    silence.pinged["wlan0"] = 40.5
    silence.run(41.1)
    assert silence.closed == []
    if given_up:  # and the next one is not sent yet: it owes a reply all the same
        silence.pinged.clear()
    silence.run(41.4)
    assert len(silence.when(key)) == 1


def test_nothing_is_closed_on_a_network_that_replies(silence):
    """A neighbour can send what it likes: at most the network counts as living."""
    key = silence.opens()
    silence.downloads(key)
    silence.seen[key] = {"unacknowledged": 3}
    silence.replying.append("wlan0")
    silence.run(40.0)
    assert silence.closed == []


def test_what_rests_stays_and_what_was_receiving_does_not(silence):
    """Of encrypted answers the length is not known."""
    resting, receiving = silence.opens(443), silence.opens(8443)
    for key in (resting, receiving):
        silence.downloads(key, 3_000, "history")
    silence.seen[resting] = {"silent_since_s": 14.5}
    silence.run(30.0)
    assert [key for _, key in silence.closed] == [receiving]


def test_another_network_has_to_live_and_is_asked():
    silence = Silence(replying=())
    key = silence.opens()
    silence.seen[key] = {"unacknowledged": 3}
    silence.run(35.0)
    assert silence.closed == []
    assert "lte0" in silence.asked
    silence.replying.append("lte0")
    silence.run(36.0)
    assert len(silence.when(key)) == 1


@pytest.mark.parametrize(("when", "closes"), [("lost", True), ("never", False)])
def test_lost_networks(when, closes):
    silence = Silence(when, None)
    key = silence.opens()
    silence.seen[key] = {"unacknowledged": 3}
    silence.run(40.0)
    assert silence.closed == [], "silent is not gone"
    silence.script.networks(replace(WLAN, up=False), LTE)
    silence.run(40.9)
    assert silence.closed == [], "it may be back"
    silence.run(42.2)
    assert len(silence.when(key)) == closes
    if closes:
        assert "wlan0 is gone" in silence.script.recorded().reason


@pytest.mark.parametrize("up", [False, True])
def test_a_lease_of_another_network_s_address_has_nothing_closed_there(silence, up):
    """Wi-Fi's router gave this host LTE's address: connections there counted as Wi-Fi's."""
    gateways = (NextHop(4, ip_address("10.1.0.1")),)
    lte = replace(LTE, next_hops=gateways)
    silence.script.networks(lte, replace(WLAN, addresses=lte.addresses, up=up))
    key = silence.opens(443, key=FlowKey(lte.addresses[0].ip, 4443, SERVER, 443))
    silence.downloads(key)
    assert up or silence.script.flow(key).paths[key].network == "lte0"
    silence.run(40.0)
    # Also later, once it has given that address back.
    silence.script.networks(lte, replace(WLAN, up=False))
    silence.run(60.0)
    assert silence.closed == []
