"""Which living flows `cedos status` and programs are told of."""

import socket
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.api.messages import CarriedReport, flow_text
from cedos.controller.events import FlowClosed, FlowOpened
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.flows.reliability import Reliability
from cedos.daemon import api_backend
from cedos.daemon.api_backend import ApiBackend
from cedos.daemon.flows.told_connections import ToldConnections
from cedos.errors import NotFoundError
from cedos.model import (
    CarriedConnection,
    Context,
    Direction,
    FlowKey,
    FlowRecord,
    Network,
    NetworkKind,
    Prediction,
)
from cedos.monitor.flows import own_flows
from cedos.monitor.flows.flow_source import OpenSockets
from cedos.storage.history import History
from cedos.storage.usage import Usage

pytestmark = pytest.mark.anyio

RESOLVER = (ip_address("127.0.0.1"), 53)


def backend_of(flows: LivingFlows, open_sockets: OpenSockets, **known: Any) -> ApiBackend:
    async def sockets() -> OpenSockets:
        return open_sockets

    others = (
        "reliability hints log budgets hard_budgets prefetching transfers"
        " probing problems closed host_defaults rules_changed config_file usage history history_file"
    )
    parts: Any = dict.fromkeys(others.split())
    parts["observer"] = SimpleNamespace(context=lambda: Context(1.0, {}))
    parts["director"] = SimpleNamespace(
        networks=(), ruled=SimpleNamespace(about=lambda _host: None)
    )
    parts |= known
    carried = ToldConnections(list, lambda _number: None, None)
    return ApiBackend(flows=flows, dry_run=False, open_sockets=sockets, carried=carried, **parts)


async def test_networks_come_with_how_well_they_were_predicted() -> None:
    wlan, lte = (
        Network(name, name, index, kind, metered=False)
        for name, index, kind in (("wlan0", 2, NetworkKind.WIFI), ("lte0", 3, NetworkKind.CELLULAR))
    )
    expected = {"wifi": (0.5, 1.0, 2.0, 1.2)}
    one = Prediction("wifi", "wlan0", Direction.DOWN, 3000, 1.0, 0.0, expected)
    reliability = Reliability([FlowRecord((), None, 1.0, 2.0, prediction=one)])
    backend = backend_of(
        LivingFlows(),
        OpenSockets(None, None),
        reliability=reliability,
        observer=SimpleNamespace(context=lambda: Context(1.0, {})),
        director=SimpleNamespace(networks=(wlan, lte), decider=SimpleNamespace(barred={})),
    )
    found = {each.name: each.predicted for each in await backend.networks()}
    assert found == {"wlan0": reliability.of("wlan0"), "lte0": None}
    assert found["wlan0"] is not None


async def test_flows_without_a_socket_are_over() -> None:
    flows = LivingFlows()
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    living, dead = (FlowKey(here, port, there, 443) for port in (1111, 2222))
    asked, served = (FlowKey(here, port, there, 53, "udp") for port in (3333, 4444))
    for key in (living, dead, asked, served):
        flows.on_open(FlowOpened(key, 1.0, 1.0))

    async def listed(sockets: OpenSockets) -> list[str]:
        return [each.flow for each in await backend_of(flows, sockets).flows()]

    sockets = OpenSockets(frozenset({living}), frozenset({served.local_port}))
    assert await listed(sockets) == [flow_text(living), flow_text(served)]
    assert len(await listed(OpenSockets(None, None))) == 4, "where the kernel does not tell"


async def test_the_daemons_own_look_ups_are_left_out() -> None:
    flows = LivingFlows()
    backend = backend_of(flows, OpenSockets(None, None))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        own_flows.connect(asker, *RESOLVER)
        host, port = asker.getsockname()
    own = FlowKey(ip_address(host), port, RESOLVER[0], RESOLVER[1], "udp")
    # Somebody else's question to the same resolver.
    other = FlowKey(ip_address(host), port ^ 1, RESOLVER[0], RESOLVER[1], "udp")
    for key in (own, other):
        flows.on_open(FlowOpened(key, 1.0, 1.0))
    assert len(flows) == 2
    assert [each.flow for each in await backend.flows()] == [flow_text(other)]


async def test_the_status_shows_the_largest_flows_and_counts_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_backend, "SHOWN_FLOWS", 3)
    flows = LivingFlows()
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    for port in range(2000, 2010):
        flow = flows.on_open(FlowOpened(FlowKey(here, port, there, 443), 1.0, 1.0))
        assert flow is not None
        for path in flow.paths.values():
            path.on_close(FlowClosed(path.key, 2.0, bytes_down=port, bytes_up=0))
    backend = backend_of(flows, OpenSockets(None, None))
    shown, others = await backend._largest(api_backend.SHOWN_FLOWS)
    assert [each.bytes_down for each in shown] == [2007, 2008, 2009]
    assert others == 7
    assert len(await backend.flows()) == 10


