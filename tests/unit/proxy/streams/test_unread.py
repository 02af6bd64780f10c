"""What waits for whom does not read has a bound in all, and who holds too much loses first."""

import asyncio
import socket

import pytest

from cedos.model import Label
from cedos.proxy.streams import carry
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.frames import StreamBytes, StreamReset
from cedos.proxy.streams.stream import Chunk, Numbered, ProxiedStream
from cedos.proxy.streams.unread import Share, Unread


class Filled:
    def __init__(self, share: Share) -> None:
        self.share = share
        self.dropped = False

    def drop(self) -> None:
        self.dropped = True
        self.share.waits(self, 0)


def test_a_clients_fullest_stream_breaks_beyond_its_limit() -> None:
    unread = Unread(1_000, 300)
    share, other = unread.share("a"), unread.share("b")
    assert unread.share("a") is share
    small, large, last = (Filled(share) for _ in range(3))
    theirs = Filled(other)
    theirs.share.waits(theirs, 290)
    small.share.waits(small, 50)
    large.share.waits(large, 200)
    last.share.waits(last, 40)
    assert not any(each.dropped for each in (small, large, last))
    last.share.waits(last, 60)
    assert [each.dropped for each in (small, large, last, theirs)] == [False, True, False, False]
    assert (share.total_bytes, other.total_bytes, unread.total_bytes) == (110, 290, 400)


def test_beyond_the_limit_of_all_it_is_whoever_holds_most() -> None:
    unread = Unread(1_000, 600)
    clients = [unread.share(number) for number in range(4)]
    streams = [Filled(share) for share in clients for _ in range(3)]
    for stream in streams[:3]:
        stream.share.waits(stream, 190)
    for stream in streams[3:]:
        stream.share.waits(stream, 50)
    assert sum(each.dropped for each in streams[:3]) == 1
    assert not any(each.dropped for each in streams[3:])
    assert unread.total_bytes <= 1_000


def test_what_is_read_counts_no_more() -> None:
    unread = Unread(1_000, 300)
    share = unread.share("a")
    stream = Filled(share)
    for _ in range(10):
        share.waits(stream, 250)
        share.waits(stream, 0)
    assert (share.total_bytes, unread.total_bytes, stream.dropped) == (0, 0, False)


class Anything:
    """A session that takes everything."""

    def put(self, stream: Numbered, data: bytes, label: Label, *, ordered: bool) -> None:
        pass

    def try_put(self, stream: ProxiedStream, head: bytes, data: Chunk, label: Label) -> bool:
        return True

    def forget(self, number: int) -> None:
        pass


@pytest.mark.anyio
async def test_what_a_client_left_behind_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fills its window towards a server that never reads, and resets the stream."""
    monkeypatch.setattr(carry, "_LAST_S", 0.1)
    unread = Unread()
    stream = ProxiedStream(1, Anything(), unread=unread.share("a"))
    near, far = socket.socketpair()
    near.setblocking(False)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    with near, far:
        carrying = asyncio.ensure_future(Carry(near, stream).run())
        await asyncio.sleep(0)
        for number in range(16):
            stream.took(StreamBytes(1, number << 14, bytes(1 << 14)))
        stream.changed()
        assert unread.total_bytes > 100_000
        stream.took(StreamReset(1))
        stream.changed()
        assert not carrying.done()
        moved = await asyncio.wait_for(carrying, 3)
    assert "reset" in moved.ended
    assert unread.total_bytes == 0
