import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.profiler.http import HttpResponse, parse_request, parse_response


def request(*lines, body=b""):
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "HEAD", "PATCH", "DELETE", "OPTIONS"])
def test_every_method(method):
    parsed = parse_request(f"{method} / HTTP/1.0\r\n\r\n".encode())
    assert (parsed.method, parsed.host, parsed.content_length) == (method, None, None)


def test_a_tunnel_names_its_other_end():
    parsed = parse_request(request("CONNECT Far.example:443 HTTP/1.1", "Host: proxy:3128"))
    assert (parsed.method, parsed.host) == ("CONNECT", "far.example")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("192.0.2.1:80", "192.0.2.1"), ("[2001:db8::1]:80", "2001:db8::1"),
        ("[2001:db8::1", "2001:db8::"), ("a_b.example.", "a_b.example"), ("", None), ("a b", None),
        ("a/../b", None), ("ex\u00e4mple.org", None), ("x" * 254, None), ("[evil<>]", None),
    ],
)  # fmt: skip
def test_hosts(host, expected):
    parsed = parse_request(request("GET / HTTP/1.1", f"Host: {host}"))
    assert parsed.host == expected


def test_responses():
    payload = request("HTTP/1.1 200 OK", "Server: x", "Content-Length: 10000000")
    assert parse_response(payload + bytes(1000)) == HttpResponse(
        200, 10_000_000, False, len(payload)
    )
    payload = request("HTTP/1.1 206", "Transfer-Encoding: Chunked")
    assert parse_response(payload) == HttpResponse(206, None, True, len(payload))
    assert parse_response(b"HTTP/1.0 404 Not Found\r\n\r\n") == HttpResponse(404, None, False, 26)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("0", 0), ("-1", None), ("+1", None), ("1_0", None), ("0x10", None), ("1 0", None),
        ("", None), ("\u00b2", None), ("9" * 18, 10**18 - 1), ("9" * 5000, None),
        ("5\r\nContent-Length: 5", 5), ("5\r\nContent-Length: 6", None),
    ],
)  # fmt: skip
def test_lengths(length, expected):
    parsed = parse_response(request("HTTP/1.1 200 OK", f"Content-Length: {length}"))
    assert parsed.content_length == expected


def test_a_head_cut_anywhere_says_nothing_wrong():
    whole = request("POST / HTTP/1.1", "Host: www.example.org", "Content-Length: 123456")
    for cut in range(5, len(whole)):
        parsed = parse_request(whole[:cut])
        assert parsed.host in (None, "www.example.org")
        assert parsed.content_length in (None, 123_456)
        assert parsed.head_bytes is None
    whole = request("HTTP/1.1 200 OK", "Content-Length: 123456")
    for cut in range(12, len(whole)):
        answer = parse_response(whole[:cut])
        assert answer.content_length in (None, 123_456)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"GET", b"GETx", b"GET / SPDY/3\r\n\r\n", b"FETCH / HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK",
    ],
)  # fmt: skip
def test_not_a_request(payload):
    assert parse_request(payload) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"HTTP/1.1 ", b"HTTP/2.0 200 OK\r\n", b"HTTP/1.1 999 \r\n", b"HTTP/1.1 099 \r\n",
        b"GET ",
    ],
)  # fmt: skip
def test_not_a_response(payload):
    assert parse_response(payload) is None


FIELDS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            lambda name, value, end: name + b":" + value + end,
            st.sampled_from([b"Host", b"content-length", b"Transfer-Encoding", b"X"]),
            st.one_of(st.binary(max_size=20), st.integers(-5, 10**20).map(lambda n: b"%d" % n)),
            st.sampled_from([b"\r\n", b"\n", b"\r\n\r\n", b""]),
        ),
    ),
    max_size=8,
).map(b"".join)


@given(st.sampled_from([b"GET / HTTP/1.1\r\n", b"CONNECT ", b"PUT ", b"[", b""]), FIELDS)
def test_hostile_requests_never_raise(beginning, rest):
    parsed = parse_request(beginning + rest)
    if parsed is not None:
        assert parsed.content_length is None or 0 <= parsed.content_length < 10**18
        assert not (parsed.chunked and parsed.content_length is not None)
        assert parsed.host is None or 0 < len(parsed.host) <= 253


@pytest.mark.parametrize(
    ("body", "first"),
    [
        (b"1a2b\r\n", 0x1A2B), (b"40;name=value\r\nx", 0x40), (b"00000000010\r\n", 16),
        (b"0\r\n\r\n", None), (b"1a2b", None), (b"\r\n", None), (b"-5\r\n", None),
        (b"0x5\r\n", None), (b"fffffffffffffffff\r\n", None), (b"", None),
    ],
)  # fmt: skip
def test_the_first_chunk(body, first):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    told = parse_response(head + body)
    assert told.first_chunk == first
    stated = parse_response(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)
    assert stated.first_chunk is None


def test_a_target_is_told_whole_or_not_at_all():
    for payload in (b"GET /x HTTP", b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\n"):
        cut = parse_request(payload)
        assert cut.target is None


@pytest.mark.parametrize(
    ("range_", "length"),
    [
        (b"bytes 0-99/5000", 100), (b"bytes 100-100/*", 1), (b"bytes */5000", None),
        (b"bytes 9-2/5000", None), (b"bytes -5/5000", None), (b"pages 0-99/5000", None),
        (b"bytes 0-" + b"9" * 30, None), (b"", None),
    ],
)  # fmt: skip
def test_a_part_in_chunks_tells_its_length_by_its_range(range_, length):
    lines = b"\r\nTransfer-Encoding: chunked\r\nContent-Range: " + range_ + b"\r\n\r\n"
    told, whole = (
        parse_response(b"HTTP/1.1 206 P" + lines),
        parse_response(b"HTTP/1.1 200 O" + lines),
    )
    assert told.content_length == length
    assert whole.content_length is None  # a range that nobody asked for says nothing
