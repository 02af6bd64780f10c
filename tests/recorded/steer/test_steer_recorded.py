"""The netlink messages of steering, compared with those of a real kernel (record.py)."""

import importlib.util
from ipaddress import ip_address
from pathlib import Path

import pytest
from pyroute2.netlink.rtnl import RTM_NEWROUTE, RTM_NEWRULE
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cedos.host.steer.default_route import examine
from cedos.host.steer.kernel import routing_requests
from cedos.host.steer.kernel.linux import changes_routing
from cedos.kernel import generic_netlink, mptcp, netlink, policy_routing, sock_diag
from cedos.kernel.mptcp import (
    CreateSubflow,
    DestroySubflow,
    MptcpEventKind,
    SetBackup,
    command_request,
    mptcp_events,
)
from cedos.kernel.netlink import NLMSG_DONE, NLMSG_ERROR
from cedos.kernel.policy_routing import PROTOCOL, Route
from cedos.kernel.rtnetlink import parse_link
from cedos.model import Network, NetworkKind

HERE = Path(__file__).parent
HEADER_BYTES = 16


PARSERS = {
    "family": generic_netlink.parse_family, "links": parse_link,
    "lookup": policy_routing.parse_route, "refusal": netlink.refusal,
    "routes": policy_routing.parse_route, "rules": routing_requests.parse_rule,
    "sockets4": sock_diag.parse_tcp_socket, "sockets6": sock_diag.parse_tcp_socket,
}  # fmt: skip


def datagrams(name):
    for line in (HERE / f"{name}.hex").read_text().split():
        yield bytes.fromhex(line)


def recorded(name):
    found = [message for data in datagrams(name) for message in netlink.messages(data)]
    ending = (NLMSG_ERROR, NLMSG_DONE)
    return [message for message in found if name == "refusal" or message.type not in ending]


def parsed(name):
    return [one for m in recorded(name) if (one := PARSERS[name](m)) is not None]


def seen_rules():
    return parsed("rules")


def seen_routes():
    return parsed("routes")


def seen_links():
    return parsed("links")


