"""The records of the journal, and changing a sysctl with its record.

Rules and routes bear our mark (a protocol number, a range of preferences, tables of our own), so one
record that stands for all of them suffices: what is found with the mark is ours, and nothing else is.
That also keeps the disk out of the way of every later change of a rule.

The sysctls that cedos changes, and no others: what each may hold, and what cedos gives it.

A journal may say anything. Only these keys, with values of their kind, are ever written.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

import msgspec

from cedos.errors import SteeringError
from cedos.kernel.bpf import netns_cookie
from cedos.kernel.sysctl import MPTCP_PATH_MANAGER, MPTCP_PM_TYPE
from cedos.logs import get_logger

_log = get_logger(__name__)
# No name of an interface has one of these bytes (dev_valid_name); the last one is a space of Latin-1.
_NO_NAME: Final = frozenset(b"/:\0 \t\n\v\f\r\xa0")
CONNTRACK_ACCOUNTING: Final = "net.netfilter.nf_conntrack_acct"
MPTCP_CLOSE_TIMEOUT: Final = "net.mptcp.close_timeout"
MPTCP_FALLBACK: Final = "net.mptcp.syn_retrans_before_tcp_fallback"
TCP_RMEM: Final = "net.ipv4.tcp_rmem"
TCP_RTO_MAX: Final = "net.ipv4.tcp_rto_max_ms"
TCP_RETRIES: Final = "net.ipv4.tcp_retries2"
TCP_SYN_RETRIES: Final = "net.ipv4.tcp_syn_retries"
TCP_ORPHAN_RETRIES: Final = "net.ipv4.tcp_orphan_retries"
# With 1, TCP's window shrinks in an idle time (RFC 2861).
TCP_IDLE_RESTART: Final = "net.ipv4.tcp_slow_start_after_idle"
# The daemon's values of `tcp_rmem[2]` lie on these steps, which tells them from others' values.
WINDOW_STEPS_PER_DOUBLING: Final = 4
# The sysctls of the bound of the retransmission time-out: the kernel's default of each, and ours.
#
# The kernel counts retransmissions, not seconds. With shorter time-outs it has to send more of
# them before it gives up a connection, one that opens, or one that its program has closed
# (`docs/decisions/caught.md`). The values are ones that a person hardly sets, so that they are
# known as ours without the journal.
RETRANSMISSION: Final[Mapping[str, tuple[str, str]]] = {
    TCP_RTO_MAX: ("120000", "1990"),
    TCP_RETRIES: ("15", "254"),
    TCP_SYN_RETRIES: ("6", "63"),
    TCP_ORPHAN_RETRIES: ("0", "53"),
}
_MOST: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class ChangedSysctl:
    """`valid`: it can be a host's own value; `ours`: one that cedos gives.

    `usual`: what it was before is known without the journal; None: it is not.
    `marked`: only cedos gives it our value, so the journal need not tell of it.
    """

    valid: Callable[[str], bool]
    ours: Callable[[str], bool]
    usual: str | None = None
    marked: bool = False


def _up_to(most: int) -> Callable[[str], bool]:
    return lambda value: bool(_NUMBER.fullmatch(value)) and int(value) <= most


def _path_manager(value: str) -> bool:
    return bool(_NAME.fullmatch(value))


def _buffers(value: str) -> bool:
    words = value.split()
    numbers = [int(word) for word in words if _NUMBER.fullmatch(word)]
    return len(words) == len(numbers) == 3 and min(numbers) > 0 and max(numbers) <= _MOST


def _bounded_buffers(value: str) -> bool:
    if not _buffers(value):
        return False
    _, initial, most = map(int, value.split())
    steps = round(math.log2(most) * WINDOW_STEPS_PER_DOUBLING)
    return most in (initial, int(2 ** (steps / WINDOW_STEPS_PER_DOUBLING)))


# The sysctls that cedos changes. The path manager's may be another program's: a daemon that started on a
# full disk has written nothing, and changed none.
CHANGED: Final[Mapping[str, ChangedSysctl]] = {
    MPTCP_PATH_MANAGER: ChangedSysctl(_path_manager, "userspace".__eq__),
    MPTCP_PM_TYPE: ChangedSysctl(_up_to(255), "1".__eq__),
    MPTCP_CLOSE_TIMEOUT: ChangedSysctl(_up_to(_MOST), "1".__eq__),
    MPTCP_FALLBACK: ChangedSysctl(_up_to(255), "6".__eq__),
    CONNTRACK_ACCOUNTING: ChangedSysctl(_up_to(1), "1".__eq__),
    TCP_RMEM: ChangedSysctl(_buffers, _bounded_buffers),
    TCP_IDLE_RESTART: ChangedSysctl(_up_to(1), "0".__eq__, "1"),
    **{
        key: ChangedSysctl(_up_to(_MOST), ours.__eq__, usual)
        for key, (usual, ours) in RETRANSMISSION.items()
    },
}


_OWN_SOURCES: Final = re.compile(r"net\.ipv6\.conf\.(.+)\.use_oif_addrs_only", re.DOTALL)
_BETWEEN: Final = str.maketrans("./", "/.")
# The kernel takes any number but 0 for yes. This one is a mark: an interface keeps it under another name.
OWN_SOURCES: Final = "7300"
_OF_INTERFACES: Final = ChangedSysctl(_up_to(_MOST), OWN_SOURCES.__eq__, "0", marked=True)


def own_sources(interface: str) -> str:
    """Return the sysctl with which what leaves an interface has an address of it (IPv6)."""
    return f"net.ipv6.conf.{interface.translate(_BETWEEN)}.use_oif_addrs_only"


def find_changed_sysctl(key: str) -> ChangedSysctl | None:
    """Return what is known of a sysctl that cedos changes; None: it changes no such one."""
    if (found := _OWN_SOURCES.fullmatch(key)) is None:
        return CHANGED.get(key)
    name = found[1].translate(_BETWEEN)
    # (Those are no interfaces. The kernel allows none of such a name.)
    return _OF_INTERFACES if is_interface_name(name) and name not in {"all", "default"} else None


def is_marked(key: str) -> bool:
    """Return whether our value of a sysctl tells by itself that it is ours."""
    return (known := find_changed_sysctl(key)) is not None and known.marked


def valid(key: str, value: str) -> bool:
    """Return whether cedos changes this sysctl, and a host can have this value of it."""
    known = find_changed_sysctl(key)
    return known is not None and known.valid(value)


def is_interface_name(name: str) -> bool:
    """Return whether the kernel allows such a name; it is then also a safe file name in /proc."""
    octets = name.encode(errors="surrogateescape")
    return 0 < len(octets) < 16 and name not in {".", ".."} and _NO_NAME.isdisjoint(octets)


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A network namespace of one boot, by its cookie, which no later one has."""

    boot: str
    namespace: int


