"""The parsers against what a kernel really said (record.py made the files)."""

import socket
from ipaddress import IPv4Interface, IPv6Interface, ip_address
from pathlib import Path

import pytest
from pyroute2.netlink.diag import MarshalDiag
from pyroute2.netlink.nfnetlink.nfctsocket import nfct_msg

from cedos.host.monitor.links import Tables, assemble, changes_networks
from cedos.host.monitor.resolvers import Resolvers
from cedos.kernel import conntrack, netlink, rtnetlink, sock_diag
from cedos.kernel.interface_kind import Hardware
from cedos.kernel.rtnetlink import parse_counters
from cedos.model import NetworkKind

HERE = Path(__file__).parent
# What record.py sends: ports are its own.
UP, DOWN = 5_000, 70_000
HERE4, FAR4 = ip_address("192.168.1.1"), ip_address("192.168.1.2")
HERE6, FAR6 = ip_address("fd00:1::1"), ip_address("fd00:1::2")


def datagrams(*names):
    for name in names:
        for line in (HERE / f"{name}.hex").read_text().split():
            yield bytes.fromhex(line)


def recorded(*names):
    for datagram in datagrams(*names):
        yield from netlink.messages(datagram)


class NoHardware:
    def look_up(self, link):
        return Hardware()


def sockets(*names):
    found = (sock_diag.parse(message, 0.0) for message in recorded(*names))
    return {facts.key.local_port: facts for facts in found if facts is not None}


def test_a_dump_of_sockets():
    found = sockets("sockets")
    assert sorted(found) == [8001, 8002, 8003, 8004]
    for port, facts in found.items():
        assert facts.key.remote_port == port - 1000
        assert facts.state == sock_diag.ESTABLISHED
        assert facts.counted
        assert UP <= facts.bytes_up <= UP + 1
        assert facts.bytes_down >= DOWN
        assert facts.rtt_s is not None
        assert 0 < facts.rtt_min_s <= facts.rtt_s < 0.1
        assert 0.2 < facts.idle_down_s < 2
    assert (found[8001].key.local, found[8001].key.remote) == (HERE4, FAR4)
    assert (found[8002].key.local, found[8002].key.remote) == (HERE6, FAR6)
    assert found[8001].bytes_down == DOWN


def test_an_ipv6_socket_that_speaks_ipv4_has_ipv4_addresses():
    for facts in (sockets("sockets")[8003], sockets("destroy")[8003]):
        assert (facts.key.local, facts.key.remote) == (HERE4, FAR4)


def test_only_the_mptcp_subflow_has_a_token():
    found = sockets("sockets")
    assert [port for port, facts in found.items() if facts.token is not None] == [8004]
    assert found[8004].token


def test_destroy_notifications_carry_the_final_counts():
    found = sockets("destroy")
    assert sorted(found) == [8001, 8002, 8003, 8004]
    for port in (8001, 8002, 8003):
        assert found[port].bytes_down == DOWN + 1  # the end counts as one
        assert found[port].bytes_up == UP + 2  # so do the handshake and the end
        assert found[port].counted


def events():
    found = (conntrack.parse(message) for message in recorded("conntrack"))
    return [tracked for tracked in found if tracked is not None]


def test_connection_tracking_tells_openings_and_ends():
    for ended in (False, True):
        some = [tracked for tracked in events() if tracked.ended is ended]
        ports = [(t.protocol, t.original.source_port) for t in some]
        assert sorted(ports) == [
            ("tcp", 8001), ("tcp", 8002), ("tcp", 8003), ("tcp", 8004), ("udp", 5301),
        ]  # fmt: skip
    (udp,) = [t for t in events() if t.ended and t.protocol == "udp"]
    assert (udp.bytes_original, udp.bytes_reply) == (100 + 28, 300 + 28)
    assert all(t.bytes_original is None for t in events() if not t.ended)


def test_a_tracked_flow_is_seen_from_this_host():
    (tracked,) = [t for t in events() if t.original.source_port == 8002 and not t.ended]

    def near(address):
        return address == HERE6

    def far(address):
        return address == FAR6

    outgoing = conntrack.flow_of(tracked, near)
    assert (outgoing[0].local, outgoing[0].local_port, outgoing[1]) == (HERE6, 8002, False)
    incoming = conntrack.flow_of(tracked, far)
    assert (incoming[0].local, incoming[0].local_port, incoming[1]) == (FAR6, 7002, True)
    assert conntrack.flow_of(tracked, lambda address: False) is None


