"""What HTTP's messages announce as they go by."""

import ssl
from contextlib import suppress

from cedos.proxy.streams.expected_sizes import AnnouncedBodies

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


def client_hello(name: str) -> bytes:
    """As Python's own TLS sends it."""
    sent = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return sent.read()


def test_a_response_announces_its_body_once() -> None:
    bodies = AnnouncedBodies()
    assert bodies.sends(0, GET) == 0
    head = HEAD % 40_000_000
    assert bodies.comes(0, head + bytes(1_000)) == 40_000_000
    assert bodies.comes(len(head) + 1_000, HEAD % 99) == 0  # that is its body


def test_the_next_response_of_a_connection_announces_its_own() -> None:
    bodies = AnnouncedBodies()
    first = HEAD % 5
    assert bodies.comes(0, first + b"12345") == 5
    assert bodies.comes(len(first) + 5, memoryview(HEAD % 77)) == 77


def test_a_request_announces_what_it_brings() -> None:
    put = b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n"
    bodies = AnnouncedBodies()
    assert bodies.sends(0, put) == 1_000
    assert bodies.sends(len(put), bytes(1_000)) == 0
    assert bodies.sends(len(put) + 1_000, put) == 1_000


def test_responses_without_a_body_announce_none() -> None:
    bodies = AnnouncedBodies()
    bodies.sends(0, GET.replace(b"GET", b"HEAD"))
    first = HEAD % 1_000
    assert bodies.comes(0, first) == 0
    bodies.sends(len(GET) + 1, GET)
    unchanged = first.replace(b"200", b"304")
    assert bodies.comes(len(first), unchanged) == 0
    assert bodies.comes(len(first) + len(unchanged), first) == 1_000


def test_chunked_bodies_and_contradictions_are_unknown() -> None:
    for fields in (b"Transfer-Encoding: chunked", b"Content-Length: 5\r\nContent-Length: 6"):
        assert AnnouncedBodies().comes(0, b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n") == 0


def test_what_does_not_begin_as_http_announces_nothing_ever() -> None:
    bodies = AnnouncedBodies()
    assert bodies.comes(0, b"\x16\x03\x03") == 0
    assert bodies.comes(3, HEAD % 1_000) == 0
    assert bodies.sends(0, b"\x16\x03\x01") == 0
    assert bodies.sends(3, b"PUT / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n") == 0


def test_the_first_words_say_whom_they_are_for() -> None:
    plain, hidden, silent = AnnouncedBodies(), AnnouncedBodies(), AnnouncedBodies()
    plain.sends(0, GET.replace(b"Host: h", b"Host: www.example.org"))
    hidden.sends(0, memoryview(client_hello("shop.example")))
    silent.sends(0, b"SSH-2.0-OpenSSH_9.2\r\n")
    assert (plain.server_name, hidden.server_name) == ("www.example.org", "shop.example")
    assert silent.server_name is None
    plain.sends(len(GET) + 14, GET.replace(b"Host: h", b"Host: other.example"))
    assert plain.server_name == "www.example.org"
