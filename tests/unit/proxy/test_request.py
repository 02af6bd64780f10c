"""Requests for a proxied connection: whole or in pieces, rewritten, or refused with a reason."""

from http import HTTPStatus
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.http import (
    LONGEST_HEAD,
    OnlyAnswer,
    ProxyRequest,
    RefusedError,
    RequestBody,
    RequestParser,
    answer,
    authority,
)


def parse(data):
    return RequestParser().feed(data)


def refusal(data):
    with pytest.raises(RefusedError) as caught:
        parse(data)
    return caught.value


def test_connect_is_a_tunnel_and_keeps_what_comes_behind_its_head():
    got = parse(b"CONNECT www.example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n\x16\x03\x01hello")
    assert got == ProxyRequest(True, "www.example.org", 443, b"", None, b"\x16\x03\x01hello")


def test_a_whole_url_is_rewritten_for_its_origin():
    got = parse(
        b"POST http://example.org:8080/a?b=c#d HTTP/1.1\r\n"
        b"Host: other.example\r\nAccept: */*\r\nContent-Length: 5\r\n"
        b"Proxy-Authorization: Bearer secret\r\nProxy-Connection: keep-alive\r\n"
        b"Connection: keep-alive, X-Mine, Content-Length\r\nX-Mine: 1\r\nTE: trailers\r\n"
        b"Keep-Alive: 3\r\nUpgrade: h2c\r\n\r\nhello"
    )
    assert (got.host, got.port, got.body_bytes) == ("example.org", 8080, 5)
    assert got.rest == b"hello"
    assert got.head == (
        b"POST /a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nAccept: */*\r\nContent-Length: 5\r\n"
        b"Via: 1.1 cedos\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("target", "line"),
    [
        (b"GET http://a.example HTTP/1.0", b"GET / HTTP/1.0"),
        (b"GET HTTP://a.example?x HTTP/1.1", b"GET /?x HTTP/1.1"),
        (b"OPTIONS http://a.example HTTP/1.1", b"OPTIONS * HTTP/1.1"),
        (b"GET http://[2001:db8::1]:81/ HTTP/1.1", b"GET / HTTP/1.1"),
    ],
)
def test_the_origin_sees_a_path(target, line):
    got = parse(target + b"\r\n\r\n")
    assert got.head.split(b"\r\n")[0] == line
    assert got.body_bytes == 0


def test_a_chunked_body_ends_by_itself():
    got = parse(b"PUT http://a.example/ HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\n")
    assert got.body_bytes is None
    assert b"\r\nTransfer-Encoding: Chunked\r\n" in got.head


CHUNKS = b"3;a=b\r\nabc\r\n0A\r\n" + b"0\r\n\r\n\r\n123" + b"\r\n0\r\nX: y\r\n\r\n"


@pytest.mark.parametrize("cut", [1, 2, 7, len(CHUNKS) + 1])
@pytest.mark.parametrize(("body", "length"), [(CHUNKS, None), (b"hello", 5), (b"", 0)])
def test_a_request_ends_where_its_body_does(body, length, cut):
    """Send bytes behind a chunked body: they went along, perhaps for another host."""
    said, one = (
        body + b"GET http://b.example/ HTTP/1.1\r\nCookie: secret\r\n\r\n",
        RequestBody(length),
    )
    pieces = [said[at : at + cut] for at in range(0, len(said), cut)]
    assert b"".join(each[: one.take(each)] for each in pieces) == body
    assert one.over


@pytest.mark.parametrize(
    "chunks",
    [
        b"3\nabc\n0\n\n", b"x\r\n", b"\r\n", b"-1\r\n", b"3 x\r\n", b"3\r\nabcd\r\n", b"3\r\nabc\n",
        b"0\r\nX y\r\n", b"1;" + b"a" * 5_000, b"0\r\n" + b"a: b\r\n" * 20_000, b"1" * 17 + b"\r\n",
        b"3;\ra\r\n", b"0\r\n\n",
    ],
)  # fmt: skip
def test_chunks_that_could_be_read_in_two_ways_are_none(chunks):
    with pytest.raises(ValueError, match="chunk"):
        RequestBody(None).take(chunks)


