"""Messages about transfers with deadlines: a program's report, its turn, and the table for people."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import isfinite
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.api.messages import ControlMessage
from cedos.model import Direction
from cedos.selector.deadlines.plan import DeadlineFlow
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable

MOST_NETWORKS: Final = 64
LONGEST_WAIT_S: Final = 30.0

Key = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
_Text = Annotated[str, Meta(max_length=300)]
_Bytes = Annotated[int, Meta(ge=0, le=10**15)]
_Interface = Annotated[str, Meta(min_length=1, max_length=64)]


class TransferReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program's report of a transfer, sent each second while it runs, and before it waits."""

    key: Key  # identifies the transfer, also after the program was restarted
    name: _Text
    server: _Text
    deadline_unix_s: Annotated[float, Meta(ge=0, le=1e11)]
    direction: Direction = Direction.DOWN
    size_bytes: _Bytes | None = None  # None: unknown so far
    done_bytes: _Bytes = 0
    # By interface, since the last report `lasted_s` ago.
    used_bytes: Annotated[dict[_Interface, _Bytes], Meta(max_length=MOST_NETWORKS)] = {}
    lasted_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    ended: bool = False  # it is complete or given up
    why: _Text = ""  # the error of the last attempt
    # The end of a pause, in which the transfer has no turn; None: no pause.
    again_unix_s: Annotated[float, Meta(ge=0, le=1e11)] | None = None
    # The host's monotonic clock at the report. Reports from before the end are ignored.
    said_s: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    # The serial of the last answer. The daemon waits up to `wait_s` for another one.
    seen: _Text = ""


class TurnMessage(ControlMessage, frozen=True, kw_only=True):
    """The networks that a transfer may use now."""

    networks: tuple[str, ...] = ()  # the interfaces that it may use; none: it waits
    metered: tuple[str, ...] = ()  # the metered ones among them
    spare: tuple[str, ...] = ()  # metered interfaces that are not used before `begin_unix_s`
    begun: bool = False  # a spare one has carried a part before
    free_up: bool = False  # a network without a price is up
    first: bool = True  # no other transfer has an earlier deadline
    late: bool = False  # the transfer is expected to miss its deadline
    begin_unix_s: float | None = None
    end_low_unix_s: float | None = None
    # `end_unix_s`, `end_low_unix_s`, `end_high_unix_s`: the median of the end and the 90 % interval;
    # None: unknown.
    end_unix_s: float | None = None
    end_high_unix_s: float | None = None
    # The probability of missing the deadline if metered networks wait another second.
    missed: float = 0.0
    metered_bytes: float = 0.0
    serial: str = ""  # changes with the networks


class TransferInTable(ControlMessage, frozen=True, kw_only=True):
    """A transfer for people; `running`: its program runs."""

    key: str
    uid: int
    name: str
    server: str
    direction: Direction
    size_bytes: int | None
    done_bytes: int
    bytes_by_network: dict[str, int]
    earlier_bytes: int = 0  # bytes that came over unknown networks
    deadline_unix_s: float
    running: bool
    turn: TurnMessage
    why: str = ""  # the error of the last attempt
    again_unix_s: float | None = None  # the time of the next attempt; None: now, or in its turn

    @classmethod
    def of(
        cls,
        transfer: TableTransfer,
        by_network: Mapping[str, int],
        *,
        running: bool,
        turn: TurnMessage,
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
            why=transfer.why,
            again_unix_s=transfer.again_unix_s,
        )


# Up to this many bytes a network may have carried only the request for the size.
_ASKED_BYTES: Final = 10_000


def table_entry(report: TransferReport, uid: int) -> TableTransfer:
    """Return the table's entry for a user's report."""
    return TableTransfer(
        report.key,
        uid,
        report.name,
        report.server,
        report.direction,
        report.size_bytes,
        report.done_bytes,
        report.deadline_unix_s,
        report.why,
        report.again_unix_s,
    )


def turn_message(
    table: TransferTable,
    key: str,
    now: float,
    unix_s: float,
    flows: Sequence[DeadlineFlow] | None = None,
) -> TurnMessage:
    """Return the turn of a transfer, with networks by name. `flows`: those of the table, if known.

    NotFoundError: the transfer is unknown.
    """
    turn = table.turn(key, now, flows)
    states = table.states(table.direction(key))
    paid = [each.name for each in states if not each.free and each.usable]
    spare = tuple(name for name in paid if name not in turn.networks)
    carried = table.by_network(key)
    found = turn.prospect

    def unix(at_s: float) -> float | None:
        return unix_s + at_s - now if isfinite(at_s) else None

    return TurnMessage(
        networks=turn.networks,
        metered=tuple(name for name in turn.networks if name in paid),
        spare=spare,
        begun=any(carried.get(name, 0) >= _ASKED_BYTES for name in spare),
        free_up=any(each.up and each.free for each in states),
        first=turn.first,
        late=turn.late,
        begin_unix_s=unix(found.begin_at_s),
        end_low_unix_s=unix(found.end_low_s),
        end_unix_s=unix(found.end_s),
        end_high_unix_s=unix(found.end_high_s),
        missed=found.missed,
        metered_bytes=found.metered_bytes,
        serial=table.serial(key),
    )


