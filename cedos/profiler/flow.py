"""What the profiler knows of one flow."""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from cedos.model import Direction, FlowKey, SizeEstimate
from cedos.profiler.basis import EstimateBasis
from cedos.profiler.names import domain
from cedos.profiler.stream import Stream

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
    """What is known of a flow.

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
    """The direction a message travels in, and that of its answer."""
    return (Direction.UP, Direction.DOWN) if outgoing else (Direction.DOWN, Direction.UP)
