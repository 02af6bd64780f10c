"""Flows whose content is hidden: known by their server's name, estimated and counted as a whole."""

from dataclasses import replace
from ipaddress import ip_address

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.model import Direction, FlowKey

DOWN, UP = Direction.DOWN, Direction.UP
SERVER = "198.51.100.1"
KEY = FlowKey(ip_address("192.168.43.2"), 40000, ip_address(SERVER), 80)
TLS_KEY = replace(KEY, remote_port=443)


def initial(name, key=TLS_KEY):
    """Return the first packets that a real client sends over QUIC."""
    connection = QuicConnection(
        configuration=QuicConfiguration(
            server_name=name, alpn_protocols=[f"protocol-{n:0200}" for n in range(7)]
        )
    )
    connection.connect((SERVER, 443), now=0.0)
    key = replace(key, protocol="udp")
    return [
        CapturedPacket(key, True, data, None, None)
        for data, _ in connection.datagrams_to_send(now=0.0)
    ]


def test_a_quic_hello_before_its_flows_opening():
    profiler = Profiler()
    datagrams = initial("big.example")
    told = [event for one in datagrams for event in profiler.observe(one, 1.0)]
    assert [one.server_name for one in told] == ["big.example"]
    assert profiler.on_open(datagrams[0].key, 1.02) == []
    assert profiler.server_name(datagrams[0].key) == "big.example"
    assert profiler.observe(datagrams[0]._replace(payload=b"\xc3\0\0\0\1" + bytes(60)), 2.0) == []


def test_other_datagrams_are_no_transfers_to_learn_from():
    profiler = Profiler()
    dns = FlowKey(ip_address("192.168.43.2"), 5353, ip_address(SERVER), 53, "udp")
    profiler.on_open(dns, 1.0)
    profiler.on_close(dns, 200, 80)
    assert len(profiler.history) == 0


def test_a_hello_over_two_segments(hello):
    profiler = Profiler()
    profiler.on_open(TLS_KEY, 1.0)
    raw = hello("big.example")
    begin = CapturedPacket(TLS_KEY, True, raw[:60], 900, 1, segment=900)
    end = CapturedPacket(TLS_KEY, True, raw[60:], 960, 1, segment=960)
    assert profiler.observe(begin, 1.1) == []
    (named,) = profiler.observe(end, 1.1)
    assert named.server_name == "big.example"
    assert profiler.observe(end, 1.2) == []  # sent again
    # The kernel's own word for it: of MPTCP, the data sequence is not where the segment is.
    other = replace(TLS_KEY, local_port=9)
    assert len(profiler.observe(begin._replace(key=other, sequence=5), 2.0)) == 1
    (named,) = profiler.observe(end._replace(key=other, sequence=5, mptcp=True), 2.0)
    assert named.server_name == "big.example"


def test_a_host_is_first_taken_for_its_domain(hello):
    profiler = Profiler()
    for number in range(4):
        key = replace(TLS_KEY, local_port=number, remote=ip_address("203.0.113.9"))
        profiler.observe(CapturedPacket(key, True, hello("a.big.example"), 1, 1), 1.0)
        profiler.on_close(key, 8_000_000 + number, 9_000)
    (named,) = profiler.observe(CapturedPacket(TLS_KEY, True, hello("b.big.example"), 1, 1), 2.0)
    assert 8_000_000 <= named.size.median_bytes < 8_000_004


def test_tls_is_learned_by_name_over_whole_connections(hello):
    profiler = Profiler()
    for number in range(12):
        key = replace(TLS_KEY, local_port=50_000 + number)
        profiler.on_open(key, 1.0)
        (named,) = profiler.observe(CapturedPacket(key, True, hello("big.example"), 1, 1), 1.1)
        assert (named.server_name, named.direction) == ("big.example", DOWN)
        profiler.on_close(key, 8_000_000, 20_000)
    assert named.size.source == "history"
    assert named.size.median_bytes == 8_000_000
    assert profiler.server_name(key) is None  # the flow has ended
    other = replace(TLS_KEY, remote=ip_address("203.0.113.9"))
    (elsewhere,) = profiler.observe(CapturedPacket(other, True, hello("big.example"), 1, 1), 2.0)
    assert elsewhere.size.median_bytes == 8_000_000
    (nameless,) = profiler.on_open(replace(TLS_KEY, local_port=1), 3.0)
    assert nameless.size.median_bytes == 8_000_000


def test_a_refused_connection_teaches_nothing():
    profiler = Profiler()
    profiler.on_open(KEY, 1.0)
    profiler.on_close(KEY, 0, 1)
    profiler.on_open(KEY, 2.0)
    profiler.on_close(KEY, None, None)
    assert len(profiler.history) == 0
    assert len(profiler) == 0


def test_the_estimate_moves_on_when_it_is_exceeded():
    profiler = Profiler()
    profiler.on_open(TLS_KEY, 1.0)
    assert profiler.on_progress(TLS_KEY, 2_000, 500) == []
    (told,) = profiler.on_progress(TLS_KEY, 400_000, 2_000)
    assert (told.direction, told.size.source) == (DOWN, "progress")
    assert told.size.low_bytes > 400_000
    assert profiler.on_progress(TLS_KEY, told.size.median_bytes, 2_000) == []
    events, carried = 0, 400_000
    while carried < 10**9:
        carried = carried * 11 // 10
        events += len(profiler.on_progress(TLS_KEY, carried, 2_000))
    assert 2 <= events <= 8  # it runs ahead instead of being chased byte by byte


def test_an_opaque_flow_that_turns_out_to_be_an_upload():
    profiler = Profiler()
    profiler.on_open(TLS_KEY, 1.0)
    (told,) = profiler.on_progress(TLS_KEY, 4_000, 5_000_000)
    assert (told.direction, told.size.source) == (UP, "progress")
    assert told.size.low_bytes > 5_000_000