_LATE_S: Final = 1.0  # what ends in the same second is in time


def sentence(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    """Format the state of a transfer without a full stop. Lateness comes first."""
    late = lateness(turn, deadline_unix_s, now)
    end = "" if _expected_late(turn, deadline_unix_s, now) else describe_expected_end(turn, now)
    return "; ".join(filter(None, (late, _doing(turn, deadline_unix_s, now), end)))


def lateness(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    """Say that the deadline was missed or will be; empty: it is expected to be met."""
    when, end = instant(deadline_unix_s, now), turn.end_unix_s
    if now.timestamp() > deadline_unix_s:
        return f"wanted by {when}, which has passed"
    if turn.late:
        # Without a network, the time of the next one is unknown.
        hope = not (turn.networks or turn.spare or turn.free_up) or _in_time(turn, deadline_unix_s)
        return f"{'may not' if hope else 'cannot'} be done by {when}"
    if end is None or _in_time(turn, deadline_unix_s):
        return ""
    expect = instant(end, now)
    if expect == when:  # the same minute
        when, expect = (f"{datetime.fromtimestamp(at):%H:%M:%S}" for at in (deadline_unix_s, end))
    return f"may not be done by {when} (expected {expect})"


def _in_time(turn: TurnMessage, deadline_unix_s: float) -> bool:
    return turn.end_unix_s is not None and turn.end_unix_s - deadline_unix_s < _LATE_S


def _expected_late(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> bool:
    """Return whether the text about lateness has the expected end already."""
    told = now.timestamp() <= deadline_unix_s and not turn.late and turn.end_unix_s is not None
    return told and not _in_time(turn, deadline_unix_s)


def describe_expected_end(turn: TurnMessage, now: datetime) -> str:
    """Return `done about 17:50 (between 17:42 and 17:59)`; empty: the end is unknown."""
    if turn.end_unix_s is None:
        return ""
    low = turn.end_low_unix_s if turn.end_low_unix_s is not None else turn.end_unix_s
    # A waiting transfer is complete before its latest start if Wi-Fi comes as expected.
    found = f"{'' if turn.networks else 'expected '}done about {instant(turn.end_unix_s, now)}"
    if turn.end_high_unix_s is None:
        return f"{found}, or much later"
    if turn.end_high_unix_s - low < 2.0:
        return found
    return f"{found} (between {instant(low, now)} and {instant(turn.end_high_unix_s, now)})"


def instant(unix_s: float, now: datetime) -> str:
    """Return `17:42:05` within ten minutes, `17:42` today, `tomorrow 8:00`, `Fri 8:00`, `12-24 08:00`."""
    at = datetime.fromtimestamp(unix_s)
    if abs((at - now).total_seconds()) < 600.0:
        return f"{at:%H:%M:%S}"
    if at.date() == now.date():
        return f"{at:%H:%M}"
    if at.date() == (now + timedelta(days=1)).date():
        return f"tomorrow {at:%H:%M}"
    if timedelta(0) < at - now < timedelta(days=6):
        return f"{at:%a %H:%M}"
    return f"{at:%Y-%m-%d %H:%M}"


def at_instant(unix_s: float, now: datetime) -> str:
    """Return `instant` for use behind a verb: `at 17:42`, `tomorrow 8:00`."""
    text = instant(unix_s, now)
    return f"at {text}" if text[0].isdigit() else text


def _describe_metered_begin(turn: TurnMessage, deadline_unix_s: float) -> str:
    """Say how long before its deadline a metered network begins, if both are in the same minutes."""
    assert turn.begin_unix_s is not None
    left_s = deadline_unix_s - turn.begin_unix_s
    return f", {left_s:.0f} s before its deadline" if 0.0 < left_s < 120.0 else ""


def _doing(turn: TurnMessage, deadline_unix_s: float, now: datetime) -> str:
    spare = " or ".join(turn.spare)
    if not turn.networks:
        if not turn.first:
            return "waiting for transfers that are wanted earlier"
        if turn.free_up:
            return "waiting for others that are wanted by the same time"
        if not spare:
            return "waiting for a network"
        if turn.begin_unix_s is None:
            return "waiting for Wi-Fi"
        begins = "goes on" if turn.begun else "begins"
        at = instant(turn.begin_unix_s, now)
        before = _describe_metered_begin(turn, deadline_unix_s)
        return f"waiting for Wi-Fi, {begins} at the latest {at} over {spare}{before}"
    over = " and ".join(turn.networks)
    if turn.metered:
        if lateness(turn, deadline_unix_s, now):  # so may be all that is there
            return f"over {over}"
        why = "Wi-Fi alone may be too late" if turn.free_up else "waiting longer may be too late"
        return f"over {over}: {why}"
    if spare and turn.begin_unix_s is not None:
        at = at_instant(turn.begin_unix_s, now)
        joins = f"would join{' again' * turn.begun} {at}"
        return f"over {over}, {spare} {joins}{_describe_metered_begin(turn, deadline_unix_s)}"
    return f"over {over}"
