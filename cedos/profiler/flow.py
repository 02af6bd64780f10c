"""What the profiler knows of one flow."""

from collections import deque
from dataclasses import dataclass, field

from cedos.model import Direction, FlowKey, SizeEstimate
from cedos.profiler.sizes import Prior
from cedos.profiler.stream import Stream

_MAX_PENDING = 64  # requests without an answer yet, on one connection


@dataclass(slots=True)
class Running:
    """The transfer that a flow carries now; `base_bytes` is what the flow had carried before it."""

    direction: Direction
    size: SizeEstimate
    base_bytes: int
    prior: Prior


@dataclass(slots=True)
class Flow:
    """What is known of a flow.

    `client`: this host asks and the other end serves. `opaque`: the whole flow counts as one
    transfer, as nothing (more) can be read in it. `numbered`: all its messages told where they begin.
    `ech`: the server's name may be that of a front (see `tls`).
    """

    key: FlowKey
    client: bool = True
    mark: int | None = None
    server_name: str | None = None
    ech: bool = False
    opaque: bool = True
    mptcp: bool = False
    numbered: bool = True
    observed_at_s: float | None = None
    running: Running | None = None
    pending: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_PENDING))
    streams: dict[Direction, Stream] = field(
        default_factory=lambda: {way: Stream() for way in Direction}
    )

    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = str(self.key.remote)

    @property
    def hosts(self) -> list[str]:
        """Under which names its sizes are learned, the most telling first."""
        if self.server_name and self.client:
            return [self.server_name, self.address]
        return [self.address]

    @property
    def port(self) -> int:
        """The server's port, whichever side that is."""
        return self.key.remote_port if self.client else self.key.local_port
