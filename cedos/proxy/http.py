"""The request that opens a proxied connection (RFC 9110 and 9112), and the proxy's own answers. Pure.

`CONNECT host:port`, or any method on `http://host/path`, whose head is rewritten for the origin. What two
programs could read in two ways is refused: one of them would be the proxy and the other the server.
Refusals say why (Proxy-Status, RFC 9209).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from typing import Final

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_AGENT = "cedos"


class RefusedError(Exception):
    """A refusal: `kind` is an error type of RFC 9209, section 2.3, `details` one line of ASCII."""

    def __init__(self, status: HTTPStatus, kind: str, details: str) -> None:
        super().__init__(details)
        self.status = status
        self.kind = kind
        self.details = "".join(c if " " <= c <= "~" else "?" for c in details)


def answer(refused: RefusedError) -> bytes:
    status = refused.status
    body = f"cedos: {refused.details}\n".encode()
    quoted = refused.details.replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=us-ascii",
        f"Content-Length: {len(body)}",
        f'Proxy-Status: {_AGENT}; error={refused.kind}; details="{quoted}"',
        "Connection: close",
    ]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 5")
    return "\r\n".join([*lines, "", ""]).encode() + body


LONGEST_HEAD: Final = 65536

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
                   r"(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?")  # fmt: skip
# Names that resolvers take for an IPv4 address because of their ending (inet_aton(3)): 8.8.2056,
# 0x8080808.
_NUMERIC = re.compile(r"(.*\.)?([0-9]+|0[xX][0-9A-Fa-f]*)\.?")
_HTTP_PORT = 80
# Fields for one connection only (RFC 9110, 7.6.1), or for the proxy alone.
_HOP_BY_HOP = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate",
     b"te", b"upgrade")
)  # fmt: skip
# A status line, also of a radio station. No program gets 101: no request asks for another protocol.
_ANSWER = re.compile(rb"(?:HTTP/[0-9](?:\.[0-9])?|ICY) (?!101)([1-9][0-9]{2})[ \r\n]")
_HEAD_END = re.compile(rb"\n\r?\n")
_MOST_HEADS: Final = 17
_LINES = re.compile(rb"[^\n]*\n")
# Python's programs end a line at a bare CR, which counts as a space (RFC 9112, 2.2).
_CONTROL = re.compile(rb"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FOLD = re.compile(rb"\r?\n[ \t]+")  # a line that goes on with the next one (RFC 9112, 5.2)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?\r\n")
_LONGEST_CHUNK_LINE: Final = 4_096
# 16 KiB of the smallest chunks take 11 ms.
_FRAMES_AT_ONCE: Final = 16_384
_PERSISTENCE = frozenset((b"connection", b"proxy-connection", b"keep-alive"))
# Fields that `Connection` may not remove. Otherwise two readers could find different body lengths.
_KEPT = frozenset((b"content-length", b"transfer-encoding", b"host"))


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """A client's request to an origin (IPv6 without brackets)."""

    tunnel: bool  # the method is CONNECT
    host: str
    port: int
    head: bytes  # the head that the origin gets, empty for a tunnel
    # The length of the body behind the head; None: it is chunked, or this is a tunnel.
    body_bytes: int | None
    rest: bytes  # the bytes behind the client's own head


class RequestParser:
    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> ProxyRequest | None:
        """Return the request once it is whole. RefusedError: it cannot be served."""
        searched = max(0, len(self._data) - 3)
        self._data += data
        # A line end before the request is forgiven (RFC 9112, 2.2).
        if self._data.startswith(b"\r\n"):
            del self._data[:2]
            searched = 0
        if self._data and not _TOKEN.match(self._data[:1]) and self._data[:1] != b"\r":
            raise _bad_request("this is not an HTTP request; the proxy itself does not speak TLS")
        end = self._data.find(b"\r\n\r\n", searched)
        if end < 0 and len(self._data) <= LONGEST_HEAD:
            return None
        if end < 0 or end > LONGEST_HEAD:
            raise RefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "http_request_error",
                f"the request's head is longer than {LONGEST_HEAD} bytes",
            )
        return _parse(bytes(self._data[:end]), bytes(self._data[end + 4 :]))


