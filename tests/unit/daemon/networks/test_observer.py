"""What the observer hands on: who answered a ping to the portals, what flows carried to the context."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
import structlog.testing

from cedos.config import Config, ProbesConfig, ProvidersConfig
from cedos.controller.events import FlowClosed, FlowOpened, FlowSample, Witness
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.flows.reliability import Reliability
from cedos.controller.networks.silence import Due
from cedos.daemon.loop.flow_events import FlowEvents
from cedos.daemon.networks.observer import Observer
from cedos.kernel.rtnetlink import Counters
from cedos.model import Address, FlowKey, Network, NetworkKind, NetworkLife, NextHop
from cedos.monitor.liveness.tls_check import TlsAnswer
from cedos.monitor.probing.result import ProbeOutcome, Spent

pytestmark = pytest.mark.anyio

GATEWAY = ip_address("10.0.0.1")
WLAN = Network(
    *("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),)),
    next_hops=(NextHop(4, GATEWAY),),
)
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
KEY = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
ANSWERED = ProbeOutcome({"rtt_s": 0.03}, Spent(98, 98, 0.03))
LOST = ProbeOutcome({}, Spent(98, 0, 1.0), "no answer in time")

Make = Callable[..., Observer]


@pytest.fixture
def make() -> Make:
    def made(target: str = "1.1.1.1", *, dns: bool = True) -> Observer:
        config = Config(
            providers=ProvidersConfig(host=False),
            probes=ProbesConfig(target=target, portal_url="", dns=dns),
        )
        observer = Observer(config, None, lambda: None)
        observer.networks_changed([WLAN, LTE])
        return observer

    return made


async def test_a_well_known_host_is_asked_only_where_it_lies_beyond_the_router(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Address] = []

    async def shake_hands(network: Network, target: Address, timeout_s: float) -> TlsAnswer:
        asked.append(target)
        return TlsAnswer.PROVEN

    monkeypatch.setattr("cedos.daemon.networks.observer.shake_hands", shake_hands)
    assert await make("gateway")._shake_hands(WLAN, 1.0) is None
    assert await make("1.1.1.1")._shake_hands(WLAN, 1.0) is TlsAnswer.PROVEN
    assert asked == [ip_address("1.1.1.1")]


class Daemon:
    """What happens to flows, of which only the observer and the flows are real."""

    def __init__(self, observer: Observer) -> None:
        def nobody(*_: Any, **__: Any) -> Any:
            return []

        self.observer = observer
        self.flows = LivingFlows()
        self.flows.networks_changed([WLAN, LTE])
        anybody = cast(
            Any,
            SimpleNamespace(
                **dict.fromkeys(
                    (
                        "on_transfer_begun",
                        "on_open",
                        "on_close",
                        "on_connection",
                        "finished",
                        "on_transfer",
                        "read_before",
                    ),
                    nobody,
                ),
                networks=(WLAN, LTE),
                wants_marks=False,
            ),
        )
        self.events = FlowEvents(
            *(anybody, anybody, self.flows, anybody, anybody, observer),
            *(anybody, anybody, anybody, anybody, None, Reliability(), None),
        )

    async def open(self) -> float:
        """When a flow began: 0.5 s ago."""
        began_s = time.monotonic() - 0.5
        await self.events._opened(FlowOpened(KEY, began_s, 0.0))
        return began_s

    def delivered(self, *samples: FlowSample) -> set[str]:
        """The networks of which is known what they delivered."""
        self.observer.observe_delivery(self.flows.at_home(samples), time.monotonic())
        known = self.observer.context().networks
        return {name for name in known if "delivery_down_bps" in known[name]}


async def test_what_a_flow_carries_since_it_began_is_known_of_its_network(make: Make) -> None:
    daemon = Daemon(make())
    began_s = await daemon.open()
    at_s = began_s + 0.4
    sample = FlowSample(KEY, at_s, 1, None, 0.02, 0.02, None, 100_000, 500, 0, 0.0, 0)
    assert daemon.delivered(sample) == {"wlan0"}
    found = daemon.observer.context().networks["wlan0"]["delivery_down_bps"]
    assert found.value == pytest.approx(8e5 / (0.4 - 2 * 0.02)), "after handshake and request"


@pytest.mark.parametrize("rescued", [False, True])
async def test_what_another_network_carried_is_not_held_to_the_credit_of_the_flows_own(
    make: Make, rescued: bool
) -> None:
    daemon = Daemon(make())
    at_s = await daemon.open() + 0.4
    if rescued:
        daemon.flows.on_rescue(KEY, "lte0")
    ended = FlowClosed(KEY, 0.0, 100_000, 500, at_s=at_s, idle_down_s=0.0, idle_ack_s=0.0)
    daemon.events._closed(ended)
    assert daemon.delivered() == (set() if rescued else {"wlan0"})


@pytest.mark.parametrize(("answered_s", "known"), [(0.01, True), (5.0, False), (None, False)])
async def test_a_short_flow_tells_at_its_end_what_a_round_trip_took(
    make: Make, answered_s: float | None, known: bool
) -> None:
    daemon = Daemon(make())
    at_s = await daemon.open() + 0.4
    ended = FlowClosed(
        KEY, 0.0, 4_000, 500, rtt_s=0.012, at_s=at_s, idle_down_s=0.0, idle_ack_s=answered_s
    )
    daemon.events._closed(ended)
    indicators = daemon.observer.context().networks.get("wlan0", {})
    found = indicators.get("rtt_s")
    assert (found is not None and found.value == 0.012) is known


async def test_what_a_host_before_the_router_sends_says_nothing_of_what_is_behind_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy from a disk in the same Wi-Fi made it a network of 800 Mbit/s and a round trip of 0.3 ms."""
    observer = make()
    disk = replace(KEY, remote=ip_address("10.0.0.9"), remote_port=445)
    received_bytes = 0

    async def counters(index: int) -> Counters:
        return Counters(received_bytes, 0)

    monkeypatch.setattr(observer._counters, "read", counters)
    now_s = time.monotonic() - 1.0
    observer.on_open(disk, now_s)
    for look in range(1, 6):
        at_s, received_bytes = now_s + 0.2 * look, 20_000_000 * look
        copied = FlowSample(
            disk, at_s, 1, None, 3e-4, 3e-4, None, received_bytes, 9_000 * look, 0, 0.0, 0, 0.0
        )
        observer.observe_delivery([copied], at_s)
        observer.observe_flows([copied])
        observer.observe_answers([copied])
        await observer._read(WLAN)
    ended = FlowClosed(
        disk, 0.0, received_bytes, 45_000, 3e-4, 3e-4, at_s=at_s, idle_down_s=0.0, idle_ack_s=0.0
    )
    observer.on_close(ended, "wlan0")
    observer.observe_delivery([], at_s)
    known = observer.context().networks["wlan0"]
    assert known.keys().isdisjoint({"past1_bps", "delivery_down_bps", "rtt_s", "rtt_min_s"})
    # Two seconds later counters are believed again, from then on, though a question goes to the router
    # and the disk says that it is there.
    monkeypatch.setattr(observer, "_near_at_s", {"wlan0": time.monotonic() - 2.1})
    observer.on_open(replace(disk, remote=GATEWAY, remote_port=53, protocol="udp"), at_s)
    alive = replace(copied, key=replace(disk, local_port=4001), bytes_down=500, bytes_up=500)
    observer.observe_answers([alive])
    await observer._read(WLAN)
    received_bytes += 1_000_000
    await observer._read(WLAN)
    found = observer.context().networks["wlan0"]["delivery_down_bps"]
    assert found.value > 0.0


