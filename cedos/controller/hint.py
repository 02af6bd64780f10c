"""A program's hint on its transfers (IntNW; dissertation, 2.2.2), and its report on prefetching."""

from ipaddress import ip_network
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.controller.rule import refuse_zone
from cedos.model import Bulk, Direction, Label, Urgency

MAX_LIFETIME_S: Final = 30 * 86_400.0
# The prefix of a program in place of a server's name. Names of hosts have no space.
PROGRAM: Final = "program "
_Port = Annotated[int, Meta(ge=1, le=65535)]
# The limit of pending items in one report; those to fetch first come first.
MOST_ITEMS: Final = 400
_Amount = Annotated[float, Meta(ge=0, le=1e15)]
_Name = Annotated[str, Meta(min_length=1, max_length=64)]


class HintRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about future transfers.

    Selectors: `destination` (an address or a prefix), `port`, `server_name` (`*.example.org` for a
    whole domain), `local_port`, `mark` (SO_MARK), and `program`, whose sockets will carry the mark
    in the answer. At least one is needed, and all that are given must match. The hint holds for
    `lifetime_s`, a day by default, or until it is removed.
    """

    destination: str | None = None
    port: _Port | None = None
    server_name: Annotated[str, Meta(min_length=1, max_length=253)] | None = None
    local_port: _Port | None = None
    mark: Annotated[int, Meta(ge=1, le=0xFFFFFFFF)] | None = None
    program: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    size_bytes: Annotated[int, Meta(ge=1, le=10**15)] | None = None
    direction: Direction = Direction.DOWN
    urgency: Urgency | None = None
    bulk: Bulk | None = None
    deadline_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    lifetime_s: Annotated[float, Meta(gt=0, le=MAX_LIFETIME_S)] | None = None

    def __post_init__(self) -> None:
        if self.destination is not None:
            try:
                ip_network(self.destination, strict=False)
            except ValueError:
                raise ValueError(
                    f"destination must be an address or a prefix such as 198.51.100.0/24,"
                    f' not "{self.destination}"'
                ) from None
            refuse_zone(self.destination)
        which = ("destination", "port", "server_name", "local_port", "mark", "program")
        if not any(getattr(self, name) for name in which):
            raise ValueError(
                f"a hint must say which transfers it means: {', '.join(which[:-1])} or {which[-1]}"
            )
        if self.mark is not None and self.program is not None:
            raise ValueError("mark and program exclude each other: the daemon allots the mark")

    @property
    def label(self) -> Label:
        """Return the label. The default is foreground, and small unless the size is large."""
        bulk = self.bulk
        if bulk is None:
            large = self.size_bytes is not None and self.size_bytes >= 100_000
            bulk = Bulk.LARGE if large else Bulk.SMALL
        return Label(urgency=self.urgency or Urgency.FOREGROUND, bulk=bulk)


def program_mark(number: int) -> int:
    """Return the mark for a program's hint: a fixed byte and the hint's number.

    Only the two lower bytes vary, because VPNs and Kubernetes use the bits between.
    """
    return 0xCE00_0000 | number & 0xFFFF


def program_text(program: str) -> str:
    """Return the text that stands for the server in decisions about all connections of a program."""
    return f"{PROGRAM}{program}"


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
