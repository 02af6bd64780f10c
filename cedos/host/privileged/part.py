"""The commands that the privileged part carries out, and those that it refuses.

The asking process may be in an attacker's hands by then: a packet got the better of it. So it can do what
cedos does to a host, and nothing else: rules and tables of ours, sysctls that the journal knows, chains
of ours with names of interfaces, subflows of connections, sockets for what cedos listens to.
"""

import errno
import gc
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final

from cedos.errors import SteeringError
from cedos.host.lookups import watch as lookups
from cedos.host.lookups.watch import AnswerDelivery, links_of
from cedos.host.profiler import capture
from cedos.host.steer.journal import Journal
from cedos.host.steer.journal_records import (
    FILTER,
    RESCUE,
    ROUTING,
    HostRecord,
    JournalReading,
    Record,
    SysctlRecord,
    find_changed_sysctl,
    is_interface_name,
    journal_line,
    of_here,
    read_records,
)
from cedos.host.steer.kernel import rule_filter
from cedos.host.steer.kernel.filter_rules import INTERFACE, QUEUE
from cedos.host.steer.kernel.interface import FilterPlan, SteeringKernel
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.kernel.rescue import Privileged, RescueKernel, operations
from cedos.host.steer.routing_plan import (
    REFUSING_ROUTE,
    REFUSING_TABLE,
    TABLE_BASE,
    TABLE_COUNT,
    is_ours,
)
from cedos.kernel import conntrack, packet_queue, process_limits, sock_diag
from cedos.kernel.mptcp import PathManagerCommand
from cedos.kernel.netlink import (
    NETLINK_GENERIC,
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NetlinkMessage,
    Requester,
)
from cedos.kernel.policy_routing import (
    MAIN_TABLE,
    RTN_THROW,
    RTN_UNICAST,
    RTN_UNREACHABLE,
    Route,
    Rule,
)
from cedos.kernel.privileges import EchoSocket, EventSocket, PacketSocket
from cedos.model import Address, FlowKey

_DNS_PORT: Final = 53
# Far more than a host has. A daemon asks for those that are there, and the last ones that went.
_MOST_INTERFACES: Final = 4096
MOST_TRACKED: Final = 65_536
_MOST_RECORDS: Final = 10_000
_LARGEST_ANSWER: Final = 4096
_METRICS_BYTES: Final = 512
_MOST_BUFFER_BYTES: Final = 16 << 20
_LISTENED_TO: Final = (NETLINK_ROUTE, NETLINK_SOCK_DIAG, NETLINK_NETFILTER, NETLINK_GENERIC)
# An error's number and words.
Refusal = tuple[int, str]


