"""The parser of the kernel's facts about a TCP connection."""

import dataclasses
import select
import socket
import time

import pytest

from cedos.kernel import tcp_info


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    with near, far:
        yield near, far


def fill(connection):
    connection.setblocking(False)
    put = 0
    try:
        while True:
            put += connection.send(bytes(1 << 16))
    except BlockingIOError:
        return put


def test_queues_grow_and_drain(pair):
    near, far = pair
    assert tcp_info.unsent_bytes(near) == 0
    put = fill(near)
    assert 0 < tcp_info.unsent_bytes(near) <= tcp_info.unacknowledged_bytes(near) <= put
    info = tcp_info.tcp_info(near)
    assert info.unsent_bytes > 0
    left = put
    while left:
        left -= len(far.recv(1 << 20))
    for _ in range(1000):
        if not tcp_info.unacknowledged_bytes(near):
            break
        select.select([], [], [], 0.01)
    assert tcp_info.unacknowledged_bytes(near) == 0


def test_who_waits_for_a_peer_that_does_not_read_waits_for_no_acknowledgement(pair):
    near, _ = pair
    fill(near)
    for _ in range(1000):
        info = tcp_info.tcp_info(near)
        if not info.waiting_segments:
            break
        select.select([], [], [], 0.01)
    assert info.unsent_bytes > 0
    assert not info.waits
    # The same with room at the peer's: this host cannot send it, and nobody can acknowledge it.
    assert dataclasses.replace(info, peer_window_bytes=info.segment_bytes).waits


def test_info_after_traffic(pair):
    near, far = pair
    for _ in range(20):
        near.sendall(bytes(1000))
        assert far.recv(1000, socket.MSG_WAITALL)
        far.sendall(b"x")
        assert near.recv(1)
    info = tcp_info.tcp_info(near)
    assert info.rtt_s is not None
    assert 0 < info.rtt_min_s <= 10 * info.rtt_s < 10
    assert info.delivery_rate_bps is not None
    assert info.rate_limited_by_us
    assert info.segment_bytes >= 536
    assert info.window_bytes >= 2 * info.segment_bytes
    assert info.loss == 0
    assert info.unsent_bytes == 0
    assert 0 <= info.acknowledged_bytes - 20_000 <= 1  # the SYN counts as one
    assert 0 <= info.busy_s < 60  # counted in ticks


def test_writable_only_below_the_limit(pair):
    near, far = pair
    tcp_info.wake_below(near, 1 << 30)
    fill(near)
    tcp_info.wake_below(near, 1000)
    assert not select.select([], [near], [], 0)[1]
    far.setblocking(False)
    for _ in range(2000):
        if select.select([far], [near], [], 0.05)[1]:
            break
        far.recv(1 << 16)
    assert tcp_info.unsent_bytes(near) < 1000


def test_a_closed_connection_and_short_answers(pair):
    near, _ = pair
    near.close()
    assert tcp_info.tcp_info(near) is None
    assert tcp_info.unsent_bytes(near) == 0
    assert tcp_info.unacknowledged_bytes(near) == 0
    assert tcp_info.read_info(bytes(104)) is None


def test_who_does_not_read_leaves_less_than_half_of_the_window(pair):
    near, far = pair

    def unread():
        raw = far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, tcp_info.TCP_INFO_BYTES)
        assert not tcp_info.unread(raw[:-4]), "a kernel that does not tell the window"
        return tcp_info.unread(raw)

    assert not unread()
    for _ in range(20):
        near.sendall(bytes(50_000))
        far.recv(50_000, socket.MSG_WAITALL)
        assert not unread()
    put, deadline_s = fill(near), time.monotonic() + 10
    while not unread():
        assert time.monotonic() < deadline_s
        put += fill(near)
    far.settimeout(10)
    near.setblocking(True)
    while put:
        put -= len(far.recv(1 << 16))
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    assert not unread()
