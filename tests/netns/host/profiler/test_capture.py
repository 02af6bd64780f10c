"""The filter on real links: exactly the packets that begin something, with the right side and flow."""

import contextlib
import fcntl
import json
import os
import socket
import ssl
import struct
import sys
import threading
from ipaddress import ip_address
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from cedos.errors import HostError
from cedos.host.profiler.capture import open_capture
from cedos.host.profiler.http import parse_request, parse_response
from cedos.host.profiler.tls import ClientHello, read_records
from cedos.model import FlowKey

BODY = os.urandom(2_000_000)
GET = b"GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
PUT = b"PUT /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n" % len(BODY)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def receive(connection, size):
    while size > 0:
        got = len(connection.recv(min(size, 65536)))
        assert got > 0
        size -= got


def serve_downloads_then_an_upload(connection):
    for _ in range(3):
        receive(connection, len(GET))
        connection.sendall(ANSWER + BODY)
    receive(connection, len(PUT) + len(BODY))
    connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("mptcp", [False, True], ids=["tcp", "mptcp"])
def test_bulk_transfers_show_their_first_packets_only(pair, drain, family, mptcp):
    with pair.client.entered():
        capture = open_capture("wlan0")
    pair.serve(family, 8080, serve_downloads_then_an_upload, mptcp=mptcp)
    with capture, pair.connect(family, 8080, mptcp=mptcp) as connection:
        for _ in range(3):
            connection.sendall(GET)
            receive(connection, len(ANSWER) + len(BODY))
        connection.sendall(PUT + BODY)
        receive(connection, 27)
        local, remote = connection.getsockname(), connection.getpeername()
        captured = drain(capture, at_least=8)
        lost = capture.statistics().lost
    if mptcp:  # it sends data again, as new bytes of its subflow: its own numbers tell
        captured = list({(one.outgoing, one.sequence): one for one in captured}.values())
    assert [one.outgoing for one in captured] == [True, False] * 4
    key = FlowKey(ip_address(local[0]), local[1], ip_address(remote[0]), remote[1])
    assert {one.key for one in captured} == {key}
    assert {(one.interface, one.mptcp) for one in captured} == {("wlan0", mptcp)}
    assert [one.payload[: len(GET)] for one in captured[:6:2]] == [GET] * 3
    assert all(one.payload.startswith(ANSWER) for one in captured[1:6:2])
    upload = parse_request(captured[6].payload)
    assert (upload.host, upload.content_length) == ("a.example", len(BODY))
    answer = parse_response(captured[7].payload)
    assert answer.status == 204
    assert lost == 0


@pytest.mark.parametrize("family", [4, 6])
def test_a_tls_connection_shows_its_client_hello_only(pair, drain, family):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pair.client.entered():
        capture = open_capture("wlan0")

    def serve(connection):
        connection.recv(65536)
        # Records that begin like a hello's, but are a server's and application data.
        with contextlib.suppress(ConnectionError):  # the client leaves as soon as it sees these
            connection.sendall(b"\x16\x03\x03\x00\x04\x02\x00\x00\x00")
            connection.sendall(b"\x17\x03\x03" + BODY)

    pair.serve(family, 443, serve)
    with (
        capture,
        pair.connect(family, 443) as connection,
        context.wrap_socket(
            connection, server_hostname="cdn.example.net", do_handshake_on_connect=False
        ) as secured,
    ):
        with pytest.raises(OSError, match=r".*"):
            secured.do_handshake()
        captured = drain(capture, at_least=1)
    assert [read_records(one.payload) for one in captured] == [
        ClientHello("cdn.example.net", ech=False, complete=True)
    ]
    assert captured[0].outgoing


def test_all_interfaces_with_those_to_come(pair, drain):
    with pair.client.entered():
        capture = open_capture()
    with capture:
        pair.client.ip("addr", "add", "10.7.0.1/24", "dev", "lo")
        pair.client.ip(
            "link", "add", "lte0", "type", "veth", "peer", "name", "eth1", "netns", pair.server.name
        )
        for namespace, interface, address in (
            (pair.client, "lte0", "10.8.0.1/24"),
            (pair.server, "eth1", "10.8.0.2/24"),
        ):
            namespace.ip("addr", "add", address, "dev", interface)
            namespace.ip("link", "set", interface, "up")
        seen = {}
        for interface, where, address in (
            ("wlan0", pair.server, "10.9.0.2"),
            ("lte0", pair.server, "10.8.0.2"),
            ("lo", pair.client, "10.7.0.1"),
        ):
            with pair.open(where, 4) as listening, pair.open(pair.client, 4) as connection:
                listening.bind((address, 80))
                listening.listen()
                connection.connect((address, 80))
                connection.sendall(GET)
                seen[interface] = drain(capture, at_least=1)
    for interface in ("wlan0", "lte0"):
        assert [(one.interface, one.outgoing) for one in seen[interface]] == [(interface, True)]
    # Both ends are this host: each sees its own side.
    assert [(one.interface, one.outgoing) for one in seen["lo"]] == [("lo", True), ("lo", False)]
    assert [one.key.remote_port == 80 for one in seen["lo"]] == [True, False]


