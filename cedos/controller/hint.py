"""A program's hint on its transfers before they begin (IntNW's labels; dissertation, 2.2.2)."""

from ipaddress import ip_network
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.model import Bulk, Direction, Label, Urgency

MAX_LIFETIME_S: Final = 30 * 86_400.0
# The prefix of a program in place of a server's name. Names of hosts have no space.
PROGRAM: Final = "program "

_Port = Annotated[int, Meta(ge=1, le=65535)]


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