_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def current_place() -> Place | None:
    """Return the place of the calling thread; None: the kernel does not say."""
    try:
        return Place(_BOOT.read_text().strip(), netns_cookie())
    except OSError:
        return None


class _Record(msgspec.Struct, frozen=True, tag_field="undo", forbid_unknown_fields=True):
    """A record of what is to be undone. ValueError: cedos never writes such a record."""


class RoutingRecord(_Record, frozen=True, tag="routing"):
    """The record of all rules and routes that bear our mark."""


class FilterRecord(_Record, frozen=True, tag="packet-filter"):
    """The record of the chains CEDOS_* in `filter`, their jumps, and filters at barred interfaces."""


class ConnectionsRecord(_Record, frozen=True, tag="connections"):
    """Living connections are handed over to the kernel's path manager."""


class RescueRecord(_Record, frozen=True, tag="rescue"):
    """The chains and sets that rescued flows are translated by."""


class SharingRecord(_Record, frozen=True, tag="sharing"):
    """The record of all addresses, rules, routes, neighbours and chains that bear sharing's mark."""


class InterfaceForwardingRecord(_Record, frozen=True, tag="interface-forwarding"):
    """The record of an interface that forwarded no packets (IPv4): only then is it journaled.

    `index`: of the interface, which may have another name by now, or a later one its name.
    """

    interface: str
    index: int
    place: Place | None = None

    def __post_init__(self) -> None:
        if not is_interface_name(self.interface):
            raise ValueError(f"{self.interface[:80]!r} is no name of an interface")


class HostRecord(_Record, frozen=True, tag="host"):
    """Each journal's first: what the sysctls that we may change were before we began."""

    before: dict[str, str]
    # Of all records until the next one of these.
    place: Place | None = None

    def __post_init__(self) -> None:
        for key, value in self.before.items():
            _must_be_valid(key, value)


class SysctlRecord(_Record, frozen=True, tag="sysctl"):
    """Puts a sysctl back to `before`, unless it no longer holds what we gave it.

    Of several records of one sysctl the first one's `before` counts, and each one's `after`.
    """

    key: str
    before: str
    after: str

    def __post_init__(self) -> None:
        for value in (self.before, self.after):
            _must_be_valid(self.key, value)


Record = (
    RoutingRecord
    | FilterRecord
    | ConnectionsRecord
    | RescueRecord
    | HostRecord
    | SysctlRecord
    | SharingRecord
    | InterfaceForwardingRecord
)


# Their changes bear our mark, or are told by other records: a user who fills the disk before the daemon
# starts opens no barred network.
NOT_NEEDED: Final = (RoutingRecord, FilterRecord, ConnectionsRecord, RescueRecord, HostRecord)


