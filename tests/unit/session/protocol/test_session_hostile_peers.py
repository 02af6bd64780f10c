"""What a peer may not do: whoever claims too much is refused, and told why."""

from typing import Any

import pytest

from cedos.errors import ProtocolError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Order, Space
from cedos.session.protocol.life import SessionLimits, SessionState
from cedos.session.protocol.receiver import MAX_ID_GAPS
from cedos.session.protocol.sender import ID_SPAN
from cedos.session.protocol.session import Session

Cores = Any
BIG = b"x" * 60_000


HOSTILE = {
    "beyond the stream's window": [packing.stream_header(262_144, 1, False) + b"x"],
    "an absurd offset": [packing.stream_header(1 << 61, 1, False) + b"x"],
    "beyond the stream's end": [
        packing.stream_header(0, 1, True) + b"x",
        packing.stream_header(1, 1, False) + b"x",
    ],
    "another end": [packing.stream_header(0, 1, True) + b"x", packing.stream_header(2, 0, True)],
    "an end before what came": [
        packing.stream_header(5, 1, False) + b"x",
        packing.stream_header(2, 0, True),
    ],
    "too many holes": [
        b"".join(
            packing.stream_header(at, 1, False) + b"x" for at in range(first, first + 8_000, 2)
        )
        for first in range(1, 100_000, 8_000)
    ],
    "IROBs with too many holes together": [
        b"".join(
            packing.extent_header(irob, 3, Order.FREE, (), at, 1, False) + b"x"
            for at in range(1, 2_000, 2)
        )
        for irob in range(1, 40)
    ],
    "an absurd IROB": [packing.messages_header(ID_SPAN + 1, 0, Order.FREE, (), [1]) + b"x"],
    "an IROB larger than any": [
        packing.extent_header(1, 0, Order.FREE, (), 1 << 22, 1, False) + b"x",
    ],
    "more IROBs than credit": [
        packing.extent_header(irob, 3, Order.FREE, (), 0, len(BIG), False) + BIG
        for irob in range(1, 300)
    ],
    "more small IROBs than credit": [
        packing.messages_header(first, 0, Order.FREE, (), [0] * 8_000)
        for first in range(1, 80_001, 8_000)
    ],
    "an IROB with two labels": [
        packing.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        packing.extent_header(1, 3, Order.FREE, (), 1, 1, False) + b"x",
    ],
    "an IROB with two orders": [
        packing.extent_header(3, 2, Order.LISTED, (1,), 0, 1, False) + b"x",
        packing.extent_header(3, 2, Order.LISTED, (2,), 1, 1, False) + b"x",
    ],
    "an IROB that is large and small": [
        packing.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        packing.messages_header(1, 2, Order.FREE, (), [1]) + b"x",
    ],
    "absurd abandonment": [packing.abandon(1, ID_SPAN + 1)],
    "abandonment in too many parts": [
        b"".join(packing.abandon(irob, 1) for irob in range(first, first + 8_000, 2))
        for first in range(2, 2 * MAX_ID_GAPS + 16_000, 8_000)
    ],
    "an acknowledgement of what was not sent": [packing.ack(Space.STREAM, 0, 1, [])],
    "an acknowledged range that was not sent": [packing.ack(Space.STREAM, 0, 0, [(5, 6)])],
    "an acknowledged IROB that was not begun": [packing.ack(Space.IROBS, 0, 2, [])],
    "an answer to a Close never said": [packing.closed()],
    "two different Closes": [packing.close(5, 1), packing.close(6, 1)],
    "more than was closed": [
        packing.close(0, 1) + packing.stream_header(0, 1, True) + b"x",
    ],
}


def take_all(core: Session, records: list[bytes]) -> None:
    for record in records:
        core.receive(1, record, 0.0)


@pytest.mark.parametrize("records", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_peer_that_claims_too_much_is_refused(cores: Cores, records: list[bytes]) -> None:
    core = cores.session(limits=SessionLimits(stream_window=262_144))
    cores.up(core)
    core.next_record(1, 70_000, 0.0)
    with pytest.raises(ProtocolError) as refused:
        take_all(core, records)
    assert len(str(refused.value)) > 20
    core.abort(1, str(refused.value))
    assert core.state is SessionState.FAILED
    assert cores.frames(core.next_record(1, 70_000, 0.0))[-1].code == 1
    assert core.next_record(1, 70_000, 0.0) == []
    assert core.over(0.0)


def test_an_answer_above_what_was_proposed_is_refused(cores: Cores) -> None:
    core = cores.session()
    cores.up(core)
    core.keep_alive(50)
    with pytest.raises(ProtocolError, match="51"):
        core.receive(1, packing.keep_alive(True, 1, 51), 0.0)


def test_windows_only_grow_and_old_acknowledgements_change_nothing(cores: Cores) -> None:
    one, other = cores.pair()
    limit, credit = one.sender.stream.limit, one.sender.credit.credit
    one.receive(1, packing.window(5, 5, 5), 0.0)
    assert (one.sender.stream.limit, one.sender.credit.credit) == (limit, credit)
    one.write(b"x" * 100)
    cores.pump(one, other)
    other.tick(1.0)
    cores.pump(one, other)
    assert one.acknowledged_bytes == 100
    one.receive(1, packing.ack(Space.STREAM, 0, 40, []), 0.0)
    assert one.acknowledged_bytes == 100


def test_pings_without_end_get_a_bounded_number_of_answers(cores: Cores) -> None:
    core = cores.session()
    cores.up(core)
    core.receive(1, b"".join(packing.ping(number) for number in range(1_000)), 0.0)
    pongs = [
        each
        for each in cores.frames(core.next_record(1, 70_000, 0.0))
        if type(each).__name__ == "Pong"
    ]
    assert 1 < len(pongs) <= 64