def _bad_request(details: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> RefusedError:
    return RefusedError(status, "http_request_error", details)


def _parse(head: bytes, rest: bytes) -> ProxyRequest:
    first, *lines = head.split(b"\r\n")
    line = _LINE.fullmatch(first)
    if line is None:
        raise _bad_request("the request line is not METHOD TARGET HTTP/1.1")
    method, target, major, minor = line.groups()
    if major != b"1":
        raise _bad_request("the proxy speaks HTTP/1.1", HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    fields = [_field(each) for each in lines]
    if method == b"CONNECT":
        host, port = authority(target.decode())
        if port is None:
            raise _bad_request("CONNECT wants host:port")
        return ProxyRequest(True, host, port, b"", None, rest)
    scheme, separator, remaining = target.partition(b"://")
    if not separator:
        raise _bad_request(
            "this is a proxy: the target must be a whole URL, or use CONNECT host:port"
        )
    if scheme.lower() != b"http":
        raise _bad_request(
            "only http:// can be asked for in clear; use CONNECT", HTTPStatus.NOT_IMPLEMENTED
        )
    there, path = re.fullmatch(rb"([^/?#]*)(.*)", remaining).groups()  # type: ignore[union-attr]
    host, port = authority(there.decode())
    body_bytes = _body_bytes(fields, old=minor == b"0")
    asked = _origin_form(method, path)
    text = b"\r\n".join(
        [
            b"%s %s HTTP/1.%s" % (method, asked, b"0" if minor == b"0" else b"1"),
            b"Host: " + there,
            *(b"%s: %s" % field for field in _forwarded_fields(fields)),
            b"Via: 1.%s cedos" % minor,
            b"Connection: close",
        ]
    )
    return ProxyRequest(False, host, port or _HTTP_PORT, text + b"\r\n\r\n", body_bytes, rest)


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise _bad_request("a field of the head is not `Name: value`")
    return match[1], match[2].strip(b" \t")


def _values(fields: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    return [value for name, value in fields if name.lower() == wanted]


def _single(fields: list[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    values = set(_values(fields, wanted))
    if len(values) > 1:
        raise _bad_request(f"{wanted.decode()} is there twice")
    return values.pop() if values else None


def _body_bytes(fields: list[tuple[bytes, bytes]], *, old: bool) -> int | None:
    length = _single(fields, b"content-length")
    coding = _single(fields, b"transfer-encoding")
    if coding is not None:
        if length is not None or old:
            raise _bad_request("transfer-encoding excludes content-length and HTTP/1.0")
        if coding.lower() != b"chunked":
            raise _bad_request("of transfer codings, chunked is taken", HTTPStatus.NOT_IMPLEMENTED)
        return None
    if length is None:
        return 0
    if not re.fullmatch(rb"[0-9]{1,18}", length):
        raise _bad_request("content-length is not a number")
    return int(length)


def _forwarded_fields(fields: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    named = {
        each.strip().lower()
        for value in _values(fields, b"connection")
        for each in value.split(b",")
    }
    dropped = _HOP_BY_HOP | (named - _KEPT) | {b"host"}
    return [(name, value) for name, value in fields if name.lower() not in dropped]


def _origin_form(method: bytes, path: bytes) -> bytes:
    path = path.partition(b"#")[0]
    if not path and method == b"OPTIONS":
        return b"*"
    return path if path.startswith(b"/") else b"/" + path


def authority(text: str) -> tuple[str, int | None]:
    """Split `host`, `host:port` or `[IPv6]:port`. RefusedError: it is none of them."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]@]+)(?::([0-9]{0,5}))?", text)
    if match is None:
        raise _bad_request("the target is not host:port")
    host, digits = match[1], match[2]
    port = int(digits) if digits else None
    if port is not None and not 1 <= port <= 65535:
        raise _bad_request("the target's port is not 1 to 65535")
    if host.startswith("["):
        try:
            return ipv6_text(IPv6Address(host[1:-1])), port
        except ValueError:
            raise _bad_request("the target is not an IPv6 address") from None
    if _NUMERIC.fullmatch(host):
        try:
            return str(IPv4Address(host)), port
        except ValueError:
            raise _bad_request(
                "the target's address is not written as four decimal numbers"
            ) from None
    if not _NAME.fullmatch(host):
        raise _bad_request("the target's host is not a name")
    return host, port


def ipv6_text(address: IPv6Address) -> str:
    """Return an address as text; one that embeds an IPv4 address for sockets is that one (RFC 4291)."""
    return str(address.ipv4_mapped or address)


class RequestBody:
    """The body of the only request of a connection; `length`: None: it is chunked (RFC 9112, 7.1).

    What a program sends behind it, for another host perhaps, is not for this origin.
    """

    def __init__(self, length: int | None) -> None:
        self._left = length or 0  # bytes of the body, or of its chunk
        self._line, self._lines_bytes = bytearray(), 0
        # Parses the next line between its bytes: a chunk's size, a chunk's end, or a field behind all
        # chunks; None: no line follows.
        self._next: Callable[[bytes], None] | None = self._size if length is None else None

    @property
    def over(self) -> bool:
        return not self._left and self._next is None

    def at_once(self, wanted: int) -> int:
        """Return how many bytes, `wanted` at most, one turn of the event loop may read for `take`."""
        return wanted if self._next is None else min(wanted, self._left + _FRAMES_AT_ONCE)

    def take(self, data: bytes) -> int:
        """Return how many of the next bytes are the body's. ValueError: it is not chunked as it says."""
        at = 0
        while at < len(data) and not self.over:
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                end = data.find(b"\n", at) + 1
                step = (end or len(data)) - at
                self._line += data[at : at + step]
                if len(self._line) > _LONGEST_CHUNK_LINE:
                    raise ValueError("a chunk of its body has an endless line")
                if end and self._next is not None:
                    self._next(bytes(self._line))
                    self._line.clear()
            at += step
        return at

    def _size(self, line: bytes) -> None:
        if (found := _CHUNK.fullmatch(line)) is None:
            raise ValueError("a chunk of its body has no size")
        self._left = int(found[1], 16)
        self._next = self._end if self._left else self._field

    def _end(self, line: bytes) -> None:
        if line != b"\r\n":
            raise ValueError("a chunk of its body does not end where it says")
        self._next = self._size

    def _field(self, line: bytes) -> None:
        self._lines_bytes += len(line)
        if self._lines_bytes > LONGEST_HEAD or not line.endswith(b"\r\n"):
            raise ValueError("the chunks of its body have no end")
        if line == b"\r\n":
            self._next = None
        elif _FIELD.fullmatch(line[:-2]) is None:
            raise ValueError("behind the chunks of its body comes what is no field")


class OnlyAnswer:
    """An origin's answer to the only request of a connection; its head is made to say so.

    A program whose connection stays usable could send its next request there, which may be for another
    host, and take more bytes of this origin for the answer. Of answers before it (1xx, 16 at most) only
    "100 Continue" passes, as its bare line: programs see their ends elsewhere, or take them for the final
    one. ValueError: what comes is no answer.
    """

    def __init__(self) -> None:
        self._data, self._searched = bytearray(), 0
        self._left, self.head_passed = _MOST_HEADS, False

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that the program gets now."""
        self._data += data
        passed = b""
        while not self.head_passed:
            if (end := _HEAD_END.search(self._data, self._searched)) is None:
                self._searched = max(0, len(self._data) - 2)
            if (len(self._data) if end is None else end.end()) > LONGEST_HEAD:
                raise ValueError(f"its answer's head is longer than {LONGEST_HEAD} bytes")
            if end is None:
                return passed
            head = bytes(self._data[: end.end()])
            if (answer := _ANSWER.match(head)) is None:
                raise ValueError("its answer is no HTTP")
            del self._data[: end.end()]
            self._searched = 0
            self.head_passed = not answer[1].startswith(b"1")
            # A program that has gone shows only with bytes for it.
            self._left -= 1
            if not (self._left or self.head_passed):
                raise ValueError("no answer comes behind informational ones")
            if self.head_passed:
                passed += _closing(head)
            elif answer[1] == b"100":
                passed += _CONTINUE
        passed += self._data
        self._data.clear()
        return passed


def _closing(head: bytes) -> bytes:
    # Nothing of the origin's may go on with the line that is put in.
    first, *lines = _LINES.findall(_FOLD.sub(b" ", _CONTROL.sub(b" ", head)))
    kept = (each for each in lines if each.partition(b":")[0].strip().lower() not in _PERSISTENCE)
    return b"".join([first, b"Connection: close\r\n", *kept])