class PrivilegedPart:
    """Each public method may be asked for; its types say what with. Errors: OSError, CedosError.

    The kernel's privileged operations without a check here are added below, as they are.
    `state`: where the journal is kept. To be made in the namespace that is to be changed.
    """

    def __init__(self, state: Path) -> None:
        self._state = state
        self._kernel = LinuxKernel()
        self._journal: Journal | None = None
        self._delivery: AnswerDelivery | None = None
        self._answers: socket.socket | None = None
        of_lookups = (lookups.program(outgoing=outgoing) for outgoing in (True, False))
        self._filters = (capture.program(), *of_lookups)

    def give_back(self) -> None:
        """Return free memory to the kernel: reading netlink leaves reference cycles."""
        gc.collect()
        process_limits.give_back()

    # -- the journal --------------------------------------------------------------------------

    def open_journal(self) -> None:
        if self._journal is None:
            self._journal = Journal(self._state)

    def read_journal(self) -> tuple[tuple[bytes, ...], tuple[str, ...], bool]:
        reading = self._open().read()
        return tuple(map(journal_line, reading.records)), tuple(reading.foreign), reading.damaged

    def append_to_journal(self, line: bytes) -> None:
        """Write records. PermissionError: they tell something else than what the host has or had."""
        for record in read_records(line).records:
            journal = self._open()
            if len(journal.appended) >= _MOST_RECORDS:
                raise SteeringError("the journal has more records than a daemon writes")
            recorded = [*map(_sysctls_before, self._recorded_changes())]
            for key, before in _sysctls_before(record).items():
                had = [each.get(key, "").split() for each in recorded]
                if before.split() not in (self._read_sysctl(key), *had):
                    raise PermissionError(errno.EPERM, "the host never had it so", key)
            journal.append(record)

    def remove_journal(self) -> None:
        self._must_be_undone()
        self._open().remove()

    def _must_be_undone(self) -> None:
        """Refuse to forget the way back of a sysctl that is as we have set it."""
        records, _ = of_here(JournalReading([*self._recorded_changes()]))
        changed = [each for each in records.records if isinstance(each, SysctlRecord)]
        first = {each.key: each.before for each in reversed(changed)}
        for each in changed:
            if self._read_sysctl(each.key) == each.after.split() != first[each.key].split():
                raise SteeringError(f"{each.key} is not undone: the journal stays")

    def _read_sysctl(self, key: str) -> list[str]:
        return (self._kernel.read_sysctl(key) or "").split()

    def put_journal_aside(self) -> str | None:
        self._must_be_undone()
        aside = self._open().put_aside()
        return None if aside is None else str(aside)

    def close_journal(self) -> None:
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _open(self) -> Journal:
        if self._journal is None:
            raise OSError(errno.EBADF, "the journal is not open")
        return self._journal

    def _refuse_unrecorded(self, *records: Record) -> None:
        """Refuse a change that the journal would not undo."""
        appended = self._journal.appended if self._journal is not None else ()
        if not all(record in appended for record in records):
            raise PermissionError(errno.EPERM, "the journal does not know of it")

    # -- routing ------------------------------------------------------------------------------

    def routing_port(self) -> int:
        return self._kernel.port

    def add_rules(self, rules: tuple[Rule, ...]) -> None:
        self._refuse_unrecorded(ROUTING)
        self._kernel.add_rules(_checked_rules(rules))

    def delete_rules(self, rules: tuple[Rule, ...]) -> None:
        self._kernel.delete_rules(_checked_rules(rules))

    def add_routes(self, routes: tuple[Route, ...]) -> None:
        self._refuse_unrecorded(ROUTING)
        self._kernel.add_routes(_checked_routes(routes))

    def delete_routes(self, routes: tuple[Route, ...]) -> None:
        self._kernel.delete_routes(_checked_routes(routes))

    def write_sysctl(self, key: str, value: str) -> None:
        """Write a value that a record of the journal gives or restores, or the kernel's own choice."""
        if not any(_tells(record, key, value) for record in self._recorded_changes()):
            known = find_changed_sysctl(key)
            marks = known is not None and known.marked and known.ours(value)
            if known is None or not (marks or known.usual == value):
                raise PermissionError(errno.EPERM, "the journal does not know of it", key)
        self._kernel.write_sysctl(key, value)

    def _recorded_changes(self) -> Iterator[Record]:
        if self._journal is not None:
            yield from self._journal.appended
            yield from self._journal.read().records

    # -- MPTCP --------------------------------------------------------------------------------

    def steer(self, commands: tuple[PathManagerCommand, ...]) -> tuple[Refusal | None, ...]:
        results = self._kernel.steer(commands)
        return tuple(None if each is None else refusal(each) for each in results)

    # -- the packet filter --------------------------------------------------------------------

    def bar(self, interfaces: tuple[str, ...]) -> None:
        self._refuse_unrecorded(FILTER)
        self._kernel.bar(_checked_interfaces(interfaces))

    def repair_filter(self, plan: FilterPlan) -> bool:
        self._refuse_unrecorded(FILTER, *((RESCUE,) if plan.rescue else ()))
        _checked_interfaces(plan.barred or ())
        return self._kernel.repair_filter(plan)

    def raise_wall(self, interfaces: tuple[str, ...]) -> bool:
        self._refuse_unrecorded(FILTER)
        return self._kernel.raise_wall(_checked_interfaces(interfaces))

    def forbid(self, index: int, changes: tuple[tuple[bytes, bool | None], ...]) -> None:
        self._refuse_unrecorded(FILTER)
        if any(len(key) != rule_filter.KEY_BYTES for key, _ in changes):
            raise PermissionError(errno.EPERM, "no elements of rules")
        self._kernel.forbid(index, changes)

    def remove_wall(self, but: tuple[str, ...]) -> bool:
        return self._kernel.remove_wall(_checked_interfaces(but))

    def rescue_set_first_timeouts(self, timeouts_s: tuple[tuple[Address, float], ...]) -> None:
        for _, timeout_s in timeouts_s:
            if not 0.01 <= timeout_s <= 60.0:
                raise OSError(errno.EINVAL, f"{timeout_s} s is no time-out of a first packet")
        self._kernel.rescue.set_first_timeouts(dict(timeouts_s))

    # -- what is listened to, and asked -------------------------------------------------------

    def open_events(self, wanted: EventSocket) -> socket.socket:
        if wanted.protocol not in _LISTENED_TO or wanted.receive_buffer_bytes > _MOST_BUFFER_BYTES:
            raise PermissionError(errno.EPERM, "nothing that cedos listens to")
        return wanted.open()

    def open_packets(self, wanted: PacketSocket) -> socket.socket:
        if wanted.code not in self._filters:
            raise PermissionError(errno.EPERM, "no filter of ours")
        return wanted.open()

    def open_echoes(self, wanted: EchoSocket) -> socket.socket:
        return wanted.open()

    def open_answers(self) -> socket.socket:
        if self._answers is not None:
            self._answers.close()
        # The kernel takes verdicts from the socket that has the queue, in any process.
        self._answers = packet_queue.open_queue(QUEUE)
        return self._answers.dup()

    def decide_answers(self, passed: tuple[int, ...], dropped: tuple[int, ...]) -> None:
        """Let held answers reach their programs, and drop others."""
        if self._answers is None:
            raise OSError(errno.EBADF, "no answers are held")
        packet_queue.decide(self._answers, QUEUE, passed, dropped)

    def tracked_flows(self) -> tuple[tuple[int, bytes], ...]:
        """Return connection tracking's UDP flows as the kernel sends them: type and content.

        OSError (EMSGSIZE): too many flows are tracked, as a program fills the table.
        """
        seen = 0

        def keeps(message: NetlinkMessage) -> bool:
            nonlocal seen
            seen += 1
            if seen > MOST_TRACKED:
                raise OSError(errno.EMSGSIZE, f"more than {MOST_TRACKED} flows are tracked")
            return conntrack.is_udp(message)

        asking = Requester(NETLINK_NETFILTER)
        try:
            answers = asking.dump(conntrack.GET, conntrack.dump_request(), keeps)
        finally:
            asking.close()  # with what it has not read
        return tuple((each.type, each.payload) for each in answers)

    def mark(self, key: FlowKey) -> int | None:
        asking = Requester(NETLINK_SOCK_DIAG)
        try:
            answers = asking.ask(sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.flow_request(key))
        finally:
            asking.close()
        return next((mark for each in answers if (mark := sock_diag.mark_of(each))), None)

    def answer_lookup(self, key: FlowKey, answer: bytes) -> None:
        """Hand an answer of DNS to a program of this host, as if its resolver had sent it."""
        right = key.protocol == "udp" and key.remote_port == _DNS_PORT
        if not right or len(answer) > _LARGEST_ANSWER or not _is_here(key.local):
            raise PermissionError(errno.EPERM, "no answer to a look-up of this host")
        if self._delivery is None:
            self._delivery = AnswerDelivery()
        self._delivery(key, answer)


