"""How each record of the journal is undone. Undoing what was never done, or is gone, is fine."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from cedos.kernel.policy_routing import PROTOCOL, Route
from cedos.steer.journal.journal import Record
from cedos.steer.kernel.interface import SteeringKernel
from cedos.steer.mptcp.handover import hand_over
from cedos.steer.rescue.undo import undo_rescue
from cedos.steer.routing.plan import TABLE_BASE, TABLE_COUNT, is_ours


def undo_all(kernel: SteeringKernel, records: Sequence[Record]) -> list[str]:
    """Undoes records, newest first; returns what was undone, in words.

    Raises the kernel's first refusal; the rest has been tried all the same: the journal must stay.
    """
    done: list[str] = []
    failure: OSError | None = None
    for record in reversed(_joined(records)):
        try:
            done += _KINDS.get(record["undo"], _unknown)(kernel, record)
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return done


def _joined(records: Sequence[Record]) -> list[Record]:
    """One record for each thing that is to be undone, at the place of its first."""
    joined: dict[str, Record] = {}
    for record in records:
        key = f"{record['undo']} {record.get('key', '')}"
        first = joined.setdefault(key, {**record, "afters": []})
        first["afters"].append(str(record.get("after")))
    return list(joined.values())


def _routing(kernel: SteeringKernel, _: Record) -> list[str]:
    rules = [seen.rule for seen in kernel.rules() if seen.rule and is_ours(seen.preference)]
    routes = [
        Route(seen.table, seen.destination, seen.index, seen.gateway, seen.metrics)
        for seen in kernel.routes(PROTOCOL)
        if TABLE_BASE <= seen.table < TABLE_BASE + TABLE_COUNT
    ]
    # From the least of them up, so that no rule is left that only holds something back.
    kernel.delete_rules(sorted(rules, key=lambda rule: -rule.preference))
    kernel.delete_routes(routes)
    return [f"deleted: {what}" for what in (*rules, *routes)]


def _sysctl(kernel: SteeringKernel, record: Record) -> list[str]:
    key, before = str(record.get("key")), str(record.get("before"))
    now = kernel.read_sysctl(key)
    if now is None or now.split() == before.split():
        return []
    if now.split() not in [after.split() for after in record["afters"]]:
        return [f"left alone: {key} = {now}: somebody else has changed it since"]
    kernel.write_sysctl(key, before)
    return [f"set back: {key} = {before}"]


def _filter(kernel: SteeringKernel, _: Record) -> list[str]:
    return ["deleted: the chains CEDOS_* of iptables"] if kernel.remove_filter() else []


def _connections(kernel: SteeringKernel, _: Record) -> list[str]:
    return hand_over(kernel)


def _rescue(kernel: SteeringKernel, _: Record) -> list[str]:
    return undo_rescue(kernel)


def _unknown(_: SteeringKernel, record: Record) -> list[str]:
    return [f"left alone: {record['undo']}: another version of cedos wrote this"]


_KINDS: Final[dict[str, Callable[[SteeringKernel, dict[str, Any]], list[str]]]] = {
    "routing": _routing,
    "sysctl": _sysctl,
    "packet-filter": _filter,
    "connections": _connections,
    "rescue": _rescue,
}
