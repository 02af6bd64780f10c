"""Which stuck connections are closed, by scripts of what is seen; and which never are."""

from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from cedos.daemon.decisions.stuck import StuckConnections

from cedos.config.sections import SteeringConfig
from cedos.controller.events import FlowClosed, FlowOpened, FlowSample, SizeLearned
from cedos.errors import SteeringError
from cedos.model import Context, Direction, FlowKey, Indicator, SizeEstimate
from cedos.monitor.flows import own_flows

pytestmark = pytest.mark.anyio

LAPTOP = ip_address("10.0.0.2")
SERVER = ip_address("198.51.100.1")


class Script:
    """A connection over Wi-Fi, which falls silent at 20 s; LTE replies all the time."""

    def __init__(self, stage: Any, when: str = "after 3s") -> None:
        self.stage = stage
        self.asked: list[str] = []
        self.closed: list[FlowKey] = []
        self.refusing: Exception | None = None
        self.silent: dict[str, float] = {}
        self.pinged: dict[str, float] = {"wlan0": 21.0}
        self.lte_replied_s = 0.0
        self.heard_at_s = {"wlan0": 20.0}
        observer: Any = SimpleNamespace(
            ask=lambda network: self.asked.append(network.name),
            prober=SimpleNamespace(heard_at_s=self.heard_at_s),
        )
        self.watch = StuckConnections(
            SteeringConfig(close_stuck=when), stage.flows, stage.director, observer, self.close
        )

    def close(self, key: FlowKey) -> bool:
        if self.refusing is not None:
            raise self.refusing
        self.closed.append(key)
        return True

    def opens(
        self, port: int = 80, *, key: FlowKey | None = None, incoming: bool = False
    ) -> FlowKey:
        key = key or FlowKey(LAPTOP, 4000 + port % 1000, SERVER, port)
        self.stage.flows.on_open(FlowOpened(key, 19.0, 119.0, incoming))
        return key

    def downloads(self, key: FlowKey, size: int = 240_000, source: str = "content-length") -> None:
        estimate = SizeEstimate(size, size, size, source)
        self.stage.flows.on_size(SizeLearned(key, Direction.DOWN, estimate))

    def look(self, key: FlowKey, at_s: float, **seen: Any) -> None:
        """A look at the socket: nothing has come since 20 s, if nothing else is said."""
        silent_s = max(0.0, at_s - 20.0)
        sample = FlowSample(
            key, at_s, 1, None, 0.02, 0.02, None, 50_000, 300, 0, silent_s, 0, silent_s
        )
        self.stage.flows.on_samples([replace(sample, **seen)], at_s)

    async def closes(self, at_s: float, *, replies: bool = False) -> list[FlowKey]:
        """Returns what is closed at this instant; Wi-Fi has been silent since 20 s unless it replies."""
        self.closed.clear()
        lte = {"rtt_s": Indicator(0.05, at_s - self.lte_replied_s)}
        wlan = {"rtt_s": Indicator(0.02, at_s - 0.3 if replies else 19.5)}
        await self.stage.reconsider(at_s, alive=("lte0",))
        self.watch.check(Context(at_s, {"wlan0": wlan, "lte0": lte}), self.pinged)
        return list(self.closed)


@pytest.fixture
def script(stage: Any) -> Script:
    return Script(stage)


async def test_a_download_that_stands_still_is_closed_once_and_told(script: Script) -> None:
    key = script.opens()
    script.downloads(key)
    script.look(key, 22.9)
    assert await script.closes(22.9) == []
    script.look(key, 23.1)
    assert await script.closes(23.1) == [key]
    assert await script.closes(23.2) == []
    decision = script.stage.decisions[-1]
    assert decision.transfer.flow == key
    assert str(decision.choice) == "single(lte0)"
    assert "wlan0 has not replied for 3.1 s, and lte0 lives" in decision.reason
    (told,) = script.watch.messages(30.0)
    assert told == (
        "1 connection on wlan0 was closed after 3 s of silence so that its program connects again"
    )
    assert script.watch.messages(2_000.0) == []


async def test_its_size_is_not_learned_from_what_it_carried(script: Script) -> None:
    key = script.opens()
    script.downloads(key)
    script.look(key, 23.1)
    await script.closes(23.1)
    record = script.stage.flows.on_close(FlowClosed(key, 123.2, 50_000, 300, at_s=23.2))
    assert not record.exact


@pytest.mark.parametrize(
    "seen",
    [
        {"idle_down_s": 0.5},
        {"idle_ack_s": 0.5},
        {"state": 2},
        {"state": 8},
        {"token": 7},
    ],
)
async def test_what_hears_something_or_is_another_kind_stays(script: Script, seen: Any) -> None:
    key = script.opens()
    script.downloads(key)
    script.look(key, 23.1, **seen)
    assert await script.closes(23.1) == []


async def test_what_no_look_has_seen_lately_stays(script: Script) -> None:
    key = script.opens()
    script.look(key, 20.9, unacknowledged=3)
    assert await script.closes(23.1) == []