async def test_what_open_connections_have_carried_is_used_as_well(tmp_path: Path) -> None:
    flows = LivingFlows()
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    for port, named in ((1111, "big.example"), (2222, "big.example"), (3333, None)):
        flow = flows.on_open(FlowOpened(FlowKey(here, port, there, 443), 1.0, 1.0))
        assert flow is not None
        flow.server_name = named
        for path in flow.paths.values():
            path.network = "wlan0"
            path.on_close(FlowClosed(path.key, 2.0, bytes_down=port, bytes_up=1))
    backend = backend_of(flows, OpenSockets(None, None))
    backend._usage = Usage(tmp_path / Usage.FILE, "boot")
    backend._history_file = tmp_path / "none.sqlite"
    used = await backend.usage(0.0)
    assert used.with_open
    assert {each.server: each.bytes_by_network for each in used.servers} == {
        "big.example": {"wlan0": 3335},
        "198.51.100.1": {"wlan0": 3334},
    }
    nothing_open = backend_of(flows, OpenSockets(frozenset(), frozenset()))
    nothing_open._usage, nothing_open._history_file = backend._usage, backend._history_file
    assert (await nothing_open.usage(0.0)).servers == ()
    backend._usage.close()


async def test_connections_through_a_gateway_are_used_apart_from_it(tmp_path: Path) -> None:
    flows = LivingFlows()
    session = FlowKey(ip_address("192.0.2.1"), 1111, ip_address("198.51.100.7"), 7010)
    flow = flows.on_open(FlowOpened(session, 1.0, 1.0))
    assert flow is not None
    flow.paths[session].network = "wlan0"
    flow.paths[session].on_close(FlowClosed(session, 2.0, bytes_down=1000, bytes_up=0))
    backend = backend_of(flows, OpenSockets(None, None))
    backend._usage = Usage(tmp_path / Usage.FILE, "boot")
    backend._history_file = tmp_path / "none.sqlite"
    news = CarriedConnection(
        number=1,
        server="github.com",
        port=443,
        age_s=0.0,
        bytes_down=600,
        bytes_by_network={"wlan0": 600},
    )
    quiet = CarriedConnection(number=2, server="quiet.example", port=443, age_s=0.0)
    report = CarriedReport(
        program="0" * 32,
        gateway="gw.example",
        addresses=("198.51.100.7",),
        connections=(news, quiet),
    )
    await backend.report_carried(report, 1000)
    used = (await backend.usage(0.0)).servers
    assert [(each.server, each.gateway, each.bytes_by_network) for each in used] == [
        ("github.com", "gw.example", {"wlan0": 600}),
        ("gw.example", None, {"wlan0": 400}),
    ]
    backend._usage.close()


async def test_a_connection_that_has_just_ended_is_used(tmp_path: Path) -> None:
    """It has left the living, and is not on the disk by itself for a second."""
    history = History(tmp_path / "history.sqlite")
    backend = backend_of(LivingFlows(), OpenSockets(None, None))
    backend._history, backend._history_file = history, tmp_path / "history.sqlite"
    backend._usage = Usage(tmp_path / Usage.FILE, "boot")
    backend._carried = ToldConnections(list, lambda _number: None, history)
    news = CarriedConnection(
        number=1, server="a.example", port=443, age_s=9.0, bytes_down=70,
        bytes_by_network={"lte0": 70}, ended_unix_s=1.0,
    )  # fmt: skip
    report = CarriedReport(program="0" * 32, gateway="gw.example", connections=(news,))
    await backend.report_carried(report, 1000)
    (used,) = (await backend.usage(0.0)).servers
    assert (used.server, used.bytes_by_network) == ("a.example", {"lte0": 70})
    backend._usage.close()
    history.close()


async def test_who_asks_for_what_never_was_is_told_how_to_ask() -> None:
    class Nothing:
        async def find(self, *_: object) -> None:
            return None

    backend = backend_of(LivingFlows(), OpenSockets(None, None))
    backend._log = Nothing()  # type: ignore[assignment]
    with pytest.raises(NotFoundError, match="`cedos explain` alone shows the latest"):
        await backend.explain("nothing.example")
    with pytest.raises(NotFoundError, match=r"^nothing was decided yet$"):
        await backend.explain(None)


async def test_a_living_flow_without_a_decision_is_told_apart() -> None:
    class Nothing:
        async def find(self, *_: object) -> None:
            return None

    flows = LivingFlows()
    flows.on_open(
        FlowOpened(
            FlowKey(ip_address("192.0.2.1"), 1111, ip_address("198.51.100.1"), 443), 1.0, 1.0
        )
    )
    backend = backend_of(flows, OpenSockets(None, None))
    backend._log = Nothing()  # type: ignore[assignment]
    with pytest.raises(NotFoundError, match=r"^nothing was decided about 1111: it began before"):
        await backend.explain("1111")
