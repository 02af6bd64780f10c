"""Heads of web servers: what tells versions apart, parts, sizes, dates and places."""

import asyncio
import socket
import ssl
from contextlib import suppress
from time import process_time

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.nginx import certificate
from kit.slow_certificates import longest_wait_s, slow_server
from yarl import URL

from cedos import web
from cedos.apps.files.objects.origin_client import OriginClient
from cedos.errors import TransferError
from cedos.web import AnswerHead, date, strong_validator

NOW = "Sat, 28 Nov 2026 09:00:00 GMT"
THEN = "Sat, 28 Nov 2026 08:00:00 GMT"


def head(status=200, **fields):
    named = {name.replace("_", "-"): [value] for name, value in fields.items()}
    return AnswerHead(URL("http://a.test/b/c"), status, "", named)


@pytest.mark.parametrize(
    ("fields", "validator"),
    [
        ({"etag": ['"a"']}, '"a"'),
        ({"etag": ["a"]}, "a"),
        ({"etag": ['W/"a"'], "date": [NOW]}, ""),
        ({"etag": ['"\xe9"'], "last-modified": [THEN]}, ""),
        ({"etag": ["x" * 1001]}, ""),
        ({"etag": [f'"{THEN}"']}, f'"{THEN}"'),
        ({"etag": [THEN]}, ""),  # asked with, it would be a date
        ({"last-modified": [THEN], "date": [NOW]}, THEN),
        ({"last-modified": [THEN]}, THEN),
        ({"last-modified": [NOW], "date": [NOW]}, ""),
        ({"last-modified": [NOW], "date": [THEN]}, ""),  # it changes again while its clock says so
        ({"last-modified": ["then"], "date": [NOW]}, ""),
    ],
)
def test_only_what_tells_every_byte_is_a_strong_validator(fields, validator):
    assert strong_validator(fields) == validator


def test_a_server_hears_which_http_is_spoken():
    """Servers that take HTTP/2 for granted without that word (ALPN) ended the connection."""
    said = ssl.MemoryBIO()
    client = web.tls_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="a.example")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    assert b"\x08http/1.1" in said.read()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("bytes 5-9/10", (5, 10)), ("Bytes 5-9/10", (5, 10)), ("bytes 5-9/*", None), ("bytes */10", None),
        ("bytes 10-19/10", None), ("items 5-9/10", None), ("bytes \u0665-9/10", None), ("", None),
        ("bytes 5-9/" + "9" * 30, None),
    ],
)  # fmt: skip
def test_a_part_is_of_known_bytes(text, part):
    assert head(206, content_range=text).part == part


@pytest.mark.parametrize(
    ("version", "more", "goes_on"),
    [
        ('"a"', {"etag": '"a"'}, True), ('"a"', {"etag": '"b"'}, False),
        ('"a"', {"etag": 'W/"a"'}, False),
        ('"a"', {}, True), ("", {"etag": '"b"'}, True), (THEN, {"etag": '"b"'}, True),
        (f'"{THEN}"', {"etag": '"b"'}, False), (f'"{THEN}"', {"etag": f'"{THEN}"'}, True),
        (THEN, {"last_modified": THEN}, True), (THEN, {"last_modified": NOW}, False),
        ('"a"', {"etag": '"a"', "content_encoding": "gzip"}, False),
    ],
)  # fmt: skip
def test_a_part_of_another_version_is_no_rest(version, more, goes_on):
    """Half of one file and half of another came out as one whole file."""
    there = head(206, content_range="bytes 5-9/10", **more)
    assert there.continues(5, version) is goes_on
    assert there.continues(5, version, 10) is goes_on
    assert not there.continues(4, version)
    assert not there.continues(5, version, 11)


@pytest.mark.parametrize(
    ("to", "there"),
    [
        ("d", "http://a.test/b/d"), ("//b.test/", "http://b.test/"), ("?q#f", "http://a.test/b/c?q"),
        ("/caf\xc3\xa9", "http://a.test/caf%C3%A9"), ("/caf\xe9", "http://a.test/caf%C3%A9"),
    ],
)  # fmt: skip
def test_a_redirect_is_read_as_browsers_do(to, there):
    assert head(302, location=to).redirect() == URL(there)
    assert head(200, location=to).redirect() is None