@pytest.fixture(scope="module")
def record():
    """record.py itself: what it sent is written there."""
    spec = importlib.util.spec_from_file_location("record", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def events():
    return [event for data in datagrams("events") for event in mptcp_events(data)]


def test_a_connections_life_in_events(events):
    assert [event.kind for event in events[:8]] == [
        MptcpEventKind.CREATED,
        MptcpEventKind.ESTABLISHED,
        MptcpEventKind.SUBFLOW_UP,
        MptcpEventKind.SUBFLOW_DOWN,
    ] * 2
    assert events[8].kind is MptcpEventKind.CLOSED
    assert events[8].token == events[0].token != events[4].token
    assert not any(event.server_side for event in events)
    assert all(event.joinable for event in events)


@pytest.mark.parametrize("version", [4, 6])
def test_events_and_commands_carry_both_ip_versions(events, record, version):
    of = events[:4] if version == 4 else events[4:8]
    established, up = of[1], of[2]
    assert established.key.local == ip_address(record.LOCAL[version])
    assert established.key.remote == ip_address(record.REMOTE[version])
    assert established.key.remote_port == record.PORT[version]
    assert up.key.local == ip_address(record.SPARE[version])
    token, remote = established.token, ip_address(record.REMOTE[version])
    local, port = ip_address(record.SPARE[version]), record.PORT[version]
    expected = [
        CreateSubflow(token, local, 3, 3, remote, port, True),
        SetBackup(token, up.key, False),
        SetBackup(token, established.key, True),
        DestroySubflow(token, up.key),
    ]
    commands_sent = (
        list(datagrams("commands"))[:4] if version == 4 else list(datagrams("commands"))[4:]
    )
    now = [command_request(command) for command in expected]
    assert [data[HEADER_BYTES:] for data in commands_sent] == now


def test_the_family_and_its_event_group():
    (family,) = parsed("family")
    (sent, *_) = (netlink.messages(data) for data in datagrams("commands"))
    assert family.number == next(sent).type
    assert family.groups[mptcp.EVENT_GROUP]


def test_rules_come_back_as_they_were_sent(record):
    seen = seen_rules()
    assert {one.rule for one in seen if one.ours} == set(record.RULES)
    foreign = {(o.version, o.preference): o for o in seen if not o.ours}
    assert foreign[4, 32500].general  # for all but marked packets, as wg-quick's
    assert not foreign[4, 32501].general
    assert foreign[4, 32766].table == 254


def test_routes_come_back_as_they_were_sent(record):
    seen = seen_routes()
    ours = {
        Route(r.table, r.destination, r.index, r.gateway, r.metrics)
        for r in seen
        if r.protocol == PROTOCOL
    }
    assert ours == set(record.routes(2))
    (way,) = parsed("lookup")
    assert (way.destination.prefixlen, way.index) == (0, 2)


def test_what_is_sent_is_what_pyroute2_reads(record):
    """Another program's reading of our rules and routes."""
    data = list(datagrams("routing-commands"))
    for route, raw in zip(record.routes(2), data, strict=False):
        read = rtmsg(raw)
        read.decode()
        assert read["header"]["type"] == RTM_NEWROUTE
        assert read.get_attr("RTA_TABLE") == record.TABLE
        assert read["proto"] == PROTOCOL
        assert read["dst_len"] == route.destination.prefixlen
        assert read.get_attr("RTA_GATEWAY") == (str(route.gateway) if route.gateway else None)
    for rule, raw in zip(record.RULES, data[3:], strict=True):
        read = fibmsg(raw)
        read.decode()
        assert read["header"]["type"] == RTM_NEWRULE
        assert read.get_attr("FRA_PRIORITY") == rule.preference
        assert read.get_attr("FRA_TABLE") == rule.table
        assert read.get_attr("FRA_OIFNAME") == rule.interface
        assert read.get_attr("FRA_IIFNAME") == ("lo" if rule.local else None)
        assert read.get_attr("FRA_FWMARK") == rule.mark
        assert read.get_attr("FRA_SUPPRESS_PREFIXLEN") == rule.suppress_prefixlength
        assert read["action"] == (7 if rule.table is None else 1)


def test_what_is_packed_now_is_what_was_sent(record):
    payloads = [data[HEADER_BYTES:] for data in datagrams("routing-commands")]
    assert payloads[:3] == [routing_requests.route_request(route) for route in record.routes(2)]
    assert payloads[3:] == [routing_requests.rule_request(rule) for rule in record.RULES]


def test_links_and_their_kinds():
    assert {link.name: link.kind for link in seen_links()} == {
        "lo": "",
        "wlan0": "veth",
        "lte0": "veth",
        "vpn0": "tun",
    }


def test_nothing_is_tunnelled_on_the_recorded_host():
    networks = [
        Network(name, name, index, NetworkKind.ETHERNET, False)
        for index, name in ((2, "wlan0"), (3, "lte0"))
    ]
    found = examine(seen_rules(), seen_routes(), seen_links(), networks)
    assert not found.defaults
    assert "32501" in found.notes[0]


@pytest.mark.parametrize("version", [4, 6])
def test_sockets_tell_their_connection_and_their_flags(events, version):
    established, up = (events[1], events[2]) if version == 4 else (events[5], events[6])
    by_key = {each.key: each for each in parsed(f"sockets{version}")}
    first, spare = by_key[established.key], by_key[up.key]
    assert first.token == spare.token == established.token
    assert (first.backup, first.local_id) == (True, 0)
    assert (spare.backup, spare.local_id) == (False, 3)


def test_only_a_further_subflow_that_waits_for_its_first_answer_is_a_join(events):
    established, up = events[1], events[2]
    joins = {}
    for message in recorded("sockets4"):
        waiting = bytes((message.payload[0], sock_diag.SYN_SENT)) + message.payload[2:]
        socket = sock_diag.parse_connecting(message._replace(payload=waiting))
        joins[sock_diag.parse_tcp_socket(message).key] = socket.join
        assert sock_diag.parse_connecting(message) is None
    assert (joins[established.key], joins[up.key]) == (False, True)


def test_a_refusal_is_told_in_the_kernels_own_words():
    (error,) = parsed("refusal")
    assert (error.errno, error.strerror) == (22, "invalid token")


@pytest.mark.parametrize("name", ["rules", "routes", "links", "sockets4", "family"])
def test_a_truncated_datagram_ends_before_the_broken_message(name):
    for data in datagrams(name):
        whole = list(netlink.messages(data))
        last = max(1, len(data) // 50)
        for length in range(0, len(data), last):
            found = list(netlink.messages(data[:length]))
            assert found == whole[: len(found)]


def test_a_truncated_datagram_has_the_events_before_its_end(events):
    for data in datagrams("events"):
        whole = list(mptcp_events(data))
        for length in range(len(data)):
            assert (
                list(mptcp_events(data[:length])) == whole[: len(list(mptcp_events(data[:length])))]
            )


def test_of_the_routes_events_only_ours_and_default_ones_are_news():
    changes = [message for message in recorded("routes") if changes_routing(message)]
    assert {route.protocol for m in changes if (route := PARSERS["routes"](m))} >= {PROTOCOL}
    assert len(changes) < len(recorded("routes"))
