"""What the table of transfers takes and gives, as messages."""

from collections.abc import Sequence
from math import isfinite
from typing import Final

from cedos.api.transfers import TransferReport, TurnMessage
from cedos.selector.deadlines.deadline_flow import DeadlineFlow
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable

_ASKED_BYTES: Final = 10_000
"""Its size was asked for over each network: that is less."""


def told_transfer(report: TransferReport, uid: int) -> TableTransfer:
    """The transfer of a user's program, as that tells of it."""
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


def seen_turn(
    table: TransferTable,
    key: str,
    now: float,
    unix_s: float,
    flows: Sequence[DeadlineFlow] | None = None,
) -> TurnMessage:
    """Networks by their names; `flows`: the table's, where they are known already.

    Raises:
        NotFoundError: there is no such transfer.
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
