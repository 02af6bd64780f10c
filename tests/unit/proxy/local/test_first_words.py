"""First bytes of programs: sent at once if that does no harm, and never twice if that would."""

import asyncio
import os
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.proxy_requests import http_connect, socks_connect

from cedos.proxy.gateway.origin import Origins
from cedos.proxy.http import ESTABLISHED, RefusedError
from cedos.proxy.local import local_proxy
from cedos.proxy.local.gateway_link import GatewayLink, GatewayUnreachableError
from cedos.proxy.local.local_proxy import Fail
from cedos.proxy.local.program_request import may_be_repeated
from cedos.proxy.local.socks import (
    SocksError,
    SocksParser,
    SocksReply,
    SocksRequest,
    reply,
    reply_of,
)
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
            if isinstance(asker, bytes):  # a client's key
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


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize(
    ("asked", "yes"),
    [
        (socks_connect, b"\5\0" + reply(SocksReply.SUCCEEDED)),
        (http_connect, ESTABLISHED),
    ],
)
async def test_a_program_hears_yes_before_the_gateway_reached_the_origin(
    ends, monkeypatch, asked, yes
):
    await ends.start()
    held = Held(ends, monkeypatch)
    reader, writer = await ends.ask(asked(await ends.origin(answers)))
    assert await asyncio.wait_for(reader.readexactly(len(yes)), 5) == yes
    writer.write(GET)
    assert await held.come() == GET
    held.let.set()
    assert await asyncio.wait_for(reader.read(), 5) == b"you said " + GET
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_an_origin_that_serves_again_is_not_waited_for(ends, monkeypatch):
    await ends.start()
    port = await ends.origin(answers)
    ends.proxy._refused.put((os.geteuid(), "127.0.0.1", port), None, os.geteuid())
    reader, writer = await ends.ask(http_connect(port) + GET)
    assert await asyncio.wait_for(reader.read(), 5) == ESTABLISHED + b"you said " + GET
    writer.close()
    held = Held(ends, monkeypatch)
    reader, writer = await ends.ask(http_connect(port) + GET)
    assert await asyncio.wait_for(reader.readexactly(len(ESTABLISHED)), 5) == ESTABLISHED
    held.let.set()
    assert await asyncio.wait_for(reader.read(), 5) == b"you said " + GET
    writer.close()


@pytest.mark.usefixtures("nothing_is_near")
async def test_origins_that_refused_are_remembered_up_to_a_number(ends, closed_port, monkeypatch):
    monkeypatch.setattr(local_proxy, "_MOST_REFUSED", 1)
    await ends.start()
    for host in ("127.0.0.1", "127.0.0.2"):
        await ends.why(http_connect(closed_port, host))
    assert len(ends.proxy._refused) == 1
    assert (os.geteuid(), "127.0.0.2", closed_port) in ends.proxy._refused


@pytest.mark.parametrize("words", [GET, POST])
async def test_who_goes_direct_after_all_says_everything_there_once(ends, monkeypatch, words):
    await ends.start(fail=Fail.OPEN)
    held = Held(ends, monkeypatch)

    async def silent(*_):
        await held.come()
        raise GatewayUnreachableError("nothing is heard of it")

    monkeypatch.setattr(GatewayLink, "_wait_accepted", silent)
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


GREETING = b"\x05\x01\x00"
TO_NAME = b"\x05\x01\x00\x03\x0bexample.org\x01\xbb"


def fed(*parts):
    parser, answers = SocksParser(), b""
    found = None
    for part in parts:
        found = parser.feed(part)
        answers += parser.answers
    return found, answers


@pytest.mark.parametrize(
    ("request_bytes", "host", "port"),
    [
        (TO_NAME, "example.org", 443),
        (b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50", "192.0.2.1", 80),
        (b"\x05\x01\x00\x04\x20\x01\x0d\xb8" + bytes(11) + b"\x01\x00\x16", "2001:db8::1", 22),
        (b"\x05\x01\x00\x03\x09192.0.2.1\x00\x50", "192.0.2.1", 80),
        (b"\x05\x01\x00\x03\x0b2001:db8::1\x00\x50", "2001:db8::1", 80),
    ],
)
def test_a_program_names_where_it_wants_to_go(request_bytes, host, port):
    found, answers = fed(GREETING, request_bytes + b"GET")
    assert found == SocksRequest(host, port, b"GET")
    assert answers == b"\x05\x00"


def test_in_any_pieces_it_is_the_same():
    whole = GREETING + TO_NAME
    assert fed(*(bytes([each]) for each in whole)) == fed(whole)


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"\x04\x01\x00\x50", b""),
        (b"\x05\x01\x02", b"\x05\xff"),  # passwords alone
        (GREETING + b"\x05\x03" + TO_NAME[2:], reply(SocksReply.COMMAND_UNKNOWN)),
        (GREETING + b"\x05\x02" + TO_NAME[2:], reply(SocksReply.COMMAND_UNKNOWN)),
        (GREETING + b"\x05\x01\x00\x09\x01\x01", reply(SocksReply.ADDRESS_TYPE_UNKNOWN)),
        (GREETING + b"\x05\x01\x00\x03\x03a b\x00\x50", reply(SocksReply.FAILURE)),
        (GREETING + b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x00", reply(SocksReply.FAILURE)),
    ],
)
def test_what_cannot_be_done_is_answered(data, answer):
    with pytest.raises(SocksError) as raised:
        fed(data)
    assert raised.value.answer == answer


@given(st.binary(max_size=300))
def test_anything_is_a_request_an_error_or_unfinished(data):
    try:
        found, _ = fed(b"\x05\x01\x00" + data)
    except SocksError:
        return
    assert found is None or (found.host and 0 < found.port < 65_536)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (HTTPStatus.FORBIDDEN, "destination_ip_prohibited", SocksReply.NOT_ALLOWED),
        (HTTPStatus.BAD_GATEWAY, "connection_refused", SocksReply.REFUSED),
        (HTTPStatus.BAD_GATEWAY, "dns_error", SocksReply.HOST_UNREACHABLE),
        (HTTPStatus.GATEWAY_TIMEOUT, "connection_timeout", SocksReply.TTL_EXPIRED),
        (HTTPStatus.SERVICE_UNAVAILABLE, "connection_limit_reached", SocksReply.FAILURE),
    ],
)
def test_a_refusal_keeps_its_meaning(status, kind, code):
    assert reply_of(RefusedError(status, kind, "")) is code
