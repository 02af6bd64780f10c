"""The living flows that `cedos status` and programs are told of."""

import socket
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace

import pytest
from kit.controller import LTE, WLAN, Script, ScriptedDriver

from cedos.api.messages import CarriedReport, flow_text
from cedos.api.programs import ChoiceRequest
from cedos.controller import events as on
from cedos.controller.hint import PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.daemon import api_backend
from cedos.daemon.api_backend import ApiBackend
from cedos.daemon.told_connections import ToldConnections
from cedos.errors import ConfigError, NotFoundError
from cedos.host.monitor import flow_source
from cedos.host.monitor.flow_source import OpenSockets
from cedos.model import (
    CarriedConnection,
    Direction,
    FlowKey,
    FlowRecord,
    Network,
    NetworkKind,
    Prediction,
)
from cedos.storage.history import History
from cedos.storage.usage import Usage

RESOLVER = (ip_address("127.0.0.1"), 53)


def backend_of(script, open_sockets, **known):
    """A backend over the controller of a script."""

    async def sockets():
        return open_sockets

    async def settle(): ...

    others = (
        "log observer budgets programs deadlines problems recorder"
        " odometers history history_file config_file"
    )
    parts = dict.fromkeys(others.split()) | known
    carried = ToldConnections(list, lambda _number: None, None)
    return ApiBackend(
        driver=ScriptedDriver(script),
        dry_run=False,
        open_sockets=sockets,
        settle=settle,
        carried=carried,
        rule_problems=list,
        neighbours=lambda: {"169.254.1.5": "bob"},
        **parts,
    )


class NoDecisions:
    """A decision log in which nothing is found."""

    async def find(self, *_):
        return None


def opened(script, key):
    script.tell(on.FlowOpened(key, script.now_s, 1.0))
    return script.flow(key)


@pytest.fixture
def script():
    return Script(rescue=False)


async def test_networks_come_with_how_well_they_were_predicted():
    expected = {"wifi": (0.5, 1.0, 2.0, 1.2)}
    one = Prediction("wifi", "wlan0", Direction.DOWN, 3000, 1.0, 0.0, expected)
    script = Script(records=[FlowRecord((), None, 1.0, 2.0, prediction=one)])
    backend = backend_of(script, OpenSockets(None, None))
    found = {each.name: each.predicted for each in await backend.networks()}
    assert found == {"wlan0": script.controller.reliability.of("wlan0"), "lte0": None}
    assert found["wlan0"] is not None


async def test_helpers_have_their_neighbours_names(script):
    helper = Network(
        "helper-1", "wlan0", 2, NetworkKind.HELPER, True, (ip_interface("169.254.1.5/32"),),
        leads_to=ip_address("198.51.100.9"),
    )  # fmt: skip
    other = replace(helper, name="helper-2", addresses=(ip_interface("169.254.1.6/32"),))
    script.tell(on.NetworksChanged((WLAN,), helpers=(helper, other)))
    told = SimpleNamespace(on_request=lambda _report, known, _uid: [each.name for each in known])
    backend = backend_of(script, OpenSockets(None, None), programs=told)
    assert await backend.prefetching(PrefetchReport(program="reader", pid=7), 1000) == ["wlan0"]
    assert [(each.name, each.interface, each.neighbour) for each in await backend.networks()] == [
        ("wlan0", "wlan0", ""),
        ("helper-1", "wlan0", "bob"),
        ("helper-2", "wlan0", ""),
    ]


async def test_programs_name_networks_by_name_or_interface(script):
    script.networks(replace(WLAN, name="home"), LTE)
    backend = backend_of(script, OpenSockets(None, None))
    for name in ("home", "wlan0"):
        request = ChoiceRequest(size_bytes=4000, redundant=True, sent_over=name, waited_s=0.25)
        assert "No answer over home for 0.25 s so far" in (await backend.choose(request)).reason
    with pytest.raises(ConfigError, match=r"no network eth7. The networks are: home, lte0"):
        await backend.choose(ChoiceRequest(size_bytes=4000, sent_over="eth7"))


