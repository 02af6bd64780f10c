"""What steering says and hears, against what a kernel acknowledged and said (record.py)."""

import importlib.util
import struct
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import ctrlmsg, nlmsg
from pyroute2.netlink.rtnl import RTM_NEWROUTE, RTM_NEWRULE
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from cedos.kernel import mptcp_netlink, tcp_sockets
from cedos.kernel.mptcp_netlink import CreatePath, DestroyPath, EventKind, SetBackup
from cedos.kernel.netlink_commands import Ending, Message, Parser
from cedos.steer.kernel import rtnetlink
from cedos.steer.kernel.mptcp_events import path_events
from cedos.steer.routing.rules import PROTOCOL, Route
from cedos.steer.routing.tunnels import examine

HERE = Path(__file__).parent
CLASSES = {
    "commands": mptcp_netlink.PathManagerMessage,
    "endpoints": mptcp_netlink.PathManagerMessage,
    "family": ctrlmsg,
    "links": ifinfmsg,
    "lookup": rtnetlink.RouteMessage,
    "refusal": nlmsg,
    "routes": rtnetlink.RouteMessage,
    "rules": fibmsg,
    "sockets4": tcp_sockets.SocketMessage,
    "sockets6": tcp_sockets.SocketMessage,
}
HEADER_BYTES = 16


def datagrams(name: str) -> Iterator[bytes]:
    for line in (HERE / f"{name}.hex").read_text().split():
        yield bytes.fromhex(line)


def recorded(name: str) -> list[Message]:
    parser = Parser(CLASSES[name])
    found = [message for data in datagrams(name) for message in parser.messages(data)]
    return [message for message in found if name == "refusal" or not isinstance(message, Ending)]


def payload(message: Message) -> bytes:
    """What would be sent, without the header that is filled in when it is."""
    message.encode()
    return bytes(message.data[HEADER_BYTES:])


@pytest.fixture(scope="module")
def record():
    """record.py itself: what it sent is written there."""
    spec = importlib.util.spec_from_file_location("record", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def events():
    return [event for data in datagrams("events") for event in path_events(data)]


def test_a_connections_life_in_events(events):
    assert [event.kind for event in events[:8]] == [
        EventKind.CREATED,
        EventKind.ESTABLISHED,
        EventKind.SUBFLOW_UP,
        EventKind.SUBFLOW_DOWN,
    ] * 2
    assert events[8].kind is EventKind.CLOSED
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
        CreatePath(token, local, 3, 3, remote, port, True),
        SetBackup(token, up.key, False),
        SetBackup(token, established.key, True),
        DestroyPath(token, up.key),
    ]
    said = list(datagrams("commands"))[:4] if version == 4 else list(datagrams("commands"))[4:]
    now = [payload(mptcp_netlink.command_message(command)) for command in expected]
    assert [data[HEADER_BYTES:] for data in said] == now


def test_the_family_and_its_event_group():
    family, group = mptcp_netlink.parse_family(recorded("family")[0])
    assert family == recorded("commands")[0]["header"]["type"]
    assert group


def test_endpoints_of_others():
    found = [e for m in recorded("endpoints") if (e := mptcp_netlink.parse_endpoint(m)) is not None]
    assert [str(e.address) for e in found] == ["192.168.2.1", "fd00:2::1"]


def test_rules_come_back_as_they_were_sent(record):
    seen = [rule for m in recorded("rules") if (rule := rtnetlink.parse_rule(m)) is not None]
    assert {one.rule for one in seen if one.ours} == set(record.RULES)
    foreign = {(o.version, o.preference): o for o in seen if not o.ours}
    assert foreign[4, 32500].general  # for all but marked packets, as wg-quick's
    assert not foreign[4, 32501].general
    assert foreign[4, 32766].table == 254


