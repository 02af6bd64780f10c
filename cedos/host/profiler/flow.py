"""Facts of one flow: its streams, the hints of programs, and the estimates' basis.

A stream is one direction of a connection, known only by the sequence numbers at which its messages
begin. A hint is a program's own statement on its transfers (Delphi, section 4: the API call).
"""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from cedos.controller.hint import HintRequest
from cedos.host.profiler.http import domain
from cedos.host.profiler.sizes import EstimateBasis
from cedos.model import Direction, FlowKey, SizeEstimate

_NUMBERS = 1 << 32
# A sequence number up to this far behind is a retransmission. Numbers wrap, so a body of nearly 4
# GB looks old too: the value is small, but larger than any window.
_WINDOW = 1 << 26


@dataclass(slots=True)
class Stream:
    """Positions count the stream's bytes from its beginning.

    `carried_bytes` is what it is known to have carried, from elsewhere; `position` the farthest byte
    that a packet told of. `body_at` is where a body without a stated length begins, None when there
    is none under way.
    """

    carried_bytes: int = 0
    position: int = 0
    body_at: int | None = None
    _number: int | None = None  # of the byte at `position`
    _begun_at: int = -1  # position of the last message

    def expect(self, number: int) -> None:
        ahead = self._bytes_ahead(number)
        if ahead < _NUMBERS - _WINDOW:
            self._advance(number, ahead)

    def begin(self, number: int) -> int | None:
        """Record that a message begins at this byte; return its position, None for a retransmission."""
        ahead = self._bytes_ahead(number)
        if ahead >= _NUMBERS - _WINDOW:
            behind = self.position - (_NUMBERS - ahead)
            if behind <= self._begun_at:
                return None
            self._begun_at = behind
            return behind
        if self.position + ahead == self._begun_at:
            return None
        self._advance(number, ahead)
        self._begun_at = self.position
        return self.position

    def end_body(self, position: int) -> int | None:
        """Return the length of the present body, which ends at `position`; None if there is none."""
        if self.body_at is None:
            return None
        length, self.body_at = position - self.body_at, None
        return length if length >= 0 else None

    def _bytes_ahead(self, number: int) -> int:
        if self._number is None:
            self._number, self.position = number, self.carried_bytes
        return (number - self._number) % _NUMBERS

    def _advance(self, number: int, ahead: int) -> None:
        self._number = number
        self.position += ahead


class TransferHints:
    """The hints in force; of several that fit a flow the newest counts."""

    def __init__(self) -> None:
        self._hints: dict[int, tuple[HintRequest, int | None]] = {}

    @property
    def by_mark(self) -> bool:
        return any(mark is not None for _, mark in self._hints.values())

    def add(self, number: int, hint: HintRequest, mark: int | None) -> None:
        """Add a hint under its number; `mark`: of the sockets that it is about, None: of any."""
        self._hints[number] = hint, mark

    def remove(self, number: int) -> None:
        self._hints.pop(number, None)

    def find(self, key: FlowKey, server_name: str | None, mark: int | None) -> HintRequest | None:
        for hint, marked in reversed(self._hints.values()):
            if marked in (None, mark) and fits(hint, key, server_name):
                return hint
        return None


def fits(hint: HintRequest, key: FlowKey, server_name: str | None) -> bool:
    """Return whether a flow fits all that a hint names, but for the mark."""
    return (
        hint.port in (None, key.remote_port)
        and hint.local_port in (None, key.local_port)
        and (hint.destination is None or key.remote in _prefix(hint.destination))
        and (hint.server_name is None or _names(hint.server_name, server_name))
    )


@lru_cache(maxsize=512)
def _prefix(destination: str) -> IPv4Network | IPv6Network:
    return ip_network(destination, strict=False)


def _names(wanted: str, server_name: str | None) -> bool:
    if server_name is None:
        return False
    wanted = wanted.lower().removesuffix(".")
    return server_name.endswith(wanted[1:]) if wanted.startswith("*.") else server_name == wanted


_MAX_PENDING = 64  # requests without an answer yet, on one connection


@dataclass(slots=True)
class RunningTransfer:
    """`base_bytes` is what the flow had carried before.

    `basis` None where the message states its size.
    """

    direction: Direction
    size: SizeEstimate
    base_bytes: int
    basis: EstimateBasis | None


class PendingRequest(NamedTuple):
    """A request whose answer is still to come: its method, and what it asked for."""

    method: str
    resource: str | None


@dataclass(slots=True)
class ProfiledFlow:
    """The facts of a flow.

    `client`: this host asks and the other end serves. `opaque`: the whole flow counts as one
    transfer, as nothing (more) can be read in it. `tls`: it began with a handshake of TLS; `ech`: the
    server's name may be that of a front (see `profiler.tls`). `numbered`: all its messages told where
    they begin. `body_of`: the resource that a body without a stated length belongs to; `body_chunked`:
    it comes in chunks.
    """

    key: FlowKey
    client: bool = True
    mark: int | None = None
    server_name: str | None = None
    ech: bool = False
    opaque: bool = True
    tls: bool = False
    mptcp: bool = False
    numbered: bool = True
    observed_at_s: float | None = None
    body_of: str | None = None
    body_chunked: bool = False
    running: RunningTransfer | None = None
    pending: deque[PendingRequest] = field(default_factory=lambda: deque(maxlen=_MAX_PENDING))
    streams: dict[Direction, Stream] = field(
        default_factory=lambda: {way: Stream() for way in Direction}
    )

    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = str(self.key.remote)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Under which names its sizes are learned, the most telling first: host, domain, address."""
        return _hosts(self.server_name if self.client else None, self.address)

    @property
    def answers(self) -> Direction:
        return Direction.DOWN if self.client else Direction.UP

    @property
    def port(self) -> int:
        return self.key.remote_port if self.client else self.key.local_port


@lru_cache(maxsize=1024)
def _hosts(server_name: str | None, address: str) -> tuple[str, ...]:
    if server_name is None or server_name == address:
        return (address,)
    wider = domain(server_name)
    return (server_name, address) if wider is None else (server_name, wider, address)


def ways(outgoing: bool) -> tuple[Direction, Direction]:
    """Return the direction of a message, and that of its answer."""
    return (Direction.UP, Direction.DOWN) if outgoing else (Direction.DOWN, Direction.UP)
