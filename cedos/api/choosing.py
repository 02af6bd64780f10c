"""A program that can choose its networks itself asks which ones: for one transfer, now."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cedos.model import Bulk, Direction, Label, SizeEstimate, Transfer, Urgency

_SMALL_BYTES = 100_000


class DetourRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gateway by which the transfer could go: its round trip, and the port that it connects to."""

    rtt_s: Annotated[float, Meta(ge=0, le=1e6)]
    port: Annotated[int, Meta(ge=1, le=65_535)]


class ChoiceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transfer that is about to begin.

    `redundant` says that the program can send the same over several networks and take what comes first,
    `multipath` that it can spread one transfer over several, as MPTCP and sessions do. With
    `sent_over`, a network or its interface, it was sent there `waited_s` ago, without an answer so far.
    With a `detour` all of that is only by the gateway, and it is judged whether to go there.
    """

    size_bytes: Annotated[int, Meta(ge=1, le=10**15)]
    direction: Direction = Direction.DOWN
    urgency: Urgency = Urgency.FOREGROUND
    deadline_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    server_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    redundant: bool = False
    multipath: bool = False
    sent_over: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    waited_s: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    detour: DetourRequest | None = None

    @property
    def transfer(self) -> Transfer:
        size = SizeEstimate(self.size_bytes, self.size_bytes, self.size_bytes, "hint")
        bulk = Bulk.LARGE if self.size_bytes >= _SMALL_BYTES else Bulk.SMALL
        label = Label(self.urgency, bulk)
        return Transfer(size, self.direction, label, self.deadline_s, None, self.server_name)