def test_routes_come_back_as_they_were_sent(record):
    seen = [route for m in recorded("routes") if (route := rtnetlink.parse_route(m)) is not None]
    ours = {
        Route(r.table, r.destination, r.index, r.gateway, r.metrics)
        for r in seen
        if r.protocol == PROTOCOL
    }
    assert ours == set(record.routes(2))
    (way,) = [route for m in recorded("lookup") if (route := rtnetlink.parse_route(m)) is not None]
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
    assert payloads[:3] == [payload(rtnetlink.route_message(route)) for route in record.routes(2)]
    assert payloads[3:] == [rtnetlink.rule_octets(rule) for rule in record.RULES]


def test_links_and_their_kinds():
    links = [link for m in recorded("links") if (link := rtnetlink.parse_link(m)) is not None]
    assert {link.name: link.kind for link in links} == {
        "lo": "",
        "wlan0": "veth",
        "lte0": "veth",
        "vpn0": "tun",
    }


def test_nothing_is_tunnelled_on_the_recorded_host():
    rules = [rule for m in recorded("rules") if (rule := rtnetlink.parse_rule(m)) is not None]
    routes = [route for m in recorded("routes") if (route := rtnetlink.parse_route(m)) is not None]
    links = [link for m in recorded("links") if (link := rtnetlink.parse_link(m)) is not None]
    found = examine(rules, routes, links, {2, 3})
    assert not found.tunnelled
    assert "32501" in found.notes[0]


@pytest.mark.parametrize("version", [4, 6])
def test_sockets_tell_their_connection_and_their_flags(events, version):
    established, up = (events[1], events[2]) if version == 4 else (events[5], events[6])
    seen = [s for m in recorded(f"sockets{version}") if (s := tcp_sockets.parse(m)) is not None]
    by_key = {s.key: s for s in seen}
    first, spare = by_key[established.key], by_key[up.key]
    assert first.token == spare.token == established.token
    assert (first.backup, first.local_id) == (True, 0)
    assert (spare.backup, spare.local_id) == (False, 3)


def test_a_refusal_is_told_in_the_kernels_own_words():
    ending = recorded("refusal")[0]
    assert (ending["error"], ending.get_attr("NLMSGERR_ATTR_MSG")) == (-22, "invalid token")


@pytest.mark.parametrize("name", ["rules", "routes", "links", "sockets4", "family"])
def test_a_truncated_datagram_ends_before_the_broken_message(name):
    parser = Parser(CLASSES[name])
    for data in datagrams(name):
        whole = len(list(parser.messages(data)))
        last = max(1, len(data) // 50)
        for length in range(0, len(data), last):
            assert len(list(parser.messages(data[:length]))) <= whole


def test_a_truncated_datagram_has_the_events_before_its_end(events):
    for data in datagrams("events"):
        whole = list(path_events(data))
        for length in range(len(data)):
            assert (
                list(path_events(data[:length])) == whole[: len(list(path_events(data[:length])))]
            )


@given(st.binary(max_size=200))
def test_garbage_is_no_event(data):
    head = struct.pack("=IHHII", HEADER_BYTES + len(data), 30, 0, 0, 0)
    list(path_events(data))
    list(path_events(head + data))
    list(path_events(head + b"\1\1\0\0" + data))


@given(st.sampled_from(sorted(CLASSES)), st.binary(max_size=200))
def test_garbage_never_raises(name, data):
    list(Parser(CLASSES[name]).messages(data))
    length = (HEADER_BYTES + len(data)).to_bytes(4, "little")
    list(Parser(CLASSES[name]).messages(length + bytes(12) + data))


def test_of_an_event_only_the_head_is_parsed():
    parser = Parser(nlmsg, rtnetlink.HEADS)
    seen = [message for data in datagrams("routes") for message in parser.messages(data)]
    assert not any("attrs" in message for message in seen if "dst_len" in message)
    defaults = [message for message in seen if "dst_len" in message and rtnetlink.is_news(message)]
    assert {message["proto"] for message in defaults} >= {PROTOCOL}
    assert len(defaults) < len(seen)
