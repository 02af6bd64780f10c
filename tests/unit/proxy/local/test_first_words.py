"""First bytes of programs: sent at once if that does no harm, and never twice if that would."""

import asyncio

import pytest

from cedos.proxy.gateway.origin import Origins
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.local_proxy import Fail
from cedos.proxy.local.program_request import may_be_repeated
from cedos.proxy.splice import reset_on_close

GET, POST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\n\r\n"
HELLO = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00"
EARLY_DATA = b"\x17\x03\x03\x00\x04POST"


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (GET, True), (b"HEAD / HTTP/1.1\r\n\r\n", True), (b"OPTIONS * HTTP/1.1\r\n\r\n", True),
        (HELLO, True), (HELLO[:8], True), (HELLO + EARLY_DATA, False), (POST, False),
        (GET + POST, False), (GET[:-1], False), (GET + b"x", False),
        (b"GETX / HTTP/1.1\r\n\r\n", False), (b"SSH-2.0-x\r\n", True),
        (b"SSH-2.0-x\r\nmore", False), (b"SSH-2.0", False), (b"", False), (b"\x16", False),
    ],
)  # fmt: skip
async def test_what_may_be_said_twice(words, may):
    assert may_be_repeated(words) is may


async def answers(reader, writer):
    said = await reader.read(100)
    writer.write(b"you said " + said)
    await writer.drain()


class Held:
    """The gateway reaches no origin before it is let."""

    def __init__(self, ends, monkeypatch):
        self.ends = ends
        self.let = asyncio.Event()
        connect = Origins.connect

        async def held(origins, host, port, asker=None):
            if asker is not None:
                await self.let.wait()
            return await connect(origins, host, port, asker)

        monkeypatch.setattr(Origins, "connect", held)

    async def come(self):
        """Return the bytes at the gateway for the only origin, once there are any, or after a while."""
        for _ in range(60):
            for session in self.ends.gateway._sessions.values():
                for stream in session._streams.streams.values():
                    if stream.waiting:
                        return b"".join(map(bytes, stream.waiting))
            await asyncio.sleep(0.005)
        return b""


@pytest.mark.parametrize(
    ("fail", "words", "early"),
    [
        (Fail.CLOSED, b"word", True), (Fail.OPEN, GET, True), (Fail.OPEN, HELLO, True),
        (Fail.OPEN, POST, False),
    ],
)  # fmt: skip
async def test_first_words_do_not_wait_for_the_origin_unless_they_might_be_said_twice(
    ends, monkeypatch, fail, words, early
):
    await ends.start(fail=fail)
    held = Held(ends, monkeypatch)
    reader, writer = await ends.forward(await ends.origin(answers))
    writer.write(words)
    assert await held.come() == (words if early else b"")
    held.let.set()
    assert await asyncio.wait_for(reader.read(), 5) == b"you said " + words
    writer.close()


@pytest.mark.parametrize("words", [GET, POST])
async def test_who_goes_direct_after_all_says_everything_there_once(ends, monkeypatch, words):
    await ends.start(fail=Fail.OPEN)
    held = Held(ends, monkeypatch)

    async def silent(*_):
        await held.come()
        raise GatewayUnreachableError("nothing is heard of it")

    monkeypatch.setattr(GatewayLink, "_accepted", silent)
    reader, writer = await ends.forward(await ends.origin(answers))
    writer.write(words)
    assert await asyncio.wait_for(reader.read(), 5) == b"you said " + words
    writer.close()


async def test_a_program_that_goes_meanwhile_is_no_orderly_end(ends, monkeypatch):
    await ends.start()
    held = Held(ends, monkeypatch)
    broke = asyncio.get_running_loop().create_future()

    async def waits(reader, writer):
        try:
            await reader.read()
            broke.set_result(False)
        except ConnectionResetError:
            broke.set_result(True)

    _, writer = await ends.forward(await ends.origin(waits))
    await asyncio.sleep(0.1)
    reset_on_close(writer.get_extra_info("socket"))
    writer.close()
    await asyncio.sleep(0.1)
    held.let.set()
    assert await asyncio.wait_for(broke, 5)
