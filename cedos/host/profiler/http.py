"""HTTP/1.x: what the first bytes of a message tell of its size (RFC 9112; Delphi, section 4).

A head may be cut anywhere. A field counts only if its whole line is present and in the head.
Contradictory or absurd values are unknown, never an exception. Server names come in hostile bytes,
too: they are checked, in lower case, without a final dot.
"""

import re
from typing import NamedTuple

_LONGEST = 253  # a domain name in text (RFC 1035, 2.3.4)
_NAME = re.compile(rb"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?")


def server_name(raw: bytes) -> str | None:
    """Return the DNS name or IPv4 address in `raw`, or None.

    Underscores pass, as real servers use them.
    """
    name = raw.lower()
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        return None
    return name.decode("ascii").removesuffix(".")


def domain(name: str) -> str | None:
    """Return the probable domain of a server name, as `.example.org`; None for an address.

    Guessed without a list of public suffixes: the last two labels, or three where the second is one
    under which names are registered (`co.uk`). A wrong guess only makes a wider neighbourhood.
    """
    labels = name.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or ":" in name:
        return None
    registered = len(labels[-1]) == 2 and labels[-2] in _REGISTRIES
    return "." + ".".join(labels[-3 if registered else -2 :])


_REGISTRIES = frozenset({"ac", "co", "com", "edu", "go", "gov", "gob", "ne", "net", "or", "org"})


_METHODS = {
    word: word.decode()
    for word in (b"GET", b"POST", b"PUT", b"HEAD", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT")
}
_HEX = frozenset(b"0123456789abcdefABCDEF")
_LONGEST_TARGET = 2048
_LONGEST_NUMBER = 18  # decimal digits of a length: an exabyte


class HttpRequest(NamedTuple):
    """The head of a request.

    `host` is a name or address without its port (of CONNECT: the tunnel's other end), None where
    missing or cut off; `content_length` None where not stated or chunked; `head_bytes` None where the
    head is cut; `target` as sent, None where it is cut or over 2 KB.
    """

    method: str
    host: str | None
    content_length: int | None
    chunked: bool
    head_bytes: int | None
    target: bytes | None = None


class HttpResponse(NamedTuple):
    """The head of a response; fields as in `HttpRequest`.

    `content_length` is also that of a part of a resource, by its range; `first_chunk` the bytes of a
    chunked body's first chunk, where that is seen.
    """

    status: int
    content_length: int | None
    chunked: bool
    head_bytes: int | None
    first_chunk: int | None = None


def parse_request(payload: bytes) -> HttpRequest | None:
    method = _METHODS.get(payload[: max(0, payload.find(b" ", 0, 8))])
    if method is None:
        return None
    line_end = payload.find(b"\r\n")
    if line_end >= 0 and payload[max(0, line_end - 8) : line_end - 1] != b"HTTP/1.":
        return None
    head, head_bytes = _head(payload)
    length, chunked = _body(head)
    if method == "CONNECT":
        tunnel = payload[8 : payload.find(b" ", 8)]
        return HttpRequest(method, _host(tunnel), length, chunked, head_bytes)
    host = _field(head, b"\r\nhost:")
    seen = 0 <= line_end <= _LONGEST_TARGET
    target = payload[len(method) + 1 : line_end - 9] if seen else None
    return HttpRequest(method, _host(host) if host else None, length, chunked, head_bytes, target)


def parse_response(payload: bytes) -> HttpResponse | None:
    status = payload[9:12]
    if payload[:7] != b"HTTP/1." or len(status) != 3 or not status.isdigit():
        return None
    if not b"100" <= status < b"600":
        return None
    head, head_bytes = _head(payload)
    length, chunked = _body(head)
    if length is None and status == b"206":
        length = _part(head)
    first = _chunk(payload[head_bytes : head_bytes + 20]) if chunked and head_bytes else None
    return HttpResponse(int(status), length, chunked, head_bytes, first)


def _part(head: bytes) -> int | None:
    """Return the length of a part of a resource by its `Content-Range` (RFC 9110, 14.4)."""
    unit, _, rest = (_field(head, b"\r\ncontent-range:") or b"").partition(b" ")
    first, _, last = rest.partition(b"/")[0].partition(b"-")
    if unit != b"bytes" or not (first.isdigit() and last.isdigit()):
        return None
    if max(len(first), len(last)) > _LONGEST_NUMBER or int(last) < int(first):
        return None
    return int(last) - int(first) + 1


def _chunk(body: bytes) -> int | None:
    """Return the size of the chunk that begins here (RFC 9112, 7.1); None if it is missing, or 0."""
    line, found, _ = body.partition(b"\r\n")
    digits = line.split(b";", 1)[0].strip()
    if not found or not 0 < len(digits) <= 12 or not _HEX.issuperset(digits):
        return None
    return int(digits, 16) or None


def _head(payload: bytes) -> tuple[bytes, int | None]:
    """Return the head's complete lines in lower case with their ends, and the offset of the body."""
    end = payload.find(b"\r\n\r\n")
    if end >= 0:
        return payload[: end + 2].lower(), end + 4
    return payload[: payload.rfind(b"\r\n") + 2].lower(), None


def _field(head: bytes, name: bytes) -> bytes | None:
    at = head.find(name)
    if at < 0:
        return None
    at += len(name)
    return head[at : head.find(b"\r\n", at)].strip()


def _body(head: bytes) -> tuple[int | None, bool]:
    """Return the body's stated length, and whether it is chunked, which overrules a length."""
    # Most heads have neither field or a length alone: these are told without a further call.
    if head.find(b"\r\ntransfer-encoding:") >= 0:
        coding = _field(head, b"\r\ntransfer-encoding:") or b""
        if coding.endswith(b"chunked"):
            return None, True
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return None, False
    text = head[at + 17 : head.find(b"\r\n", at + 17)].strip()
    if not text.isdigit() or len(text) > _LONGEST_NUMBER:
        return None, False
    if _field(head[at + 17 :], b"\r\ncontent-length:") not in (None, text):
        return None, False  # two lengths: an attack
    return int(text), False


def _host(text: bytes) -> str | None:
    if text.startswith(b"["):
        return _ipv6(text)
    return server_name(text.split(b":", 1)[0])


def _ipv6(text: bytes) -> str | None:
    inner = text[1 : text.find(b"]")]
    return (
        inner.decode("ascii") if 2 <= len(inner) <= 45 and _IPV6_DIGITS.issuperset(inner) else None
    )


_IPV6_DIGITS = frozenset(b"0123456789abcdefABCDEF:.")