def _passed_on(operation: Callable[..., Any], mark: Privileged, of: str) -> Callable[..., Any]:
    """Return a method with these types that calls the kernel's (or of its part `of`)."""

    @wraps(operation)
    def passed_on(self: PrivilegedPart, *arguments: Any) -> Any:
        if mark.needs is not None:
            self._refuse_unrecorded(mark.needs)
        kernel = getattr(self._kernel, of) if of else self._kernel
        return getattr(kernel, operation.__name__)(*arguments)

    return passed_on


# The methods that may wait.
SLOW: Final[set[str]] = {"tracked_flows", "give_back"}


for _of, _interface in (("", SteeringKernel), ("rescue", RescueKernel)):
    for _operation, _mark in operations(_interface):
        _name = f"{_of}_{_operation.__name__}" if _of else _operation.__name__
        if _mark.slow:
            SLOW.add(_name)
        if _name not in vars(PrivilegedPart):
            setattr(PrivilegedPart, _name, _passed_on(_operation, _mark, _of))


def refusal(error: OSError) -> Refusal:
    return error.errno or errno.EIO, error.strerror or str(error)


def _checked_rules(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    for rule in rules:
        if not is_ours(rule.preference) or rule.table not in (None, MAIN_TABLE):
            _must_be_our_table(rule.table if is_ours(rule.preference) else -1)
        if rule.goto is not None and not is_ours(rule.goto):
            raise PermissionError(errno.EPERM, "no rule of ours goes there")
        # (The packet filter takes fewer names than the kernel: `_checked_interfaces`.)
        if rule.interface is not None and not is_interface_name(rule.interface):
            raise PermissionError(errno.EPERM, f"{rule.interface!r} is no interface's name")
    return rules


def _checked_routes(routes: tuple[Route, ...]) -> tuple[Route, ...]:
    for route in routes:
        _must_be_our_table(route.table)
        named = route.source is None or not route.source.is_loopback
        if (not named or route.table == REFUSING_TABLE) and route != REFUSING_ROUTE:
            raise PermissionError(errno.EPERM, "no route of ours has such a source")
        if len(route.metrics) > _METRICS_BYTES:
            raise PermissionError(errno.EPERM, "no metrics of a route")
        nowhere = Route(route.table, route.destination, 0, type=route.type)
        kinds = (RTN_UNICAST,) if route.index else (RTN_UNREACHABLE, RTN_THROW)
        if route.type not in kinds or (not route.index and route != nowhere):
            raise PermissionError(errno.EPERM, "no route of ours is of such a type")
    return routes


def _must_be_our_table(table: int | None) -> None:
    if table is None or not TABLE_BASE <= table < TABLE_BASE + TABLE_COUNT:
        raise PermissionError(errno.EPERM, "no rule or route of ours")


def _checked_interfaces(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not INTERFACE.fullmatch(name):
            raise PermissionError(errno.EPERM, f"{name!r} is no interface's name")
    if len(names) > _MOST_INTERFACES:
        raise OSError(errno.E2BIG, f"more than {_MOST_INTERFACES} interfaces")
    return names


def _sysctls_before(record: Record) -> Mapping[str, str]:
    """Return what sysctls were, as a record tells."""
    if isinstance(record, HostRecord):
        return record.before
    return {record.key: record.before} if isinstance(record, SysctlRecord) else {}


def _tells(record: Record, key: str, value: str) -> bool:
    if isinstance(record, HostRecord):
        return record.before.get(key) == value
    return (
        isinstance(record, SysctlRecord)
        and record.key == key
        and value in (record.before, record.after)
    )


def _is_here(address: Address) -> bool:
    """Return whether an address is one of this host's: a socket can have it."""
    if address.version == 6 and address.is_link_local:
        return bool(links_of(address))
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trying:
        trying.bind((str(address), 0))
        return True
    return False
