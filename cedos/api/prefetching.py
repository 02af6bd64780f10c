"""What a program that prefetches tells the daemon once a second, and what it is told.

The daemon sees all networks, counts what all programs spend and keeps the budgets; the program knows what
may be needed. Each tells the other, so that budgets are paced for what is still to be fetched, and
prefetches are weighed at the prices of the amounts that they take.
"""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from cedos.api.messages import ControlMessage, NetworkMessage

MOST_ITEMS: Final = 400
"""So many open items are told of, those first that would be fetched first; a request is small."""

MOST_SHOWN: Final = 50

_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]
_Text = Annotated[str, Meta(max_length=300)]


class TakingMessage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """What one way for an item takes: seconds of waiting, joules, bytes by the order of `networks`."""

    time_s: _Amount
    energy_j: _Amount
    sent: list[_Amount]


class StartedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item that is being fetched ahead of time: its ways, and which one it was."""

    ways: list[TakingMessage]
    chosen: Annotated[int, Meta(ge=0)]


class ItemMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One item as people want to see it; figures are those of the network that it is best off on.

    Attributes:
        size_bytes: what is left of it.
        network: that network; None: there is none.
        saves_s: the waiting that it is expected to save.
        energy_j: joules that it takes, without those that it spares later; negative: it spares some.
        metered_bytes: likewise.
        gain_s: what remains of all this at today's prices.
    """

    title: _Text
    cls: _Text
    size_bytes: float
    likely: float
    why: _Text
    network: str | None = None
    saves_s: float | None = None
    energy_j: float | None = None
    metered_bytes: float | None = None
    gain_s: float | None = None


class PrefetchingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program has open, has begun and has used since it asked last.

    Attributes:
        networks: those that bytes are told by.
        waiting: per open item its ways, leaving it to demand first.
        started: what was begun since.
        used_bytes: bytes received since for what was waiting, by network.
        used_j: their joules.
        counts: items by state.
    """

    program: _Name
    pid: Annotated[int, Meta(ge=1)]
    networks: Annotated[list[_Name], Meta(max_length=64)] = []
    waiting: Annotated[list[list[TakingMessage]], Meta(max_length=MOST_ITEMS)] = []
    started: Annotated[list[StartedMessage], Meta(max_length=MOST_ITEMS)] = []
    used_bytes: list[_Amount] = []
    used_j: _Amount = 0.0
    counts: dict[str, int] = {}
    items: Annotated[list[ItemMessage], Meta(max_length=MOST_SHOWN)] = []

    def __post_init__(self) -> None:
        count = len(self.networks)
        ways = [way for each in self.waiting for way in each]
        ways += [way for each in self.started for way in each.ways]
        if any(len(way.sent) != count for way in ways) or len(self.used_bytes) not in (0, count):
            raise ValueError(f"bytes are told by {count} networks; so many numbers would be right")
        if any(not each.chosen < len(each.ways) for each in self.started):
            raise ValueError("what was chosen must be one of the ways")


class RadioMessage(ControlMessage, frozen=True, kw_only=True):
    """A network's radio.

    Attributes:
        radio: its power model (`selector.energy.radio.Radio`).
        shares: the share of time that it was in each of its states.
        idle_s: seconds since it was last used; None: not while this daemon runs.
    """

    radio: dict[str, Any]
    shares: dict[str, float] = msgspec.field(default_factory=dict)
    idle_s: float | None = None


class PriceMessage(ControlMessage, frozen=True, kw_only=True):
    """A budget's price: per amount as long as it is small, and per amount contemplated.

    Attributes:
        resource: `data`, `energy` or `money`.
        networks: whose bytes it counts; none: all metered ones.
        s_per_unit: None: nothing may be spent any more.
        steps: pairs of amount and seconds per unit up to it (`selector.budgets.steps`).
    """

    resource: str
    networks: tuple[str, ...] = ()
    s_per_unit: float | None = None
    steps: tuple[tuple[float, float], ...] = ()


class PrefetchingAnswer(ControlMessage, frozen=True, kw_only=True):
    networks: list[NetworkMessage]
    radios: dict[str, RadioMessage]
    prices: list[PriceMessage]


class ProgramMessage(ControlMessage, frozen=True, kw_only=True):
    """A program that prefetches, as it was heard of last."""

    program: str
    pid: int
    age_s: float
    counts: dict[str, int]
    items: list[ItemMessage]