LETTERS = "".join(chr(0x4E00 + 7919 * at % 20_900) for at in range(4_000))


@pytest.mark.parametrize(
    "host",
    ["\u00e9." * 20_000, "xn--" + "a" * 4_000, LETTERS, "me@" + LETTERS, "\t" + LETTERS + ":80",
     "xn--" + LETTERS[:2_000].encode("punycode").decode()],
)  # fmt: skip
def test_what_cannot_be_a_name_costs_little(host):
    """A host of 64 kB took 0.7 s, in which the gateway served no client, one of 4,000 letters 1.4 s."""
    began_s = process_time()
    for start in ("http://", "/\t/"):
        with pytest.raises(TransferError):
            head(302, location=f"{start}{host}/".encode().decode("latin-1")).redirect()
    with pytest.raises(ValueError, match="name"):
        web.url_of(f" http:/\n/{host}?b#c")
    assert process_time() - began_s < 0.3


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("http://b\u00fccher.test/" + "\u00fc" * 2_000, "xn--bcher-kva.test"),
        ("http://" + "a." * 120 + "test/", "a." * 120 + "test"),
        ("http://[2001:db8:0:0:0:0:0:1]:8080/", "2001:db8::1"),
        ("/a//" + "b" * 2_000, None),
        ("http:" + "b" * 2_000, None),
    ],
)
def test_what_can_be_a_name_is_one(text, host):
    assert web.url_of(text).raw_host == host


@pytest.mark.parametrize("text", ["http://[]@/", "http://][@", "//[v1.a]@", "http://xn--ss/"])
def test_what_yarl_cannot_read_is_no_url(text):
    """Yarl raises an IndexError for some, and for others once the host is asked for."""
    with pytest.raises(ValueError, match="no URL"):
        web.url_of(text)
    with pytest.raises(TransferError):
        head(302, location=text).redirect()


@given(st.text(st.sampled_from("[]@:/v1.ax-n"), max_size=12))
def test_any_text_is_a_url_or_a_value_error(text):
    with suppress(ValueError):
        assert web.url_of(f"http://{text}").host != ""


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_any_field_is_something_or_a_transfer_error(text):
    found = head(
        301, location=text, etag=text, last_modified=text, date=text, content_range=text,
        content_length=text,
    )  # fmt: skip
    assert (date(text) is None) or found.modified_unix_s == date(text)
    assert found.validator.isascii()
    assert found.size is None or found.size >= 0
    assert found.part is None or found.part[0] < found.part[1]
    try:
        there = found.redirect()
    except TransferError:
        return
    assert there is None or there.scheme in ("http", "https")


@pytest.mark.parametrize("hints", [3, 1_000_000])
async def test_a_server_that_only_says_that_it_goes_on_is_given_up(hints):
    """Such a server had a minute for each request, and every read took 60 ms of a processor."""

    async def serve(reader, writer):
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(hints):
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
                await writer.drain()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, web.client(lambda address: socket.socket(*address[:3])) as client:
        if hints <= web.MOST_INFORMATIONAL:
            async with client.get(url) as answer:
                assert await answer.read() == b"hi"
        else:
            with pytest.raises(aiohttp.ClientResponseError):
                await asyncio.wait_for(client.get(url), 10)


@pytest.mark.parametrize("more", [b"x", b"0", b"1\r\nx\r\n"])
async def test_a_server_that_only_frames_its_body_is_given_up(more):
    """Such a server kept the gateway reading, also once the program had gone; single bytes are a body."""
    begin = b"2;a=" if more == b"x" else b""

    async def serve(reader, writer):
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + begin)
            for _ in range(30 if len(more) > 1 else 10_000):
                writer.write(more * 10_000)
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with (
        server,
        web.client(lambda address: socket.socket(*address[:3])) as client,
        client.get(url) as answer,
    ):
        if len(more) > 1:
            assert await answer.read() == b"x" * 300_000
        else:
            with pytest.raises(aiohttp.ClientPayloadError, match="frames"):
                await asyncio.wait_for(answer.read(), 10)


