"""Explanations of a flow of this host, or of a connection through a gateway, that a person names."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from cedos.api.messages import CarriedReport, NowMessage
from cedos.commands import explain
from cedos.controller.events import FlowOpened
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.decision_log import DecisionLog, Explanations
from cedos.daemon.told_connections import ToldConnections
from cedos.errors import NotFoundError
from cedos.model import (
    CarriedConnection,
    Context,
    FlowKey,
    FlowSample,
    Indicator,
    Network,
    NetworkKind,
    Strategy,
    StrategyKind,
)
from cedos.storage.history import History

KEY = FlowKey(ip_address("192.0.2.1"), 1111, ip_address("198.51.100.1"), 443)
NETWORKS = tuple(
    Network(name, name, number, NetworkKind.WIFI, metered=False)
    for number, name in enumerate(("wlan0", "lte0"), 1)
)
MADE = 1.7e9
"""When `make_decision` makes its decisions."""


class Daemon:
    def __init__(self, path, make_decision):
        self.history = History(path)
        self.make_decision = make_decision
        self.context = Context(100.0, {})
        self.begins()

    def begins(self):
        self.log = DecisionLog(self.history)
        self.flows = LivingFlows()
        self.carried = ToldConnections(list, self.log.recent, self.history)

    def decides(self, number, key=None, name=None):
        decision = self.make_decision(number)
        transfer = replace(decision.transfer, flow=key, server_name=name)
        decision = replace(decision, transfer=transfer)
        self.log.record(decision)
        return decision

    def silences(self, network, silence_s):
        known = {network: {"silence_s": Indicator(silence_s, 100.0)}}
        self.context = Context(100.0, known)

    def hears(self, decision, *, after_s=5.0, ended=False, by=None):
        news = CarriedConnection(
            number=1, server="github.com", port=443, age_s=1.0, decision=decision,
            bytes_down=sum(by.values()) if by else 9, bytes_by_network=by or {},
            ended_unix_s=1.0 if ended else None,
        )  # fmt: skip
        report = CarriedReport(program="0" * 32, gateway="gw.example", connections=(news,))
        self.carried.on_report(report, 1000, 0.0, MADE + after_s)

    async def explains(self, flow):
        known = Explanations(self.log, self.flows, self.carried)
        return await known.of(flow, MADE + 10.0, self.context, NETWORKS)

    async def explanation(self, flow):
        decision = await self.explains(flow)
        return decision.number, decision.gateway


@pytest.fixture
def daemon(tmp_path, make_decision):
    return Daemon(tmp_path / "history.sqlite", make_decision)


async def test_a_connection_through_a_gateway_leads_to_its_decision(daemon):
    daemon.decides(1)
    daemon.decides(2)
    daemon.hears(1)
    for name in ("github.com", "github.com:443"):
        assert await daemon.explanation(name) == (1, "gw.example")
    assert (await daemon.explains(None)).number == 2
    assert await daemon.explanation("1") == (1, None), (
        "by its number: it is about no one connection"
    )
    daemon.hears(2)
    assert await daemon.explanation("github.com") == (2, "gw.example"), "the newest word"


async def test_one_that_is_over_is_explained_still_and_by_the_next_daemon(daemon):
    daemon.decides(1)
    daemon.hears(1, ended=True)
    assert await daemon.explanation("github.com") == (1, "gw.example")
    daemon.history.flush()
    daemon.begins()
    assert await daemon.explanation("github.com") == (1, "gw.example")
    daemon.history.close()


async def test_a_flow_of_this_host_that_lives_comes_first(daemon):
    daemon.decides(1)
    daemon.hears(1)
    flow = daemon.flows.on_open(FlowOpened(KEY, 1.0, 1.0))
    flow.server_name = "github.com"
    with pytest.raises(
        NotFoundError, match=r"nothing was decided about github\.com: it began before"
    ):
        await daemon.explains("github.com")
    flow.on_decision(daemon.decides(2, KEY))
    assert await daemon.explanation("github.com") == (2, None)


@pytest.mark.parametrize(("after_s", "expected"), [(-5.0, (2, None)), (5.0, (1, "gw.example"))])
async def test_of_what_is_over_the_newest_is_explained(daemon, after_s, expected):
    daemon.decides(1)
    daemon.decides(2, KEY, "github.com")
    daemon.hears(1, after_s=after_s, ended=True)
    assert await daemon.explanation("github.com") == expected


async def test_a_connection_without_a_decision_says_where_it_goes(daemon):
    daemon.hears(None)
    with pytest.raises(
        NotFoundError, match=r"github\.com is reached through gw\.example; nothing was decided"
    ):
        await daemon.explains("github.com")
    daemon.hears(77)
    with pytest.raises(
        NotFoundError, match=r"through gw\.example; decision 77 about such data is forg"
    ):
        await daemon.explains("github.com")


async def test_what_nobody_knows_of_is_refused(daemon):
    daemon.hears(1)
    with pytest.raises(NotFoundError, match=r"no decision about hub\.com is known"):
        await daemon.explains("hub.com")
    with pytest.raises(NotFoundError, match=r"^nothing was decided yet$"):
        await daemon.explains(None)


def heard(daemon, *paths):
    """A living flow with these paths: each by its network, and when its peer was last heard."""
    flow = daemon.flows.on_open(FlowOpened(KEY, 1.0, 1.0))
    flow.paths.clear()
    for key, network, idle_s in paths:
        flow.add_path(key, network)
        flow.paths[key].on_sample(
            FlowSample(key, 100.0, 1, None, 0.02, 0.02, None, 9, 9, 0, idle_s, 0, idle_ack_s=idle_s)
        )
    return flow


async def test_a_flow_that_moved_says_where_it_is_and_how_it_began(daemon):
    other = replace(KEY, local_port=2222)
    flow = heard(daemon, (KEY, "wlan0", 14.0), (other, "lte0", 0.1))
    flow.note_mptcp(7)
    flow.on_decision(daemon.decides(1))
    moved = replace(daemon.make_decision(2), choice=Strategy(StrategyKind.SINGLE, ("lte0",)))
    daemon.log.record(moved)
    flow.on_decision(moved)
    found = await daemon.explains("198.51.100.1:443")
    assert found.number == 2
    assert found.now == NowMessage(networks=["lte0"])
    assert found.began.number == 1


async def test_a_flow_that_the_kernel_moved_says_what_is_wrong_with_the_chosen_network(daemon):
    flow = heard(daemon, (KEY, "wlan0", 14.0), (replace(KEY, local_port=2222), "lte0", 0.1))
    flow.note_mptcp(7)
    flow.on_decision(daemon.decides(1))
    daemon.silences("wlan0", 14.0)
    found = await daemon.explains("198.51.100.1:443")
    assert found.now == NowMessage(networks=["lte0"], why="wlan0 has not replied for 14 s")
    assert found.began is None, "there was one decision"
    shown = " ".join(" ".join(explain.lines(found, MADE, "198.51.100.1:443")).split())
    assert shown.startswith(
        "Now: it goes over lte0, though wlan0 was chosen. wlan0 has not replied for 14 s. Decision 1,"
    )


async def test_a_plain_connection_on_a_silent_network_waits(daemon):
    heard(daemon, (KEY, "wlan0", 14.0)).on_decision(daemon.decides(1))
    daemon.silences("wlan0", 14.0)
    found = await daemon.explains("198.51.100.1:443")
    assert found.now == NowMessage(
        networks=[],
        why="wlan0 has not replied for 14 s. A connection that is not MPTCP stays on the network where"
        " it began",
    )
    assert next(explain.lines(found, MADE)).startswith("Now: no data came lately. wlan0 has not")


async def test_a_connection_through_a_gateway_says_where_its_last_bytes_went(daemon):
    daemon.decides(1)
    daemon.decides(2)
    daemon.hears(1, by={"wlan0": 100})
    assert (await daemon.explains("github.com")).now == NowMessage(networks=["wlan0"])
    daemon.hears(1, by={"wlan0": 100, "lte0": 50})
    daemon.silences("wlan0", 14.0)
    found = await daemon.explains("github.com")
    assert found.now == NowMessage(networks=["lte0"], why="wlan0 has not replied for 14 s")
    daemon.hears(2, by={"wlan0": 100, "lte0": 90})
    found = await daemon.explains("github.com")
    assert (found.number, found.began and found.began.number) == (2, 1)
    daemon.hears(2, by={"wlan0": 100, "lte0": 90}, ended=True)
    assert (await daemon.explains("github.com")).now is None, "it is over"
