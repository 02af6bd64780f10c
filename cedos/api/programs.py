"""Messages of programs: hints, choices and prefetching.

Hints are IntNW's labels (dissertation, 2.2.2). A prefetching program and the daemon complement
each other: the daemon sees all networks, counts the use of all programs and keeps the budgets, and
the program knows which items may be needed.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cedos.api.messages import ControlMessage, NetworkMessage
from cedos.model import Bulk, Direction, Label, SizeEstimate, Transfer, Urgency


class HintAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The number of a stored hint.

    `network` is where such transfers go now. `mark` is for the sockets of a `program`.
    """

    number: int
    network: str | None = None
    mark: int | None = None


_SMALL_BYTES = 100_000


class DetourRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway that could carry the transfer: its round-trip time, and the server's port."""

    rtt_s: Annotated[float, Meta(ge=0, le=1e6)]
    port: Annotated[int, Meta(ge=1, le=65_535)]


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transfer that is about to begin."""

    size_bytes: Annotated[int, Meta(ge=1, le=10**15)]
    direction: Direction = Direction.DOWN
    urgency: Urgency = Urgency.FOREGROUND
    deadline_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    server_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    redundant: bool = False  # the program can send copies over several networks
    # The program can spread one transfer over several networks, as MPTCP and sessions do.
    multipath: bool = False
    # A network or interface over which it was sent `waited_s` ago without an answer.
    sent_over: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    waited_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    # How many programs wait for parts of it, each as long as all of it takes.
    programs: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    # All of this is possible only through the gateway, and the daemon decides whether to use it.
    detour: DetourRequest | None = None

    @property
    def transfer(self) -> Transfer:
        size = SizeEstimate(self.size_bytes, self.size_bytes, self.size_bytes, "hint")
        bulk = Bulk.LARGE if self.size_bytes >= _SMALL_BYTES else Bulk.SMALL
        label = Label(self.urgency, bulk)
        return Transfer(size, self.direction, label, self.deadline_s, None, self.server_name)


class RadioMessage(ControlMessage, frozen=True, kw_only=True):
    """The radio of a network."""

    radio: dict[str, Any]  # its power model (`cedos.selector.energy.Radio`)
    # The share of time in each state.
    shares: dict[str, float] = msgspec.field(default_factory=dict)
    # Seconds since the last use; None: it was not used since the daemon started.
    idle_s: float | None = None


class PriceMessage(ControlMessage, frozen=True, kw_only=True):
    """The price of a budget."""

    resource: str  # `data`, `energy` or `money`
    networks: tuple[str, ...] = ()  # the networks that it counts; none: all metered ones
    # The price of a small amount; None: nothing may be spent any more.
    s_per_unit: float | None = None
    # Pairs of an amount and the seconds per unit up to it (`selector.budgets.steps`).
    steps: tuple[tuple[float, float], ...] = ()


class PrefetchingAnswer(ControlMessage, frozen=True, kw_only=True):
    networks: list[NetworkMessage]
    radios: dict[str, RadioMessage]
    prices: list[PriceMessage]
