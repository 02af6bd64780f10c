"""Bytes between two sockets: all of them, in order, ends handed on, resets as resets."""

import asyncio
import hashlib
import os
import socket
import struct

import pytest
from kit.proxy_streams import Anything

from cedos.proxy import splice
from cedos.proxy.http import RequestBody
from cedos.proxy.splice import Tunnel, TunnelBuffer, TunnelBytes
from cedos.proxy.streams.carry import Carry
from cedos.proxy.streams.frames import StreamWindow
from cedos.proxy.streams.stream import ProxiedStream

BUFFER = TunnelBuffer()
RESET = struct.pack("ii", 1, 0)


def pair():
    """Two ends of a TCP connection on the loopback, with small kernel buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        one.connect(listening.getsockname())
        other, _ = listening.accept()
    for end in (one, other):
        end.setblocking(False)
    return one, other


class Ends:
    """A tunnel with a user on one side and a server on the other."""

    def __init__(self, **options):
        self.user, self._client = pair()
        self._origin, self.server = pair()
        settings = {"idle_s": 10.0} | options
        self.tunnel = Tunnel(self._client, self._origin, BUFFER, **settings)
        self.task = asyncio.create_task(self._run())

    async def _run(self):
        with self._client, self._origin:
            return await self.tunnel.run()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.user.close()
        self.server.close()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def send(to, data):
    await asyncio.get_running_loop().sock_sendall(to, data)
    to.shutdown(socket.SHUT_WR)


async def receive(of):
    got = bytearray()
    while block := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(of, 65536), 5):
        got += block
    return bytes(got)


async def test_both_ways_at_once_all_bytes_arrive_in_order():
    up, down = os.urandom(5_000_000), os.urandom(7_000_000)
    async with Ends() as ends:
        asked, answered, _, _ = await asyncio.gather(
            receive(ends.server), receive(ends.user), send(ends.user, up), send(ends.server, down)
        )
        assert hashlib.sha256(asked).digest() == hashlib.sha256(up).digest()
        assert hashlib.sha256(answered).digest() == hashlib.sha256(down).digest()
        assert await ends.task == TunnelBytes(len(up), len(down), "complete")


async def test_after_one_side_has_ended_the_other_goes_on():
    async with Ends() as ends:
        await send(ends.user, b"question")
        assert await receive(ends.server) == b"question"
        await asyncio.sleep(0.05)
        assert not ends.task.done()
        await send(ends.server, b"answer")
        assert await receive(ends.user) == b"answer"
        assert await ends.task == TunnelBytes(8, 6, "complete")


async def fill(ends):
    """Send until nothing more is taken; return the number of bytes."""
    sent, end = 0, False
    for _ in range(200):
        try:
            sent += ends.server.send(bytes(1 << 20))
            end = False
        except BlockingIOError:
            if end:
                break
            end = True
            await asyncio.sleep(0.05)
    return sent


async def test_tunnels_that_wait_keep_little_together(monkeypatch):
    """Read small blocks while others wait: 4,096 tunnels could keep 2 MiB each, also empty ones."""
    monkeypatch.setattr(splice, "MOST_KEPT_BYTES", 1)
    async with Ends() as first, Ends() as second:
        sent = await fill(first)
        kept = BUFFER.kept_bytes
        assert kept
        await fill(second)
        assert 0 < BUFFER.kept_bytes - kept <= 1 << 16
        first.server.shutdown(socket.SHUT_WR)
        assert len(await receive(first.user)) == sent
        assert BUFFER.kept_bytes <= 1 << 16
    assert not BUFFER.kept_bytes


async def test_what_is_not_taken_is_not_read():
    async with Ends() as ends:
        sent = await fill(ends)
        # Four kernel buffers, and one block in the relay.
        assert sent < 30_000_000
        assert not ends.task.done()
        ends.server.shutdown(socket.SHUT_WR)
        assert len(await receive(ends.user)) == sent


async def test_a_reset_is_handed_on_as_one():
    async with Ends() as ends:
        await asyncio.get_running_loop().sock_sendall(ends.server, b"half")
        assert await asyncio.get_running_loop().sock_recv(ends.user, 9) == b"half"
        ends.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        ends.server.close()
        moved = await asyncio.wait_for(ends.task, 5)
        assert moved.ended == "origin: Connection reset by peer"
        with pytest.raises(ConnectionResetError):
            await receive(ends.user)


@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_given_up_on_the_way_looks_complete_to_no_side(monkeypatch, fails):
    """A proxy that was told to end, or failed, ended an upload in order: its origin took it for whole."""
    async with Ends() as ends:
        ends.user.send(b"part")
        ends.server.send(b"some")
        assert await asyncio.get_running_loop().sock_recv(ends.server, 9) == b"part"
        assert await asyncio.get_running_loop().sock_recv(ends.user, 9) == b"some"
        if fails:
            monkeypatch.setattr(ends.tunnel._up, "_buffer", None)
            ends.user.send(b"more")
        else:
            ends.task.cancel()
        for one in (ends.server, ends.user):
            with pytest.raises(ConnectionResetError):
                await receive(one)


async def test_what_has_ended_before_the_tunnel_is_given_up_arrives():
    async with Ends() as ends:
        await send(ends.user, b"all of it")
        await asyncio.sleep(0.05)
        ends.task.cancel()
        assert await receive(ends.server) == b"all of it"
        with pytest.raises(ConnectionResetError):
            await receive(ends.user)


async def test_a_client_that_breaks_breaks_the_origin():
    async with Ends() as ends:
        ends.user.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        ends.user.close()
        assert (await asyncio.wait_for(ends.task, 5)).ended.startswith("client: ")
        with pytest.raises(ConnectionResetError):
            await receive(ends.server)


async def test_what_came_before_is_sent_first_and_no_more_than_wanted():
    async with Ends(first_up=b"head", up_body=RequestBody(3)) as ends:
        await asyncio.get_running_loop().sock_sendall(ends.user, b"bodyGET /next")
        assert await asyncio.get_running_loop().sock_recv(ends.server, 4) == b"head"
        assert await asyncio.get_running_loop().sock_recv(ends.server, 99) == b"bod"
        await send(ends.server, b"answer")
        assert await receive(ends.user) == b"answer"
        # The user keeps its side open; one request was all that there was.
        assert await asyncio.wait_for(ends.task, 5) == TunnelBytes(7, 6, "complete")


class Looked(RequestBody):
    """A chunked body that notes how many bytes of frames are read in each turn of the event loop."""

    def __init__(self):
        super().__init__(None)
        self.turns = []
        self._same_turn = False

    def take(self, data):
        if not self._same_turn:
            self._same_turn = True
            self.turns.append(0)
            asyncio.get_running_loop().call_soon(self._turn_over)
        self.turns[-1] += max(0, len(data) - self._left)
        return super().take(data)

    def _turn_over(self):
        self._same_turn = False


@pytest.mark.parametrize("size", [1, 200_000])
async def test_the_frames_of_a_chunked_body_hold_nobody_up(size):
    """A megabyte of chunks of one byte took 0.7 s, in which no other program was served."""
    count = 20_000 if size == 1 else 5
    said = b"%x\r\n%b\r\n" % (size, bytes(size)) * count + b"0\r\n\r\n"
    body = Looked()
    async with Ends(up_body=body) as ends:
        sending = asyncio.create_task(
            asyncio.get_running_loop().sock_sendall(ends.user, said + b"GET /next")
        )
        got = b""
        while len(got) < len(said):
            got += await asyncio.get_running_loop().sock_recv(ends.server, 1 << 20)
        await sending
    assert got == said
    assert max(body.turns) <= 16_384
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    body, stream = Looked(), ProxiedStream(1, Anything())
    stream.on_frame(StreamWindow(1, 1 << 30))
    with near, far:
        carrying = asyncio.create_task(Carry(near, stream, body=body).run())
        await asyncio.get_running_loop().sock_sendall(far, said)
        async with asyncio.timeout(10):
            while not body.over:
                await asyncio.sleep(0.001)
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)
    assert stream.sent_bytes == len(said)
    assert max(body.turns) <= 16_384
    assert size == 1 or len(body.turns) < 40, "what is no frame is read in large blocks"


async def test_one_that_carries_nothing_is_ended_but_not_one_that_carries():
    async with Ends(idle_s=0.3) as ends:
        for _ in range(4):
            await asyncio.sleep(0.2)
            await asyncio.get_running_loop().sock_sendall(ends.user, b"x")
        assert not ends.task.done()
        assert (await asyncio.wait_for(ends.task, 5)).ended == "idle"