@pytest.mark.parametrize(
    ("remote", "bytes_down", "lives"),
    [("198.51.100.1", 1200, True), ("198.51.100.1", 0, False), ("10.0.0.9", 1200, False)],
)
async def test_who_drops_pings_and_answers_by_udp_lives(
    make: Make, remote: str, bytes_down: int, lives: bool
) -> None:
    observer = make()
    key = FlowKey(ip_address("10.0.0.2"), 4000, ip_address(remote), 443, "udp")
    observer.on_close(FlowClosed(key, 0.0, bytes_down, 500, exact=False), "wlan0")
    observer.keeper.observe_up("wlan0", True, time.monotonic())
    for witness in (Witness.PING, Witness.PING, Witness.PING, Witness.PAGE):
        observer.keeper.liveness("wlan0").missed(witness, time.monotonic())
    assert observer.context().networks["wlan0"]["available"].value == float(lives)


@pytest.mark.parametrize(
    ("dns", "knows", "life"),
    [
        (True, True, NetworkLife.ALIVE),
        (True, False, NetworkLife.DEAD),
        (True, None, NetworkLife.UNKNOWN),  # the resolver refuses: that tells nothing
        (False, True, NetworkLife.UNKNOWN),
    ],
)
async def test_a_network_whose_pings_are_lost_is_asked_for_names(
    make: Make, monkeypatch: pytest.MonkeyPatch, dns: bool, knows: bool | None, life: NetworkLife
) -> None:
    observer = make(dns=dns)
    observer.networks_changed([replace(WLAN, up=True), LTE])
    asked: list[str] = []

    async def knows_names(network: Network) -> bool | None:
        asked.append(network.name)
        return knows

    monkeypatch.setattr(observer.prober, "knows_names", knows_names)
    following = asyncio.create_task(observer._follow_probes())
    for _ in range(7):
        observer.prober.finished(WLAN, LOST)
        await asyncio.sleep(0.01)
    assert asked == ["wlan0"] * (7 if dns else 0)
    assert observer.context().verdicts["wlan0"].life is life
    # (Pings that are never answered while names are need not be sent.)
    assert (observer._ping_target(WLAN) is None) is (life is NetworkLife.ALIVE)
    following.cancel()


