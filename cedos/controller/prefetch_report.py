"""A prefetching program's report: what it may still fetch, what it has begun, and what it has used."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

# The limit of pending items in one report; those to fetch first come first.
MOST_ITEMS: Final = 400

_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]


class TakingMessage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The cost of one way to get an item: seconds, joules, and bytes in the order of `networks`."""

    time_s: _Amount
    energy_j: _Amount
    sent: list[_Amount]


class StartedMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item whose prefetch has begun: its ways, and the chosen one."""

    ways: list[TakingMessage]
    chosen: Annotated[int, Meta(ge=0)]


class PrefetchReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a prefetching program, and its use since the last report.

    Attributes:
        networks: the order of networks in lists of bytes.
        waiting: the ways for each pending item; the first is to fetch it on demand.
        started: items whose prefetch began.
        used_bytes: received bytes of pending items, by network.
        used_j: the energy for them.
    """

    program: _Name
    pid: Annotated[int, Meta(ge=1)]
    networks: Annotated[list[_Name], Meta(max_length=64)] = []
    waiting: Annotated[list[list[TakingMessage]], Meta(max_length=MOST_ITEMS)] = []
    started: Annotated[list[StartedMessage], Meta(max_length=MOST_ITEMS)] = []
    used_bytes: list[_Amount] = []
    used_j: _Amount = 0.0

    def __post_init__(self) -> None:
        count = len(self.networks)
        ways = [way for each in self.waiting for way in each]
        ways += [way for each in self.started for way in each.ways]
        if any(len(way.sent) != count for way in ways) or len(self.used_bytes) not in (0, count):
            raise ValueError(f"bytes are told by {count} networks; so many numbers are needed")
        if any(not each.chosen < len(each.ways) for each in self.started):
            raise ValueError("what was chosen must be one of the ways")