async def test_a_rule_that_is_added_is_told_with_where_it_leads(script):
    backend = backend_of(script, OpenSockets(None, None))
    rule = RuleRequest(host="192.0.2.1", never=("metered",))
    told = await backend.add_rule(rule)
    assert (told.number, told.network, told.refused) == (1, "wlan0", {})
    assert told.why == "Your rule 1: never metered. wlan0 is the only network that it allows"
    assert await backend.rules() == [told]
    script.networks(LTE)
    (refused,) = await backend.rules()
    assert refused.network is None
    assert "connections are refused" in refused.why
    await backend.remove_rule(1)
    assert await backend.rules() == []
    with pytest.raises(NotFoundError, match="there is no rule 1"):
        await backend.remove_rule(1)


async def test_what_a_vpn_carries_instead_of_a_rule_is_said(script):
    backend = backend_of(script, OpenSockets(None, None))
    await backend.add_rule(RuleRequest(host="192.0.2.1", never=("metered",)))
    await backend.add_rule(RuleRequest(host="2001:db8:7::/48", never=("lte0",)))
    script.tell(on.HostDefaultsChanged({4: on.HostDefault("wg0", vpn=True, what="wireguard")}))
    four, six = await backend.rules()
    assert (four.vpn, six.vpn) == ({"4": "wg0"}, {})
    refuses = on.HostDefault("", vpn=False, what="a default route of the host")
    bridge = on.HostDefault("br0", vpn=False, what="bridge")
    script.tell(on.HostDefaultsChanged({4: bridge, 6: refuses}))
    four, six = await backend.rules()
    assert (four.host_defaults, six.host_defaults, six.vpn) == ({}, {"6": ""}, {})
    others = on.HostDefault("wlan0", vpn=False, what="by another program's rule 5000", first=True)
    script.tell(on.HostDefaultsChanged({4: others}))
    four, six = await backend.rules()
    assert (four.host_defaults, six.host_defaults) == ({"4": "wlan0"}, {})


async def test_flows_without_a_socket_are_over():
    script = Script(rescue=False)
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    living, dead = (FlowKey(here, port, there, 443) for port in (1111, 2222))
    asked, served = (FlowKey(here, port, there, 53, "udp") for port in (3333, 4444))
    for key in (living, dead, asked, served):
        opened(script, key)

    async def listed(sockets):
        return [each.flow for each in await backend_of(script, sockets).flows()]

    sockets = OpenSockets(frozenset({living}), frozenset({served.local_port}))
    assert await listed(sockets) == [flow_text(living), flow_text(served)]
    assert len(await listed(OpenSockets(None, None))) == 4, "where the kernel does not tell"


async def test_the_daemons_own_look_ups_are_left_out():
    script = Script(rescue=False)
    backend = backend_of(script, OpenSockets(None, None))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        flow_source.connect(asker, *RESOLVER)
        host, port = asker.getsockname()
    own = FlowKey(ip_address(host), port, RESOLVER[0], RESOLVER[1], "udp")
    # Somebody else's question to the same resolver.
    other = FlowKey(ip_address(host), port ^ 1, RESOLVER[0], RESOLVER[1], "udp")
    for key in (own, other):
        opened(script, key)
    assert len(script.controller.flows) == 2
    assert [each.flow for each in await backend.flows()] == [flow_text(other)]


async def test_the_status_shows_the_largest_flows_and_counts_the_rest(monkeypatch):
    monkeypatch.setattr(api_backend, "SHOWN_FLOWS", 3)
    script = Script(rescue=False)
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    for port in range(2000, 2010):
        flow = opened(script, FlowKey(here, port, there, 443))
        for path in flow.paths.values():
            path.on_close(on.FlowClosed(path.key, 2.0, bytes_down=port, bytes_up=0))
    backend = backend_of(script, OpenSockets(None, None))
    shown, others = await backend._largest_flows(api_backend.SHOWN_FLOWS)
    assert [each.bytes_down for each in shown] == [2007, 2008, 2009]
    assert others == 7
    assert len(await backend.flows()) == 10