Append = Callable[[Record], None]


ROUTING: Final = RoutingRecord()


FILTER: Final = FilterRecord()


CONNECTIONS: Final = ConnectionsRecord()


RESCUE: Final = RescueRecord()


SHARING: Final = SharingRecord()


def _must_be_valid(key: str, value: str) -> None:
    if not valid(key, value):
        raise ValueError(f"{key[:80]!r} = {value[:80]!r} is nothing that cedos changes")


class Sysctls(Protocol):
    """A kernel, as far as its sysctls are concerned (`SteeringKernel`)."""

    def read_sysctl(self, key: str) -> str | None: ...

    def write_sysctl(self, key: str, value: str) -> None: ...


def host_record(kernel: Sysctls) -> HostRecord:
    """Return what the host has now."""
    now = {key: kernel.read_sysctl(key) for key in CHANGED}
    return HostRecord(
        {key: value for key, value in now.items() if value is not None and valid(key, value)},
        current_place(),
    )


def change_sysctl(kernel: Sysctls, append: Append, key: str, after: str) -> bool:
    """Set a sysctl, the way back on the disk first; one that this kernel lacks is left out.

    False: the disk takes nothing, so the sysctl stays as it is.
    """
    before = kernel.read_sysctl(key)
    if before is not None and before.split() != after.split():
        try:
            append(SysctlRecord(key, before, after))
        except SteeringError as error:
            _log.warning("a sysctl stays as it is", sysctl=key, why=str(error))
            return False
        kernel.write_sysctl(key, after)
    return True


_DECODER: Final = msgspec.json.Decoder(Record)


_SHOWN: Final = 80


_SUM_BYTES: Final = 8


_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class JournalReading:
    """`foreign`: what stands there, legibly, and is nothing that cedos may undo; in words.

    `damaged`: something is illegible or missing.
    """

    records: Sequence[Record] = ()
    foreign: Sequence[str] = field(default=())
    damaged: bool = False


ELSEWHERE: Final = (
    "the journal is of another network namespace. Run `cedos restore` there. If that namespace no longer"
    " exists, remove the journal"
)


def of_here(journal: JournalReading) -> tuple[JournalReading, list[Record]]:
    """Return a journal without the records of other places; those of other ones of this boot.

    Records of an earlier boot are left out: nothing is left of their changes.
    """
    now, place = current_place(), None
    kept: list[Record] = []
    elsewhere: list[Record] = []
    for record in journal.records:
        if isinstance(record, HostRecord | InterfaceForwardingRecord):
            place = record.place
        if None in (now, place) or place == now:
            kept.append(record)
        elif now is not None and place is not None and place.boot == now.boot:
            elsewhere.append(record)
    return replace(journal, records=kept), elsewhere


def read_records(data: bytes) -> JournalReading:
    """Return all whole records, oldest first; bytes that cedos never writes are damage.

    A torn last line is no damage: a process was killed while it wrote it, and its change never made.
    Nor is a file without a line: whether there should be one is told by what stands in the kernel.
    """
    records: list[Record] = []
    foreign: list[str] = []
    damaged = False
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        body, whole = _check_sum(line)
        try:
            record = _DECODER.decode(body)
            if whole:
                records.append(record)
            else:  # (What is cut off before its sum is torn, too.)
                damaged = damaged or number < len(lines)
        except msgspec.ValidationError as error:
            if not line.startswith(b"{"):
                damaged = True
                continue
            foreign.append(f"line {number} of the journal ({_show(line)}): {_escape(str(error))}")
        except (ValueError, RecursionError):
            torn = number == len(lines) and line.isascii() and b"\0" not in line
            damaged = damaged or (bool(line) and not torn)
    if len(foreign) > _TOLD:
        foreign[_TOLD:] = [f"{len(foreign) - _TOLD} more lines like these"]
    if records and not isinstance(records[0], HostRecord):
        damaged = True
    return JournalReading(records, foreign, damaged)


def journal_line(record: Record) -> bytes:
    """Return a record as a line of the file; its sum shows a lost digit."""
    body = msgspec.json.encode(record)
    return b"%b %08x\n" % (body, crc32(body))


def _check_sum(line: bytes) -> tuple[bytes, bool]:
    """Return a line without its sum, and whether the sum is right."""
    body, _, checksum = line.rpartition(b" ")
    if len(checksum) != _SUM_BYTES or not body.endswith(b"}"):
        return line, False
    return body, checksum == b"%08x" % crc32(body)


def _show(line: bytes) -> str:
    text = _escape(line[:_SHOWN].decode("utf-8", "replace"))
    return f"{text}..." if len(line) > _SHOWN else text


def _escape(text: str) -> str:
    """Return a text by which a terminal does nothing."""
    return ascii(text)[1:-1][: 4 * _SHOWN]