async def test_how_long_silences_lasted_is_known_with_the_rest(make: Make) -> None:
    observer = make()
    observer.silent({}, {"wlan0": (0.5, 4.0)}, time.monotonic())
    assert observer.context().pauses == {"wlan0": (0.5, 4.0)}


async def test_the_states_of_networks_that_are_up_are_logged_when_they_change(make: Make) -> None:
    observer = make()
    liveness = observer.keeper.liveness("wlan0")

    def told(*events: Callable[[], object]) -> list[tuple[str, str]]:
        with structlog.testing.capture_logs() as logged:
            for event in events:
                event()
                observer.silent({}, {}, time.monotonic())
        return [(each["event"], each["network"]) for each in logged]

    now_s = time.monotonic()
    assert told(lambda: liveness.on_heard(Witness.PAGE, now_s - 9.0)) == []
    assert told(
        lambda: liveness.intercepted(Witness.PAGE, now_s - 8.0, "another page"),
        lambda: liveness.missed(Witness.CONNECTION, now_s - 7.0),
        lambda: liveness.on_heard(Witness.PAGE, now_s - 6.0),
    ) == [("unknown", "wlan0"), ("captive", "wlan0"), ("replies again", "wlan0")]
    # A network that went down while it was silent has replied to nothing.
    due = {"wlan0": Due(0.4, transfers=True, pings=False)}
    with structlog.testing.capture_logs() as logged:
        observer.silent(due, {}, time.monotonic())
        observer.networks_changed([replace(WLAN, up=False), LTE])
        observer.silent({}, {}, time.monotonic())
        observer.networks_changed([LTE])
        observer.silent({}, {}, time.monotonic())
    assert [each["event"] for each in logged] == ["silent"]