async def test_what_open_connections_have_carried_is_used_as_well(tmp_path):
    script = Script(rescue=False)
    here, there = ip_address("192.0.2.1"), ip_address("198.51.100.1")
    for port, named in ((1111, "big.example"), (2222, "big.example"), (3333, None)):
        flow = opened(script, FlowKey(here, port, there, 443))
        flow.server_name = named
        for path in flow.paths.values():
            path.network = "wlan0"
            path.on_close(on.FlowClosed(path.key, 2.0, bytes_down=port, bytes_up=1))
    backend = backend_of(script, OpenSockets(None, None))
    backend.odometers = Usage(tmp_path / Usage.FILE, "boot")
    backend.history_file = tmp_path / "none.sqlite"
    used = await backend.usage(0.0)
    assert used.with_open
    assert {each.server: each.bytes_by_network for each in used.servers} == {
        "big.example": {"wlan0": 3335},
        "198.51.100.1": {"wlan0": 3334},
    }
    nothing_open = backend_of(script, OpenSockets(frozenset(), frozenset()))
    nothing_open.odometers, nothing_open.history_file = backend.odometers, backend.history_file
    assert (await nothing_open.usage(0.0)).servers == ()
    backend.odometers.close()


async def test_connections_through_a_gateway_are_used_apart_from_it(tmp_path):
    script = Script(rescue=False)
    session = FlowKey(ip_address("192.0.2.1"), 1111, ip_address("198.51.100.7"), 7010)
    flow = opened(script, session)
    flow.paths[session].network = "wlan0"
    flow.paths[session].on_close(on.FlowClosed(session, 2.0, bytes_down=1000, bytes_up=0))
    backend = backend_of(script, OpenSockets(None, None))
    backend.odometers = Usage(tmp_path / Usage.FILE, "boot")
    backend.history_file = tmp_path / "none.sqlite"
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
    backend.odometers.close()


async def test_a_connection_that_has_just_ended_is_used(tmp_path):
    """It has left the living, and is not on the disk by itself for a second."""
    history = History(tmp_path / "history.sqlite")
    backend = backend_of(Script(rescue=False), OpenSockets(None, None))
    backend.history, backend.history_file = history, tmp_path / "history.sqlite"
    backend.odometers = Usage(tmp_path / Usage.FILE, "boot")
    backend.carried = ToldConnections(list, lambda _number: None, history)
    news = CarriedConnection(
        number=1, server="a.example", port=443, age_s=9.0, bytes_down=70,
        bytes_by_network={"lte0": 70}, ended_unix_s=1.0,
    )  # fmt: skip
    report = CarriedReport(program="0" * 32, gateway="gw.example", connections=(news,))
    await backend.report_carried(report, 1000)
    (used,) = (await backend.usage(0.0)).servers
    assert (used.server, used.bytes_by_network) == ("a.example", {"lte0": 70})
    backend.odometers.close()
    history.close()


async def test_who_asks_for_what_never_was_is_told_how_to_ask():
    backend = backend_of(Script(rescue=False), OpenSockets(None, None), log=NoDecisions())
    with pytest.raises(NotFoundError, match="`cedos explain` alone shows the latest"):
        await backend.explain("nothing.example")
    with pytest.raises(NotFoundError, match=r"^nothing was decided yet$"):
        await backend.explain(None)


async def test_a_living_flow_without_a_decision_is_told_apart():
    script = Script(rescue=False)
    opened(script, FlowKey(ip_address("192.0.2.1"), 1111, ip_address("198.51.100.1"), 443))
    backend = backend_of(script, OpenSockets(None, None), log=NoDecisions())
    with pytest.raises(NotFoundError, match=r"^nothing was decided about 1111: it began before"):
        await backend.explain("1111")
