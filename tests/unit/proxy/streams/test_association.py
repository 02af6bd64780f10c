"""Packets that come before their association is opened: they are bounded, and handed on then."""

from cedos.proxy.streams.association import (
    KEPT_S,
    MOST_ASSOCIATIONS,
    MOST_BYTES,
    MOST_OF_ONE,
    EarlyPackets,
)
from cedos.proxy.streams.frames import ProgramPacket


def packet(stream, data=b"x"):
    return ProgramPacket(stream, "192.0.2.1", 9, data)


def test_each_is_taken_once_in_order_while_it_is_good():
    early = EarlyPackets()
    early.keep(packet(1, b"old"), 0.0)
    early.keep(packet(1, b"new"), 0.9)
    early.keep(packet(2, b"other"), 0.9)
    assert [each.data for each in early.take(1, 0.1 + KEPT_S)] == [b"new"]
    assert early.take(1, 1.1) == []
    assert [each.data for each in early.take(2, 1.1)] == [b"other"]


def test_nobody_fills_the_gateway_with_them():
    early = EarlyPackets()
    for number in range(1, 1_000):
        for _ in range(50):
            early.keep(packet(number), 0.0)
    assert len(early) == MOST_ASSOCIATIONS
    assert len(early.take(1, 0.0)) == MOST_OF_ONE
    for number in range(2_000, 2_000 + MOST_ASSOCIATIONS):
        early.keep(packet(number, bytes(MOST_BYTES // 5)), 2 * KEPT_S)  # those before are dropped
    assert len(early) == 4
    assert 0.8 * MOST_BYTES < early.held_bytes <= MOST_BYTES
    for number in range(2_000, 2_004):
        early.take(number, 2 * KEPT_S)
    early.keep(packet(3_000, bytes(MOST_BYTES // 2)), 2 * KEPT_S)
    assert len(early) == 1
    early.forget_until(2 * KEPT_S)
    assert early.held_bytes == len(early) == 0