GET = b"GET http://a.example/ HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET https://a.example/ HTTP/1.1\r\n\r\n", 501),
        (b"GET http://user@a.example/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http:///x HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a.example/ HTTP/2.0\r\n\r\n", 505),
        (b"GET  http://a.example/ HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.example HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.example:0 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a.example:65536 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT ::1:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT [fe80::1%25eth0]:443 HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT a_b-.example:443 HTTP/1.1\r\n\r\n", 400),
        # Resolvers take these for addresses, some of them nearby, others not.
        *(
            (b"CONNECT %s:443 HTTP/1.1\r\n\r\n" % each, 400)
            for each in (
                b"134744072",
                b"0x8080808",
                b"8.8.2056",
                b"0X8.8.8.010",
                b"8.8.8.08",
                b"8.8.8.8.",
            )
        ),
        (GET + b"No colon\r\n\r\n", 400),
        (GET + b" folded: x\r\n\r\n", 400),
        (GET + b"Name : x\r\n\r\n", 400),
        (GET + b"A: x\nB: y\r\n\r\n", 400),
        (GET + b"A: x\rB: y\r\n\r\n", 400),
        (GET + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400),
        (GET + b"Content-Length: +3\r\n\r\n", 400),
        (GET + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (GET + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 501),
        (GET.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n", 400),
        (GET + b"A: " + LONGEST_HEAD * b"x", 431),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(data, status):
    assert refusal(data).status == status


def test_spaces_in_front_of_what_is_no_value_cost_no_more_than_other_bytes():
    """64 kB of them took 17 s, in which neither the proxy nor the gateway served others."""
    field = b"A:" + b" " * 40_000 + b"\x01"
    began_s = process_time()
    assert refusal(GET + field + b"\r\n\r\n").status == 400
    assert process_time() - began_s < 1


@given(st.lists(st.integers(1, 400), max_size=20))
def test_pieces_make_no_difference(cuts):
    data = GET + b"A: b\r\nContent-Length: 2\r\n\r\nxyz"
    parser, got, at = RequestParser(), None, 0
    for size in [*cuts, len(data)]:
        piece = data[at : at + size]
        at += size
        if piece and (got := parser.feed(piece)) is not None:
            break
    whole = parse(data)
    assert (got.head, got.body_bytes) == (whole.head, whole.body_bytes)
    assert whole.rest.startswith(got.rest)


@given(st.text(max_size=30), st.integers(1, 65535))
def test_what_an_authority_means_is_what_it_says(host, port):
    try:
        found = authority(f"{host}:{port}")
    except RefusedError:
        return
    assert found[1] == port
    assert found[0] == host or ":" in found[0]


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,12}", fullmatch=True),
            st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
        ),
        max_size=12,
    )
)
def test_a_head_that_was_rewritten_is_one_head(fields):
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    try:
        got = parse(GET + lines.encode() + b"\r\nrest")
    except RefusedError:
        return
    assert got.rest == b"rest"
    assert got.head.count(b"\r\n\r\n") == 1
    names = [line.partition(b":")[0].lower() for line in got.head.split(b"\r\n")[1:-2]]
    assert names.count(b"host") == names.count(b"connection") == 1


def test_a_refusal_says_what_is_wrong_to_people_and_to_programs():
    response = answer(
        RefusedError(HTTPStatus.BAD_GATEWAY, "connection_refused", 'a "b" \\ \r\n\r\n\x00ü')
    )
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 502 Bad Gateway\r\n")
    assert b'\r\nProxy-Status: cedos; error=connection_refused; details="a \\"b\\"' in head
    assert f"\r\nContent-Length: {len(body)}\r\n".encode() in head
    assert body == b'cedos: a "b" \\ ??????\n'


def test_an_answers_head_says_that_the_connection_ends():
    """Repeated and oddly spaced fields go, no line goes on with ours; bytes behind the head stay.

    Programs take 103 for the final answer (Python's), end its head at a line that begins with CR (curl),
    or a line at a bare CR (Python's; a field behind it kept the connection of an HTTP/1.0 answer).
    """
    early = (
        b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\rX: y\nHTTP/1.1 200 OK\r\n\r\n"
        b"HTTP/1.1 100 Go on\r\n\rX: y\nHTTP/1.1 200 OK\r\n\r\n"
    )
    said = (
        b"HTTP/1.0 200 OK\n x\r\nConnection : keep-alive\n\tkeep-alive\r\nX: \xff\r\n folded\r\n"
        b"KEEP-ALIVE: 5\r\nProxy-Connection: keep-alive\r\n"
        b"Y: a\rKeep-Alive: 5\x0bb\r\n\r\rKeep-Alive: 5\r\n\0Keep-Alive: 5\r\n"
        b"\nHTTP/1.1 200 OK\r\n\r\n"
    )
    closing = (
        b"HTTP/1.1 100 Continue\r\n\r\n"
        b"HTTP/1.0 200 OK x\r\nConnection: close\r\nX: \xff folded\r\n"
        b"Y: a Keep-Alive: 5 b Keep-Alive: 5 Keep-Alive: 5\r\n\nHTTP/1.1 200 OK\r\n\r\n"
    )
    for step in (1, 7, 1000):
        only, come = OnlyAnswer(), early + said
        passed = [only.feed(come[at : at + step]) for at in range(0, len(come), step)]
        assert b"".join(passed) == closing


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"\nHTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1\t100 Continue\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 17,
        b"HTTP/1.1 200 OK\r\n" + b"x" * LONGEST_HEAD,
    ],
)
def test_no_answer_is_passed_on_that_could_be_read_in_two_ways(said):
    with pytest.raises(ValueError, match="answer"):
        OnlyAnswer().feed(said)
    most = b"HTTP/1.1 103 Early Hints\r\n\r\n" * 16 + b"ICY 200 OK\n\n"
    assert OnlyAnswer().feed(most) == b"ICY 200 OK\nConnection: close\r\n\n"
