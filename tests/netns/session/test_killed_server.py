"""`kill -9` of `cedos-serve`: a fetch over two networks and a session that is idle both outlive it."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cedos import session
from cedos.files import messages
from cedos.session import keys
from cedos.session.io.idle_sessions import RECORD_BYTES
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES
from cedos.session.protocol.idle_record import IDLE_BYTES, IdleRecord
from tests.netns.session.conftest import NETWORKS
from tests.netns.session.test_files_on_the_move import PORT, SERVER, SIZE, Walk

RATE = "12mbit"  # each network: the file takes 5.6 s over both


@pytest.fixture
def walk(world: Any, tmp_path: Path) -> Iterator[Walk]:
    walk = Walk(world, tmp_path)
    yield walk
    for process in walk.started:
        process.kill()
        process.communicate()


async def asked(connection: session.Connection) -> int:
    """The size that the server tells of its file."""
    await connection.write(messages.pack(messages.FileRequest("file", head=True)))
    answer: messages.Answer = await messages.read(messages.Answer, connection.read_exactly)
    return answer.size


async def connected(walk: Walk) -> session.Connection:
    """A session of another program of the same person's: it has the same key."""
    key = keys.own(walk.folder / "config" / "cedos" / "session.key")
    server_key = keys.from_text(walk.key)
    return await session.connect((SERVER, PORT), server_key=server_key, key=key, timeout_s=20)


def until(true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    ends_s = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends_s, what
        time.sleep(0.01)


def written_down(walk: Walk, connection: session.Connection) -> bool:
    """Whether the server's file holds the session as it is after the first answer."""
    (file,) = (walk.folder / "state" / "cedos").glob("serve-*.sessions")
    text = file.read_bytes()
    start = text.find(connection.flow_id)
    record = text[start : start + RECORD_BYTES]
    if start < 0:
        return False
    idle = IdleRecord.from_bytes(record[CREDENTIALS_BYTES : CREDENTIALS_BYTES + IDLE_BYTES])
    return idle.stream_received == connection.written_bytes and idle.stream_sent > 0


def received(walk: Walk) -> dict[str, int]:
    """Bytes that came over each of the client's interfaces, headers and all."""
    found = json.loads(walk.world.near.ip("-j", "-s", "link", "show"))
    counts = {each["ifname"]: int(each["stats64"]["rx"]["bytes"]) for each in found}
    return {name: counts[name] for name in NETWORKS}


def grown(now: dict[str, int], since: dict[str, int]) -> dict[str, int]:
    return {name: now[name] - since[name] for name in now}


def test_a_fetch_and_an_idle_session_go_on_with_the_next_server(walk: Walk) -> None:
    """The fetch ends well by itself, without what was here already; the idle session is the same."""
    world = walk.world
    world.shape(RATE)
    server = walk.serve()
    idle = world.client.do(connected(walk))
    assert world.client.do(asked(idle)) == SIZE
    until(lambda: len(idle.paths()) == len(NETWORKS), "the idle session has not both networks")
    until(lambda: written_down(walk, idle), "the idle session is not written down")

    begun = received(walk)
    client = walk.get()
    walk.more(SIZE // 2, client)
    server.kill()
    server.wait()
    killed = received(walk)
    assert walk.have() < SIZE * 3 // 4
    asking = world.client.start(asked(idle))  # while nobody listens
    walk.serve()
    assert asking.result(20) == SIZE
    out, errors = client.communicate(timeout=30)
    whole = received(walk)

    assert client.returncode == 0, errors
    assert hashlib.sha256((walk.folder / "got").read_bytes()).digest() == walk.digest
    assert '"sessions": 2' in out
    for part in (grown(killed, begun), grown(whole, killed)):
        assert min(part.values()) > SIZE // 16, part  # both networks, before and after
    assert sum(grown(whole, begun).values()) < 1.25 * SIZE  # with all of it again it were 1.5
    assert world.client.do(asked(idle), 20) == SIZE
    world.client.do(idle.close())
