"""After what quiet the kernel asks whether a peer is there: seldom where asking costs something."""

import socket
from pathlib import Path

import pytest

from cedos.model import NetworkKind
from cedos.session.io.connect_attempts import asks_after_s
from cedos.session.io.links import Egress
from cedos.session.io.path import QUIET_S, SILENCE_S, prepare


def egress(kind: NetworkKind, *, metered: bool) -> Egress:
    return Egress("net0", 2, frozenset(), kind, metered)


@pytest.mark.parametrize(
    ("kind", "metered", "expected_s"),
    [
        (NetworkKind.WIFI, False, SILENCE_S),
        (NetworkKind.ETHERNET, False, SILENCE_S),
        (NetworkKind.WIFI, True, QUIET_S),  # a phone's hotspot
        (NetworkKind.CELLULAR, True, QUIET_S),
        (NetworkKind.CELLULAR, False, QUIET_S),  # its bytes cost nothing, its radio does
    ],
)
def test_a_phone_is_asked_seldom(kind: NetworkKind, metered: bool, expected_s: int) -> None:
    assert asks_after_s(egress(kind, metered=metered)) == expected_s


def test_the_kernel_is_told() -> None:
    for asked_s in (SILENCE_S, QUIET_S):
        with socket.socket() as connection:
            prepare(connection, asks_after_s=asked_s)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == asked_s


@pytest.mark.skipif(
    not Path("/proc/sys/net/ipv4/tcp_rto_max_ms").exists(), reason="needs Linux 6.15"
)
def test_after_an_outage_the_next_retransmission_is_near() -> None:
    with socket.socket() as connection:
        before_ms = connection.getsockopt(socket.IPPROTO_TCP, 44)  # TCP_RTO_MAX_MS
        prepare(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, 44) == 2_000 != before_ms
