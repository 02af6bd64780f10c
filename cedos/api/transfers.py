"""Messages about transfers with deadlines: a program's report, the daemon's answer, the table of all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from cedos.api.messages import ControlMessage
from cedos.model import Direction

if TYPE_CHECKING:
    from cedos.selector.deadlines.transfer_table import TableTransfer

MOST_NETWORKS: Final = 64
LONGEST_WAIT_S: Final = 30.0

Key = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Text = Annotated[str, Meta(max_length=300)]
_Bytes = Annotated[int, Meta(ge=0, le=10**15)]
_Interface = Annotated[str, Meta(min_length=1, max_length=64)]


class TransferReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program's word about one transfer, told every second while it carries, else before it waits.

    Attributes:
        key: the transfer's own for good: the same after the program was started again.
        size_bytes: None: not known yet.
        used_bytes: by interface, since the last report, `lasted_s` ago.
        all_bytes: by interface, in all, as far as the program knows: more than was told where it, or the
            daemon, was killed.
        ended: it is done, or given up for good.
        why: what went wrong when it was tried last; `again_unix_s`: in its pause until then, it takes no
            turn; None: it is in none.
        said_s: when, by the host's monotonic clock: what was said before its end counts no more.
        seen: the serial of the answer that it has; it waits up to `wait_s` for another one.
    """

    key: Key
    name: _Text
    server: _Text
    deadline_unix_s: Annotated[float, Meta(ge=0, le=1e11)]
    direction: Direction = Direction.DOWN
    size_bytes: _Bytes | None = None
    done_bytes: _Bytes = 0
    used_bytes: Annotated[dict[_Interface, _Bytes], Meta(max_length=MOST_NETWORKS)] = {}
    all_bytes: Annotated[dict[_Interface, _Bytes], Meta(max_length=MOST_NETWORKS)] = {}
    lasted_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    ended: bool = False
    why: _Text = ""
    again_unix_s: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    said_s: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    seen: _Text = ""


class TurnMessage(ControlMessage, frozen=True, kw_only=True):
    """What a transfer may do now.

    Attributes:
        networks: the interfaces that it may use; none: it waits.
        metered: those among them that are metered.
        spare: metered interfaces that are not used; they begin at `begin_unix_s`.
        begun: one of these has carried some of it before.
        free_up: whether a network that costs nothing is there.
        first: no other transfer is wanted earlier.
        late: it cannot be in time, as far as can be told.
        end_unix_s, end_low_unix_s, end_high_unix_s: the median of its end, and the 90 % interval; None:
            nobody can tell.
        missed: probability that it is not in time if metered networks wait for one more second.
        serial: another one where the networks are others.
    """

    networks: tuple[str, ...] = ()
    metered: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    begun: bool = False
    free_up: bool = False
    first: bool = True
    late: bool = False
    begin_unix_s: float | None = None
    end_low_unix_s: float | None = None
    end_unix_s: float | None = None
    end_high_unix_s: float | None = None
    missed: float = 0.0
    metered_bytes: float = 0.0
    serial: str = ""


class TransferInTable(ControlMessage, frozen=True, kw_only=True):
    """A transfer as people want to see it. `running`: its program is; else it must be started again.

    `earlier_bytes` of what is done came nobody knows over which networks.
    `wakes_unix_s`: this host, should it sleep, is woken then, for this transfer first.
    `why`: what went wrong when it was tried last; `again_unix_s`: when it is tried again, None: now, or
    when it is its turn.
    """

    key: str
    uid: int
    name: str
    server: str
    direction: Direction
    size_bytes: int | None
    done_bytes: int
    bytes_by_network: dict[str, int]
    earlier_bytes: int = 0
    deadline_unix_s: float
    running: bool
    turn: TurnMessage
    wakes_unix_s: float | None = None
    why: str = ""
    again_unix_s: float | None = None

    @classmethod
    def of(
        cls,
        transfer: "TableTransfer",
        by_network: Mapping[str, int],
        *,
        running: bool,
        turn: TurnMessage,
        wakes_unix_s: float | None = None,
    ) -> "TransferInTable":
        return cls(
            key=transfer.key,
            uid=transfer.uid,
            name=transfer.name,
            server=transfer.server,
            direction=transfer.direction,
            size_bytes=transfer.size_bytes,
            done_bytes=transfer.done_bytes,
            bytes_by_network=dict(by_network),
            earlier_bytes=max(transfer.done_bytes - sum(by_network.values()), 0),
            deadline_unix_s=transfer.deadline_unix_s,
            running=running,
            turn=turn,
            wakes_unix_s=wakes_unix_s,
            why=transfer.why,
            again_unix_s=transfer.again_unix_s,
        )