@pytest.mark.parametrize("port", [22, 25, 143, 993, 1194, 5222, 3306])
async def test_ports_that_the_user_does_not_name_are_left_alone(script: Script, port: int) -> None:
    key = script.opens(port)
    script.look(key, 60.0, unacknowledged=3)
    assert await script.closes(60.0) == []


async def test_what_others_opened_what_is_near_and_what_is_the_daemons_own_stays(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = FlowKey(LAPTOP, 4001, ip_address("10.0.0.9"), 80)
    vpn = FlowKey(ip_address("10.8.0.2"), 4002, SERVER, 80)
    own = FlowKey(LAPTOP, 4003, SERVER, 80)
    monkeypatch.setitem(own_flows._known, own, None)
    keys = [script.opens(key=key) for key in (near, vpn, own)]
    keys.append(script.opens(443, incoming=True))
    for key in keys:
        script.look(key, 23.1, unacknowledged=3)
    assert await script.closes(23.1) == []


async def test_a_slow_server_is_waited_for(script: Script) -> None:
    """One connection waits and nothing else is said: only a ping tells whether the network lives."""
    key = script.opens()
    script.downloads(key)
    script.pinged.clear()
    script.look(key, 60.0, unacknowledged=1)
    assert await script.closes(60.0) == []
    assert script.asked == ["wlan0"]
    script.pinged["wlan0"] = 60.1
    assert await script.closes(60.5) == []
    script.pinged.clear()  # given up, and the next one is not sent yet: it owes a reply all the same
    script.look(key, 61.2, unacknowledged=1)
    assert await script.closes(61.2) == [key]


async def test_a_reply_to_an_earlier_ping_is_forgotten(script: Script) -> None:
    key = script.opens()
    script.look(key, 22.5, unacknowledged=1)
    assert await script.closes(22.5) == []
    script.heard_at_s["wlan0"] = 22.6
    script.pinged.clear()
    script.look(key, 40.0, unacknowledged=1)
    assert await script.closes(40.0) == []
    assert script.asked == ["wlan0"]


async def test_nothing_is_closed_on_a_network_that_replies(script: Script) -> None:
    """A neighbour can send what it likes: at most the network counts as living."""
    key = script.opens()
    script.downloads(key)
    script.look(key, 40.0, unacknowledged=3)
    assert await script.closes(40.0, replies=True) == []


async def test_what_rests_stays_and_what_was_receiving_does_not(script: Script) -> None:
    """Of encrypted answers the length is not known."""
    resting, receiving = script.opens(443), script.opens(8443)
    for key in (resting, receiving):
        script.downloads(key, 3_000, "history")
    script.look(resting, 23.5, idle_down_s=9.0, idle_ack_s=9.0)
    script.look(receiving, 23.5)
    assert await script.closes(23.5) == [receiving]


async def test_another_network_has_to_live_and_is_asked(script: Script) -> None:
    key = script.opens()
    script.look(key, 23.1, unacknowledged=3)
    script.lte_replied_s = 15.0
    assert await script.closes(23.1) == []
    assert script.asked == ["lte0"]
    script.lte_replied_s = 0.1
    assert await script.closes(23.3) == [key]


async def test_what_has_carried_much_waits_for_as_long_as_that_would_take(script: Script) -> None:
    key = script.opens()
    script.downloads(key, 20_000_000)
    for at_s, closed in ((24.0, []), (31.0, []), (33.0, [key])):
        script.look(key, at_s, bytes_down=15_000_000)  # 12 s at 10 Mbit/s
        assert await script.closes(at_s) == closed


async def test_lost_networks(stage: Any) -> None:
    script = Script(stage, "lost")
    key = script.opens()
    script.look(key, 60.0, unacknowledged=3)
    assert await script.closes(60.0) == [], "silent is not gone"
    stage.director.networks_changed([replace(stage.wlan, up=False), stage.lte])
    assert await script.closes(60.1) == []
    script.look(key, 60.9, unacknowledged=3)
    assert await script.closes(60.9) == [], "it may be back"
    script.look(key, 61.2, unacknowledged=3)
    assert await script.closes(61.2) == [key]
    assert "wlan0 is gone" in stage.decisions[-1].reason


async def test_a_refusal_is_no_end(script: Script) -> None:
    key = script.opens()
    script.look(key, 23.1, unacknowledged=3)
    script.refusing = SteeringError("no")
    assert await script.closes(23.1) == []
    script.refusing = None
    assert await script.closes(23.2) == [key]


@pytest.mark.parametrize(
    ("value", "after_s"),
    [
        ("never", None),
        ("lost", None),
        ("after 3s", 3.0),
        ("after 1.5s", 1.5),
        ("after 600s", 600.0),
    ],
)
def test_the_setting(value: str, after_s: float | None) -> None:
    assert msgspec.convert({"close_stuck": value}, SteeringConfig).closes_after_s == after_s


@pytest.mark.parametrize(
    "value", ["", "always", "after 0s", "after 0.5s", "after 601s", "after 3 s"]
)
def test_a_wrong_setting_is_refused(value: str) -> None:
    with pytest.raises(msgspec.ValidationError, match='"after 3s"'):
        msgspec.convert({"close_stuck": value}, SteeringConfig)
