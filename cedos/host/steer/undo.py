"""Undoing what cedos changed: by the journal, and by what is recognisably ours.

Rules, routes, chains, sets and the path manager tell by themselves that they are ours, so a journal
that is damaged or gone does not keep them here. Of other sysctls only the journal knows what they were.
Undoing what was never done, or is gone, is fine.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cedos.errors import CedosError, HostError
from cedos.host.steer.journal import Journal, JournalKeeper
from cedos.host.steer.journal_records import (
    CHANGED,
    CONNECTIONS,
    ELSEWHERE,
    HostRecord,
    JournalReading,
    SysctlRecord,
    find_changed_sysctl,
    of_here,
    own_sources,
)
from cedos.host.steer.kernel.dry import DryKernel
from cedos.host.steer.kernel.interface import SteeringKernel, refusals
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.mptcp.connections import hand_over
from cedos.host.steer.routing_plan import TABLE_BASE, TABLE_COUNT, Preference, is_ours
from cedos.kernel.mptcp import DestroySubflow
from cedos.kernel.policy_routing import PROTOCOL, Route, Rule
from cedos.kernel.sysctl import MPTCP_PATH_MANAGER, MPTCP_PM_TYPE
from cedos.model import FlowKey

_RULE: Final = ("deleted: -4 rule", "deleted: -6 rule")
_ROUTE: Final = ("deleted: -4 route", "deleted: -6 route")


@dataclass(frozen=True, slots=True)
class Undone:
    """The result of undoing. `done`: what was undone, in words; `left`: what could not be, and why.

    `refused`: the kernel's first refusal; with it all may be tried again.
    """

    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    refused: OSError | None = None

    @property
    def in_short(self) -> str:
        """Return one line: rules and routes are counted, all other steps are named."""
        counts: Counter[str] = Counter()
        rest: list[str] = []
        for step in self.done:
            if step.startswith(_RULE):
                counts["rule"] += 1
            elif step.startswith(_ROUTE):
                counts["route"] += 1
            else:
                rest.append(step)
        counted = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items()]
        parts = [f"deleted: {' and '.join(counted)}"] if counted else []
        return "; ".join([*parts, *rest]) or "nothing had been changed"


def undo_rescue(kernel: SteeringKernel) -> list[str]:
    """Take the translation out, and end the MPTCP subflows that need it; return that in words.

    Call it while the flows' rules still stand: they name the flows. A plain TCP flow cannot go on: its
    packets would leave by the network that it was rescued from, with an address that no host there
    knows. An MPTCP connection goes on over its other subflows, at once if the translated one is ended
    and does not just fall silent. Errors: OSError.
    """
    keys = {
        key
        for seen in kernel.rules()
        if seen.rule and seen.preference == Preference.RESCUE
        if (key := _key(seen.rule)) is not None
    }
    lines = _end_subflows(kernel, keys) if keys else []
    if kernel.rescue.remove():
        lines.append("deleted: the chains CEDOS_LATE and CEDOS_NAT of iptables and their sets")
    return lines


def _key(rule: Rule) -> FlowKey | None:
    source, destination = rule.source, rule.destination
    if source is None or destination is None or rule.source_port is None or rule.port is None:
        return None
    return FlowKey(source.network_address, rule.source_port, destination.network_address, rule.port)


def _end_subflows(kernel: SteeringKernel, keys: set[FlowKey]) -> list[str]:
    paths: defaultdict[int, list[FlowKey]] = defaultdict(list)
    lines = []
    for seen in kernel.sockets():
        if seen.token is not None:
            paths[seen.token].append(seen.key)
        elif seen.key in keys:
            key = seen.key
            lines.append(
                f"loses its network: TCP {key.local} port {key.local_port}"
                f" -> {key.remote} port {key.remote_port}, which was rescued"
            )
    commands = [
        DestroySubflow(token, key)
        for token, subflows in paths.items()
        if not keys.issuperset(subflows)
        for key in keys.intersection(subflows)
    ]
    if commands:
        refused = kernel.steer(commands)
        lines += [str(c) for c, error in zip(commands, refused, strict=True) if error is None]
    return lines


_Undo = Callable[[], list[str]]


def undo_all(kernel: SteeringKernel, journal: JournalReading, *, wall: bool = True) -> Undone:
    """Undo everything that is ours, whatever the journal says; what could not be, is told by name.

    `wall` False: the second wall of barred networks stays, for a daemon that begins at once.
    """
    journal, elsewhere = of_here(journal)
    left = [*journal.foreign, *([ELSEWHERE] if elsewhere else [])]
    refused: OSError | None = None

    def attempt(what: str, undo: _Undo) -> list[str]:
        nonlocal refused
        try:
            return undo()
        except (OSError, HostError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            left.append(f"{what}: {why}")
            if isinstance(error, OSError):
                refused = refused or error
            return []

    # Whose flows are whose is told by the rules, which therefore go last.
    done = attempt("rescued flows", lambda: undo_rescue(kernel))
    done += attempt("the chains CEDOS_* of iptables", lambda: _filter(kernel))
    if wall:
        done += attempt("the filters at interfaces", lambda: _wall(kernel))
    # Leftovers without a journal: it is lost.
    lost = not journal.records and (bool(done) or _stands(kernel))
    doubtful = journal.damaged or bool(journal.foreign) or lost
    sysctls, tried = [*CHANGED], set[str]()
    while sysctls:
        for key in sysctls:
            if key == MPTCP_PM_TYPE and kernel.read_sysctl(MPTCP_PATH_MANAGER) is not None:
                continue  # a kernel that has both keeps them in step
            undo = partial(_sysctl, kernel, key, journal, doubtful, left)
            done += attempt(f"sysctl {key}", undo)
        tried.update(sysctls)
        # Once more, as one that is renamed meanwhile has another one.
        there = attempt("the sysctls of interfaces", partial(_of_interfaces, kernel))
        sysctls = [key for key in there if key not in tried]
    if doubtful or CONNECTIONS in journal.records:
        done += attempt("the paths of living connections", lambda: hand_over(kernel))
    done += attempt("rules and routes", lambda: _routing(kernel))
    return Undone(tuple(done), tuple(left), refused)


def _of_interfaces(kernel: SteeringKernel) -> list[str]:
    return [own_sources(each.name) for each in kernel.links()]


def _stands(kernel: SteeringKernel) -> bool:
    """Return whether a rule or route of ours is there."""
    try:
        return any(_rules(kernel)) or any(_routes(kernel))
    except OSError:
        return False


def _rules(kernel: SteeringKernel) -> list[Rule]:
    return [seen.rule for seen in kernel.rules() if seen.rule and is_ours(seen.preference)]


def _routes(kernel: SteeringKernel) -> list[Route]:
    return [
        Route(
            seen.table,
            seen.destination,
            seen.index,
            seen.gateway,
            seen.metrics,
            seen.source,
            seen.type,
        )
        for seen in kernel.routes(PROTOCOL)
        if TABLE_BASE <= seen.table < TABLE_BASE + TABLE_COUNT
    ]


def _routing(kernel: SteeringKernel) -> list[str]:
    rules, routes = _rules(kernel), _routes(kernel)
    # From the least of them up, so that no rule is left that only holds something back.
    kernel.delete_rules(sorted(rules, key=lambda rule: -rule.preference))
    kernel.delete_routes(routes)
    return [f"deleted: {what}" for what in (*rules, *routes)]


def _sysctl(
    kernel: SteeringKernel, key: str, journal: JournalReading, doubtful: bool, left: list[str]
) -> list[str]:
    """Put one sysctl back; add to `left` what cannot be known any more."""
    now, known = kernel.read_sysctl(key), find_changed_sysctl(key)
    if now is None or known is None:
        return []
    before, given = _value_before(key, journal), _given_addresses(key, journal)
    ours = now.split() in given
    doubtful = doubtful or known.marked
    if doubtful or not given:
        # What a lost line gave it, or no line tells of, is told by its value.
        ours = ours or known.ours(now)
    if before is None and doubtful and ours:
        before = known.usual
        if before is None:
            left.append(
                f"sysctl {key} = {' '.join(now.split())}: it may be of cedos, and the journal does not"
                " tell any more what it was before"
            )
    if before is None or now.split() == before.split():
        return []
    if ours:
        kernel.write_sysctl(key, before)
        return [f"set back: {key} = {before}"]
    if given:
        return [f"left alone: {key} = {now}: another program has changed it since"]
    return []


def _value_before(key: str, journal: JournalReading) -> str | None:
    """Return what a sysctl was; None where the journal does not tell."""
    host = None
    for each in journal.records:
        if isinstance(each, SysctlRecord) and each.key == key:
            return each.before
        if isinstance(each, HostRecord) and host is None:
            host = each.before.get(key)
    return host


def _given_addresses(key: str, journal: JournalReading) -> list[list[str]]:
    return [
        each.after.split()
        for each in journal.records
        if isinstance(each, SysctlRecord) and each.key == key
    ]


def _wall(kernel: SteeringKernel) -> list[str]:
    return ["deleted: the filters at interfaces"] if kernel.remove_wall(()) else []


def _filter(kernel: SteeringKernel) -> list[str]:
    return ["deleted: the chains CEDOS_* of iptables"] if kernel.remove_filter() else []


def restore(
    state_dir: Path,
    dry_run: bool = False,
    kernel: SteeringKernel | None = None,
    open_journal: Callable[[], JournalKeeper] | None = None,
) -> Undone:
    """Undo what a dead daemon left; a journal of which something is left stays.

    A dry run only tells. `kernel` None: the one of the calling thread's namespace; `open_journal` where
    another process keeps it. Raises
    AlreadyRunningError while the journal's process lives, PrivilegeError, and SteeringError where the
    state directory cannot be used.
    """
    journal: JournalKeeper | None = None
    if state_dir.is_dir():
        journal = open_journal() if open_journal else Journal(state_dir)
    try:
        read = journal.read() if journal is not None else JournalReading()
        actual = kernel or LinuxKernel()
        try:
            if dry_run:
                return undo_all(DryKernel(actual, lambda _: None), read)
            undone = undo_all(actual, read)
        finally:
            actual.close()
        if isinstance(undone.refused, PermissionError):
            with refusals("undo everything"):
                raise undone.refused
        if journal is not None and not {*undone.left} - {ELSEWHERE}:
            with suppress(CedosError):  # its disk takes nothing any more; all is undone
                journal.remove()
        return undone
    finally:
        if journal is not None:
            journal.close()