def test_a_tagged_frame_is_left_to_its_vlans_own_interface(pair, drain):
    with pair.client.entered():
        capture = open_capture()
    with pair.server.entered():
        link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    address = json.loads(pair.client.ip("-json", "link", "show", "wlan0"))[0]["address"]
    with capture, link:
        link.bind(("eth0", 0))
        plain = Ether(dst=address, src="02:00:00:00:00:09")
        packet = IP(src="10.9.0.2", dst="10.9.0.1") / TCP(sport=80, dport=9)
        link.send(bytes(plain / Dot1Q(vlan=7) / packet / Raw(GET)))
        link.send(bytes(plain / packet / Raw(ANSWER)))
        captured = drain(capture, at_least=1)
    assert [one.payload for one in captured] == [ANSWER]


def test_a_tunnel_without_link_header(pair, drain):
    if not Path("/dev/net/tun").exists():
        pytest.skip("this machine has no /dev/net/tun")
    with pair.client.entered():
        tun = os.open("/dev/net/tun", os.O_RDWR)
        try:
            fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"vpn0", 0x1001))  # TUN, no header
            capture = open_capture("vpn0")
        except OSError:
            os.close(tun)
            raise
    try:
        pair.client.ip("addr", "add", "10.5.0.1/24", "dev", "vpn0")
        pair.client.ip("link", "set", "vpn0", "up")
        with capture:
            incoming = IP(src="10.5.0.2", dst="10.5.0.1") / TCP(sport=80, dport=9) / Raw(ANSWER)
            os.write(tun, bytes(incoming))
            with pair.open(pair.client, 4) as connection:
                thread = threading.Thread(target=answer_syn, args=(tun,), daemon=True)
                thread.start()
                connection.connect(("10.5.0.2", 80))
                connection.sendall(GET)
                captured = drain(capture, at_least=2)
                thread.join(timeout=5)
    finally:
        os.close(tun)
    assert [(one.outgoing, one.payload) for one in captured] == [(False, ANSWER), (True, GET)]


def answer_syn(tun):
    """Plays the far end of the tunnel until the handshake is done."""
    while True:
        packet = IP(os.read(tun, 2048))
        if packet.version == 4 and TCP in packet and packet[TCP].flags == "S":
            break
    flags, syn = "SA", packet[TCP]
    back = TCP(sport=syn.dport, dport=syn.sport, flags=flags, seq=1000, ack=syn.seq + 1)
    os.write(tun, bytes(IP(src=packet.dst, dst=packet.src) / back))


def test_an_interface_that_goes_away_is_survived(pair, drain):
    with pair.client.entered():
        capture = open_capture("wlan0")
        everywhere = open_capture()
    with capture, everywhere:
        pair.client.ip("link", "set", "wlan0", "down")
        assert capture.read() == []
        assert everywhere.read() == []
        pair.client.ip("link", "set", "wlan0", "up")
        with pair.open(pair.server, 4) as listening, pair.open(pair.client, 4) as connection:
            listening.bind(("10.9.0.2", 80))
            listening.listen()
            connection.connect(("10.9.0.2", 80))
            connection.sendall(GET)
            assert [one.payload for one in drain(capture, at_least=1)] == [GET]
            assert [one.payload for one in drain(everywhere, at_least=1)] == [GET]
        pair.client.ip("link", "del", "wlan0")
        assert capture.read() == []
        assert everywhere.read() == []


def test_a_missing_interface_and_a_missing_capability_are_named(pair):
    with pair.client.entered(), pytest.raises(HostError, match="cannot capture on nope"):
        open_capture("nope")
    program = (
        "from cedos.errors import PrivilegeError\n"
        "from cedos.host.profiler.capture import open_capture\n"
        "try: open_capture()\n"
        "except PrivilegeError as error: print(error)\n"
    )
    done = pair.client.run(
        "setpriv", "--bounding-set", "-net_raw", "--inh-caps", "-net_raw",
        sys.executable, "-c", program,
    )  # fmt: skip
    assert "CAP_NET_RAW" in done.stdout
