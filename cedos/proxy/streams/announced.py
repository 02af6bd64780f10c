"""What the messages on a stream say of themselves, as their first bytes go by: whom for, how large."""

from math import inf
from typing import Final

from cedos.profiler.http import HttpRequest, HttpResponse, parse_request, parse_response
from cedos.profiler.tls.client_hello import read_records

_HEAD_BYTES: Final = 4_096
_BODILESS: Final = frozenset((204, 304))


class AnnouncedBodies:
    """Of one stream, both ways.

    A message counts where it begins with what is sent at once, as every first one does. What does not
    begin as HTTP/1 is not looked at any more.

    Attributes:
        server_name: whom the first message is for, as TLS or HTTP says it; None: it does not.
        says_lengths: whether that is a request of HTTP/1.
    """

    def __init__(self) -> None:
        # Nothing begins before: the body that was announced goes on.
        self._request_from: float = 0
        self._response_from: float = 0
        self._method = ""
        self.server_name: str | None = None
        self.says_lengths = False

    def sends(self, offset: int, data: bytes | memoryview) -> int:
        """The body of a request that begins here, in bytes; 0: none begins, or nobody knows."""
        if offset < self._request_from:
            return 0
        head = bytes(data[:_HEAD_BYTES])
        request = parse_request(head)
        if offset == 0:
            self.says_lengths = request is not None
            hello = read_records(head) if request is None else None
            self.server_name = hello.name if hello else request.host if request else None
        if request is None:
            self._request_from = offset or inf
            return 0
        self._method = request.method
        size = request.content_length or 0
        self._request_from = offset + _head_bytes(request, data) + size
        return size

    def comes(self, offset: int, data: bytes | memoryview) -> int:
        """The same of a response."""
        if offset < self._response_from:
            return 0
        response = parse_response(bytes(data[:_HEAD_BYTES]))
        if response is None:
            self._response_from = offset or inf
            return 0
        size = response.content_length or 0
        if self._method == "HEAD" or response.status < 200 or response.status in _BODILESS:
            size = 0
        self._response_from = offset + _head_bytes(response, data) + size
        return size


def _head_bytes(message: HttpRequest | HttpResponse, data: bytes | memoryview) -> int:
    return len(data) if message.head_bytes is None else message.head_bytes