def test_both_sources_of_a_flow_agree_on_its_key():
    def near(address):
        return address in (HERE4, HERE6)

    opened = {found[0] for t in events() if (found := conntrack.flow_of(t, near)) is not None}
    for facts in sockets("destroy").values():
        assert facts.key in opened


def test_tables_become_networks():
    answers = recorded("rtnl-links", "rtnl-addresses", "rtnl-routes4", "rtnl-routes6")
    tables = Tables(answers)
    networks = [network for network, _ in assemble(tables, Resolvers(), NoHardware(), {})]
    wifi, cellular = networks
    assert (wifi.name, wifi.kind, wifi.metered, wifi.up) == ("wlan0", NetworkKind.WIFI, False, True)
    assert wifi.addresses == (IPv4Interface("192.168.1.1/24"), IPv6Interface("fd00:1::1/64"))
    # Table 99 has another gateway: it is steering's, not the network's.
    assert wifi.gateways == (FAR4, FAR6)
    assert (cellular.name, cellular.kind) == ("lte0", NetworkKind.CELLULAR)
    assert cellular.gateways == (ip_address("192.168.2.2"),)
    assert (cellular.metered, cellular.up) == (True, True)


def test_events_that_matter():
    seen = [(message.type, changes_networks(message)) for message in recorded("rtnl-events")]
    assert (rtnetlink.RTM_NEWLINK, True) in seen
    assert (rtnetlink.RTM_DELADDR, True) in seen
    # The routes that went with the link were none of the main table's default routes.
    assert (rtnetlink.RTM_DELROUTE, False) in seen
    assert (rtnetlink.RTM_DELROUTE, True) not in seen


def test_counters():
    (found,) = filter(None, map(parse_counters, recorded("rtnl-stats")))
    assert 0 < found.received_bytes < 10_000
    assert 0 < found.sent_bytes < 10_000


def test_the_flows_own_decoder_agrees_with_pyroute2s():
    diag = MarshalDiag()
    for name in ("sockets", "destroy"):
        theirs = [m for d in datagrams(name) for m in diag.parse(d) if "idiag_sport" in m]
        ours = [facts for m in recorded(name) if (facts := sock_diag.parse(m, 0.0)) is not None]
        by_port = {m["idiag_sport"]: m.get_attr("INET_DIAG_INFO") for m in theirs}
        for facts in ours:
            info = by_port[facts.key.local_port]
            assert facts.bytes_down == info["tcpi_bytes_received"]
            assert facts.bytes_up == info["tcpi_bytes_acked"]
            assert facts.rtt_s == pytest.approx(info["tcpi_rtt"] / 1e6)
            assert facts.delivery_rate_bps == info["tcpi_delivery_rate"] * 8
            assert facts.retransmits == info["tcpi_total_retrans"]
            assert facts.idle_down_s == info["tcpi_last_data_recv"] / 1e3
            assert facts.unacknowledged == info["tcpi_unacked"]
            assert facts.window_limit_bytes == info["tcpi_rcv_ssthresh"]
    for message in recorded("conntrack"):
        decoded = nfct_msg(netlink.message(message.type, 0, 0, message.payload))
        decoded.decode()
        addresses = decoded.get_nested("CTA_TUPLE_ORIG", "CTA_TUPLE_IP")
        version = "V4" if decoded["nfgen_family"] == socket.AF_INET else "V6"
        ports = decoded.get_nested("CTA_TUPLE_ORIG", "CTA_TUPLE_PROTO")
        tracked = conntrack.parse(message)
        assert str(tracked.original.source) == addresses.get_attr(f"CTA_IP_{version}_SRC")
        assert str(tracked.original.destination) == addresses.get_attr(f"CTA_IP_{version}_DST")
        assert tracked.original.source_port == ports.get_attr("CTA_PROTO_SRC_PORT")
        counted = decoded.get_nested("CTA_COUNTERS_REPLY", "CTA_COUNTERS_BYTES")
        # Sockets tell better what TCP carried.
        assert tracked.bytes_reply == (counted if tracked.protocol == "udp" else None)
