"""A session that goes on from a record that is older than what its peer has: found out, never mixed."""

import pytest

from cedos.errors import ProtocolError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Ack, Messages, Space, StreamData
from cedos.session.protocol.idle_record import IdleRecord, pack, unpack_session
from cedos.session.protocol.intervals import CumulativeSet
from cedos.session.protocol.life import SessionLimits, SessionState
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.session import Session
from tests.unit.session.protocol.conftest import Cores, Plain

NOW, UNIX = 0.0, 1e9
BULK = bytes(200_000)


def noted(core: Session) -> IdleRecord:
    found = pack(core, NOW, UNIX)
    assert found is not None
    return found


def again(record: IdleRecord) -> Session:
    return unpack_session(record, Plain(), NOW, UNIX, limits=SessionLimits())


def meet(cores: Cores, client: Session, server: Session) -> None:
    """The client's path to the dead server is lost; both meet on a new one."""
    if client.in_flight.paths:
        client.path_lost(1, NOW)
    client.path_up(2, PathFacts(), NOW, client.positions())
    server.path_up(2, PathFacts(), NOW)


def test_nothing_new_is_sent_before_the_peer_has_said_what_it_has(cores: Cores) -> None:
    client, server = cores.pair()
    restored = again(noted(server))
    restored.write(b"too early")
    restored.send(b"too early as well", 0)
    meet(cores, client, restored)
    first = cores.frames(restored.next_record(2, 70_000, NOW))
    assert first
    assert not [each for each in first if isinstance(each, StreamData | Messages)]
    assert not restored.wants(2)
    cores.pump(client, restored, 2)
    assert bytes(client.read()) == b"too early"
    assert cores.messages(client) == [(0, b"too early as well")]


@pytest.mark.parametrize("what", ["stream", "message", "large message"])
def test_what_an_older_life_had_sent_is_not_continued_by_other_bytes(
    cores: Cores, what: str
) -> None:
    """The peer has a part of it, out of order, so that its positions are those of the record."""
    client, server = cores.pair(limits=SessionLimits())
    record = noted(server)
    if what == "stream":
        server.write(BULK)
    elif what == "message":
        server.send(b"lost", 0)
        server.send(b"came", 0, after=())
    else:
        server.send(BULK, 3)
    records = [b"".join(server.next_record(1, 2_000, NOW)) for _ in range(30)]
    if what == "message":
        records = [packing.one_message(2, 0, 0, b"came")]
    else:
        records = [each for each in records[1:] if each]
    for each in records:
        client.receive(1, each, NOW)
    restored = again(record)
    if what == "stream":
        restored.write(b"\xff" * len(BULK))
    else:
        restored.send(b"\xff" * len(BULK), 3)
    meet(cores, client, restored)
    with pytest.raises(ProtocolError, match="acknowledges"):
        cores.pump(client, restored, 2)
    assert client.readable_bytes == 0
    assert b"\xff" not in b"".join(data for _, data in cores.messages(client))


def test_a_record_that_is_behind_is_told_by_both(cores: Cores) -> None:
    client, server = cores.pair()
    record = noted(server)
    client.write(b"asked")
    cores.pump(client, server)
    server.tick(1.0)
    cores.pump(client, server, now=1.0)
    assert client.acknowledged_bytes == 5
    restored = again(record)
    meet(cores, client, restored)
    cores.pump(client, restored, 2)
    assert client.state is restored.state is SessionState.FAILED


def test_an_acknowledgement_of_a_part_that_was_never_sent_is_refused(cores: Cores) -> None:
    _, server = cores.pair()
    part = CumulativeSet(0)
    part.add(0, 10)
    with pytest.raises(ProtocolError, match="never begun"):
        server.sender.acknowledge(Ack(Space.EXTENTS, 7, part.floor, ()))
