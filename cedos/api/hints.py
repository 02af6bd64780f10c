"""What an application may say about its transfers (IntNW's labels, dissertation 2.2.2)."""

from ipaddress import ip_network
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.model import Bulk, Direction, Label, Urgency

MAX_LIFETIME_S: Final = 30 * 86_400.0
PROGRAM: Final = "program "
"""No host has a space in its name."""

_Port = Annotated[int, Meta(ge=1, le=65535)]


class HintRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about coming transfers, and which ones are meant.

    Which: to `destination` (an address or prefix) and `port`, to a `server_name` (`*.example.org`
    for all below a domain), from `local_port`, of the sockets that carry `mark` (SO_MARK), or of a
    `program` whose sockets will carry the mark that the daemon allots and answers. What is left
    out matches all, but one must be there. What: size, direction, label, deadline. The hint holds
    for `lifetime_s` (a day where none is given), or until it is taken back.
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
        which = ("destination", "port", "server_name", "local_port", "mark", "program")
        if not any(getattr(self, name) for name in which):
            raise ValueError(
                f"a hint must say which transfers it means: {', '.join(which[:-1])} or {which[-1]}"
            )
        if self.mark is not None and self.program is not None:
            raise ValueError("mark and program exclude each other: the daemon allots the mark")

    @property
    def label(self) -> Label:
        """The label; what is not said is foreground, and small unless the size says otherwise."""
        bulk = self.bulk
        if bulk is None:
            large = self.size_bytes is not None and self.size_bytes >= 100_000
            bulk = Bulk.LARGE if large else Bulk.SMALL
        return Label(urgency=self.urgency or Urgency.FOREGROUND, bulk=bulk)


class HintAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon keeps the hint under this number.

    `network` is where such transfers go now, `mark` what a `program`'s sockets are to carry.
    """

    number: int
    network: str | None = None
    mark: int | None = None


def program_mark(number: int) -> int:
    """The mark that the daemon allots to a program's hint: a fixed byte, and the hint's number.

    The two lower bytes alone vary, as others (VPNs, Kubernetes) mask the bits in between.
    """
    return 0xCE00_0000 | number & 0xFFFF


def program_text(program: str) -> str:
    """What stands in place of a server where a decision is about all that a program connects to."""
    return f"{PROGRAM}{program}"
