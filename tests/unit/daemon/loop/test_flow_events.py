"""Flows as they end: compared with what was expected of them, and forgotten by everybody."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cedos.controller.events import FlowClosed, FlowOpened
from cedos.controller.flows.finished_transfer import FinishedTransfer
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.flows.reliability import Reliability
from cedos.daemon.loop import flow_events
from cedos.daemon.loop.flow_events import JUDGED_PER_S, FlowEvents
from cedos.model import (
    Context,
    Direction,
    FlowKey,
    FlowRecord,
    Indicator,
    Network,
    NetworkKind,
    Subflow,
)
from cedos.profiler.profiler import Profiler
from cedos.selector.decision.roles import assign
from cedos.storage import model_files

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
KEY = FlowKey(ip_address("10.0.0.2"), 4001, ip_address("198.51.100.1"), 80)
RECORD = FlowRecord(
    subflows=(Subflow(KEY, "wlan0", 3_000, 200),),
    token=None,
    started_unix_s=100.0,
    ended_unix_s=100.5,
)
KNOWN = Context(
    0.0,
    {
        name: {"rtt_s": Indicator(0.03, 0.0), "past1_bps": Indicator(1e7, 0.0)}
        for name in ("wlan0", "lte0")
    },
)
SMALL = FinishedTransfer("wifi", assign((WLAN, LTE)), "wlan0", Direction.DOWN, 3_000, 0.1)
LARGE = replace(SMALL, carried_bytes=3_000_000, time_s=2.0)


@pytest.fixture
def events() -> FlowEvents:
    choices = SimpleNamespace(model=model_files.load())
    director = SimpleNamespace(networks=(WLAN, LTE), decider=SimpleNamespace(choices=choices))
    nobody = cast(Any, None)
    return FlowEvents(
        *(nobody, nobody, nobody, nobody, nobody, nobody, cast(Any, director)),
        *(nobody, nobody, nobody, None, Reliability(), None),
    )


def test_of_a_crowd_of_small_transfers_some_are_judged_and_the_large_ones_always(
    events: FlowEvents,
) -> None:
    judged = [events._judged(RECORD, SMALL, KNOWN).prediction for _ in range(200)]
    found = sum(each is not None for each in judged)
    assert 2 * JUDGED_PER_S <= found <= 4 * JUDGED_PER_S
    assert judged[0] is not None, "a few are never too many"
    assert all(events._judged(RECORD, LARGE, KNOWN).prediction for _ in range(5))


@pytest.mark.anyio
async def test_nobody_remembers_a_connection_of_two_subflows_that_has_ended() -> None:
    """Of the second one the profiler kept what it had begun to: 2 kB each, 7 MB after an hour."""

    def nothing(*_: Any, **__: Any) -> Any:
        return None

    names = (
        "on_transfer_begun",
        "on_open",
        "on_close",
        "on_connection",
        "finished",
        "on_transfer",
        "read_before",
        "steerable",
    )
    anybody = cast(
        Any, SimpleNamespace(**dict.fromkeys((*names, "recent_context", "context"), nothing))
    )
    anybody.moves, anybody.networks = anybody, (WLAN, LTE)
    flows, profiler = LivingFlows(), Profiler()
    flows.networks_changed([WLAN, LTE])
    events = FlowEvents(
        *(anybody, anybody, flows, profiler, anybody, anybody, anybody),
        *(anybody, anybody, anybody, None, Reliability(), None),
    )
    second = replace(KEY, local=ip_address("10.1.0.2"))
    for key in (KEY, second):
        await events._opened(FlowOpened(key, 1.0, 100.0))
        flows.joined(77, key, 1.0)
    assert len(profiler) == 2
    for key in (second, KEY):
        events._closed(FlowClosed(key, 102.0, 5_000, 500, at_s=2.0))
    assert (len(flows), len(profiler)) == (0, 0)


@pytest.mark.anyio
async def test_a_check_of_our_own_says_nothing_of_how_well_transfers_are_expected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One to a dead network, expected to take ten seconds, outweighed 200 of programs in a sum."""

    def nothing(*_: Any, **__: Any) -> Any:
        return None

    names = (
        "on_transfer_begun",
        "on_open",
        "on_close",
        "on_connection",
        "finished",
        "on_transfer",
        "read_before",
        "transferred",
    )
    anybody = cast(Any, SimpleNamespace(**dict.fromkeys((*names, "context"), nothing)))
    anybody.recent_context = lambda: KNOWN
    anybody.networks = (WLAN, LTE)
    anybody.decider = SimpleNamespace(choices=SimpleNamespace(model=model_files.load()))
    flows, reliability = LivingFlows(), Reliability()
    flows.networks_changed([WLAN, LTE])
    events = FlowEvents(
        *(anybody, anybody, flows, Profiler(), anybody, anybody, anybody),
        *(anybody, anybody, anybody, None, reliability, None),
    )
    own = replace(KEY, local_port=4002)
    monkeypatch.setattr(flow_events, "is_own", lambda key: key == own)
    monkeypatch.setattr(flow_events, "finished_transfer", lambda *_: SMALL)
    for key, judged in ((own, 0), (KEY, 1)):
        await events._opened(FlowOpened(key, 1.0, 100.0))
        events._closed(FlowClosed(key, 100.5, 5_000, 500, at_s=1.5))
        found = reliability.of("wlan0")
        assert (found.n if found else 0) == judged
