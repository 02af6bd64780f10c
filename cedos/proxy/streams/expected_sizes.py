"""Expected bytes of a stream: as HTTP announces, else as its server sent and took before.

TLS tells no lengths. But a server of films sends films, and one of pictures is sent pictures: what has
become larger than most transfers is taken for one of those that did.
"""

from collections.abc import Sequence
from math import inf
from statistics import median_low
from typing import Final

from cedos.host.profiler.http import (
    HttpRequest,
    HttpResponse,
    domain,
    parse_request,
    parse_response,
)
from cedos.host.profiler.sizes import SizeHistory
from cedos.host.profiler.tls import read_records
from cedos.model import Direction

_HEAD_BYTES: Final = 4_096
_BODILESS: Final = frozenset((204, 304))


class AnnouncedBodies:
    """The lengths that messages of one stream announce, both ways.

    A message counts if it begins a piece of data, as each first one does. A stream that does not begin
    as HTTP/1 is not looked at any more.
    """

    def __init__(self) -> None:
        # Before these offsets the body that was announced goes on.
        self._request_from: float = 0
        self._response_from: float = 0
        self._method = ""
        # The server of the first message, as TLS or HTTP names it; None: it does not.
        self.server_name: str | None = None
        self.says_lengths = False  # whether the first message is a request of HTTP/1

    def sends(self, offset: int, data: bytes | memoryview) -> int:
        """Return the bytes of a request's body that begins here; 0: none begins, or it is unknown."""
        # Inside of the body that was announced: nothing begins.
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
        """Return the bytes of a response's body that begins here; 0 likewise."""
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


# Data that a program sends after this pause are a new request. (An answer may take its time.)
_PAUSE_S: Final = 1.0

# The fewest known larger bursts of a server, or of its domain.
_LEAST_KNOWN: Final = 3


class ExpectedBursts:
    """The sizes of a stream's bursts: a *burst* is all data both ways until the next request.

    Call `moves` for all data, before that `begin` if the data `begins` a burst, and `ended` when the
    stream has ended: then the history learns the sizes.
    """

    def __init__(self, history: SizeHistory) -> None:
        self._history = history
        self._names: Sequence[str] = ()
        self._port = 0
        self._moved_s = -inf
        self._bytes = dict.fromkeys(Direction, 0)
        self._expected = dict.fromkeys(Direction, inf)

    def is_new_request(self, now_s: float) -> bool:
        """Tell whether the program's data now is a new request."""
        return now_s - self._moved_s > _PAUSE_S

    def begin(self, server: str, port: int) -> None:
        """Begin a burst of this server."""
        self.on_end()
        self._names, self._port = _names(server), port
        self._expected = dict.fromkeys(Direction, -1.0)

    def moves(
        self, direction: Direction, size_bytes: int, now_s: float
    ) -> list[tuple[Direction, int]]:
        """Return the bytes that are expected to follow, either way, where that is news."""
        self._moved_s = now_s
        self._bytes[direction] += size_bytes
        return [
            (way, int(expected - so_far))
            for way, so_far in self._bytes.items()
            if so_far > self._expected[way] and (expected := self._expect(way, so_far)) < inf
        ]

    def on_end(self) -> None:
        """Note that the burst is whole, and learn from it."""
        if any(self._bytes.values()):
            for way, size in self._bytes.items():
                for name in self._names:
                    self._history.learn(name, self._port, way, size)
        self.on_cut_off()

    def on_cut_off(self) -> None:
        """Note that the burst was cut off: its size is not known."""
        self._bytes = dict.fromkeys(Direction, 0)
        self._expected = dict.fromkeys(Direction, inf)

    def _expect(self, way: Direction, so_far: int) -> float:
        """Return the median of all bursts that became larger; inf: too few are known."""
        self._expected[way] = inf
        for name in self._names:
            larger = self._history.sizes_above(name, self._port, way, so_far)
            if len(larger) >= _LEAST_KNOWN:
                self._expected[way] = median_low(larger)
                break
        return self._expected[way]


def _names(server: str) -> list[str]:
    wider = domain(server)
    return [server] if wider is None else [server, wider]