@pytest.mark.parametrize("ask", ["client", "origins"])
async def test_no_server_chooses_numbers_that_take_long_to_compute_with(ask):
    """One of 10,000 bits (TLS 1.2, DHE) took 0.6 s, in which the gateway served no client."""
    hello = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        hello.set_result(
            await reader.readexactly(int.from_bytes((await reader.readexactly(5))[3:]))
        )
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = web.client(lambda address: socket.socket(*address[:3]))
    origins = OriginClient(lambda _host, _port: "")
    asking = client.get(url) if ask == "client" else origins.ask(URL(url), {})
    async with server, client:
        with pytest.raises(aiohttp.ClientConnectionError):
            await asking
    await origins.close()
    said = (await hello)[38:]
    suites = said[1 + said[0] :]
    offered = {suites[at : at + 2].hex() for at in range(2, 2 + int.from_bytes(suites[:2]), 2)}
    assert "c02f" in offered  # ECDHE-RSA-AES128-GCM-SHA256
    assert not offered & {"009e", "009f", "0067", "006b", "0033", "0039", "ccaa"}


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("cut", [True, False])
async def test_a_body_that_somebody_cut_is_not_whole(tmp_path, version, cut):
    """A FIN of a router on the way ended an https body without a length, which was taken for whole."""
    keys = certificate(tmp_path, "127.0.0.1")
    protect = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    protect.load_cert_chain(keys, tmp_path / "key.pem")

    def serve():
        one, _ = listening.accept()
        with protect.wrap_socket(one, server_side=True) as protected:
            protected.recv(4096)
            protected.sendall(f"HTTP/{version} 200 OK\r\n\r\n".encode() + bytes(50_000))
            with suppress(OSError):
                if cut:
                    socket.socket.shutdown(protected, socket.SHUT_WR)
                else:
                    protected.unwrap()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.get_running_loop().run_in_executor(None, serve)
        trusting = ssl.create_default_context(cafile=str(keys))
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
        async with (
            web.client(lambda address: socket.socket(*address[:3]), tls=trusting) as client,
            client.get(url) as answer,
        ):
            if cut:
                with pytest.raises(aiohttp.ClientPayloadError, match="cut off"):
                    await answer.read()
            else:
                assert await answer.read() == bytes(50_000)
        await serving


@pytest.mark.parametrize("ask", ["client", "origins"])
async def test_costly_certificates_keep_nobody_else_waiting(ask):
    """One object of 100 kB of certificates stopped a gateway for 40 s, for all clients."""
    origins = OriginClient(lambda _host, _port: "")
    async with (
        slow_server(8) as port,
        web.client(lambda address: socket.socket(*address[:3])) as client,
    ):
        url = f"https://127.0.0.1:{port}/"

        if ask == "client":
            asking = asyncio.ensure_future(client.get(url))
        else:
            asking = asyncio.ensure_future(origins.ask(URL(url), {}))
        assert await longest_wait_s(asking) < 1
        assert isinstance(asking.exception(), aiohttp.ClientConnectorError | TimeoutError)
    await origins.close()


async def test_a_handshake_has_a_bound_that_no_certificates_pass():
    async with (
        slow_server(158) as port,
        web.client(lambda address: socket.socket(*address[:3])) as client,
    ):
        began = process_time()
        with pytest.raises(aiohttp.ClientConnectorError, match="more than 24 KiB"):
            await client.get(f"https://127.0.0.1:{port}/")
        assert process_time() - began < 1


def test_no_server_begins_another_handshake():
    """A second handshake would bring certificates of any size, in the middle of a read."""
    assert web.tls_context().options & ssl.OP_NO_RENEGOTIATION
