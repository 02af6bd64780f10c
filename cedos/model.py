"""The words of cedos as data: dataclasses that refuse values which cannot be, and do no more.

Times that end in `_at_s` are monotonic seconds (`time.monotonic`), those that end in `_unix_s` are
seconds since the epoch; all other `_s` are durations. Rates are bits per second, sizes are bytes.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_address
from math import inf
from typing import Annotated, Final, TypedDict

import msgspec
from msgspec import Meta

from cedos.budget_kinds import Resource

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface

_MAPPED: Final = bytes(10) + b"\xff\xff"


@lru_cache(maxsize=4096)
def address(octets: bytes) -> Address:
    """Return the address of 4 or 16 octets (network order), one object for each address.

    An IPv4 address mapped into IPv6 becomes an IPv4 address: an IPv6 socket that speaks IPv4 has the
    mapped form, while connection tracking and the path manager use the plain one. ValueError: there are
    more or fewer octets.
    """
    if len(octets) == 4:
        return IPv4Address(octets)
    if octets.startswith(_MAPPED):
        return IPv4Address(octets[len(_MAPPED) :])
    return IPv6Address(octets)


def is_address(host: str) -> bool:
    """Tell whether the host is named by its address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class NetworkKind(StrEnum):
    """The access technology of a network; a helper is a neighbour who shares its own (CBSP)."""

    WIFI = "wifi"
    CELLULAR = "cellular"
    ETHERNET = "ethernet"
    HELPER = "helper"


class NetworkOverride(TypedDict, total=False):
    """The user's own settings for one interface; each key replaces a guess."""

    name: str
    kind: str
    metered: bool
    ignore: bool


class Direction(StrEnum):
    """Which way the bulk of a transfer's bytes goes, seen from this host."""

    DOWN = "down"
    UP = "up"


class Urgency(StrEnum):
    """IntNW's first label: does a person wait for it (dissertation, 2.2.2)."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


class Bulk(StrEnum):
    """IntNW's second label: is latency or bandwidth what counts (dissertation, 2.2.2)."""

    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Label:
    """IntNW's label of a transfer."""

    urgency: Urgency = Urgency.FOREGROUND
    bulk: Bulk = Bulk.SMALL


class StrategyKind(StrEnum):
    """The ways to carry out a transfer."""

    SINGLE = "single"
    MPTCP = "mptcp"
    REDUNDANT = "redundant"
    DEFER = "defer"


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to carry out a transfer; `networks` are names, the primary one first."""

    kind: StrategyKind
    networks: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.networks)})" if self.networks else str(self.kind)


NO_DEFAULT_ROUTE: Final = "no default route"


@dataclass(frozen=True, slots=True)
class NextHop:
    """The next hop of a network's default route of an IP version; no `gateway`: the link itself.

    The gateway of an IPv4 route may have an IPv6 address (RFC 9229).
    """

    version: int
    gateway: Address | None = None


@dataclass(frozen=True, slots=True)
class Translator:
    """An interface behind which IPv4 goes over a network of IPv6 alone (464XLAT, RFC 6877)."""

    interface: str
    index: int
    addresses: tuple[Interface, ...] = ()


@dataclass(frozen=True, slots=True)
class Network:
    """An access network reached through one local interface.

    `name` is what users and records call it: the interface's name unless configured otherwise.
    `next_hops` has at most one of each IP version, IPv4 first; none: the link itself, of both.
    `resolvers` are the DNS servers that belong to this network. `up` is whether packets can leave:
    `carrier`, address and default route.

    A helper (CBSP) is one of several addresses of an interface. It leads to one host, `leads_to` (None:
    everywhere), and costs `money_per_mb` for 10^6 bytes.
    """

    name: str
    interface: str
    index: int
    kind: NetworkKind
    metered: bool
    addresses: tuple[Interface, ...] = ()
    next_hops: tuple[NextHop, ...] = ()
    resolvers: tuple[Address, ...] = ()
    up: bool = True
    carrier: bool = True
    translator: Translator | None = None
    leads_to: Address | None = None
    money_per_mb: float = 0.0

    @property
    def egress(self) -> str:
        """Return the name of its paths in sessions: its interface, with a helper's address behind it."""
        return (
            self.interface if self.leads_to is None else f"{self.interface}/{self.addresses[0].ip}"
        )

    @property
    def lacks(self) -> str:
        """Say what this network lacks to be up; empty where it is."""
        if self.leads_to is not None and self.carrier:
            return "" if self.up else "it leaves"
        lacking = [] if self.addresses else ["no address"]
        lacking += [] if self.next_hops else [NO_DEFAULT_ROUTE]
        return "" if self.up else " and ".join(lacking) or "no carrier"

    @property
    def gateways(self) -> tuple[Address, ...]:
        """Return the routers of its default routes, that of IPv4 first."""
        found = (hop.gateway for hop in self.next_hops)
        return tuple(dict.fromkeys(gateway for gateway in found if gateway is not None))

    def leads_out(self, *versions: int) -> bool:
        """Return whether packets of one of these IP versions (of either, without) can leave by it."""
        return (
            self.leads_to is None
            and self.up
            and any(
                any(each.version == version and _may_leave(each.ip) for each in self.addresses)
                and (not self.next_hops or any(hop.version == version for hop in self.next_hops))
                for version in versions or (4, 6)
            )
        )

    def carries(self, version: int) -> bool:
        """Return whether it leads out in an IP version, or a translator does over it."""
        translated = version == 4 and self.translator is not None and self.leads_out(6)
        return translated or self.leads_out(version)

    def reaches(self, remote: Address) -> bool:
        """Return whether packets to an address can be sent over this network."""
        if self.leads_to is not None:
            return self.up and remote == self.leads_to
        on_link = any(remote in each.network for each in self.addresses)
        return self.up and (on_link or remote.is_link_local or self.leads_out(remote.version))


def owners(networks: Iterable[Network]) -> dict[Address, tuple[Network, Interface]]:
    """Return by own address the network that has it, and its prefix there.

    Of several it is the first that is up: a network may give this host an address that it has on another.
    """
    found: dict[Address, tuple[Network, Interface]] = {}
    for network in sorted(networks, key=lambda each: not each.up):
        for address in network.addresses:
            found.setdefault(address.ip, (network, address))
    return found


def _may_leave(own: Address) -> bool:
    return own.version == 4 or not own.is_link_local


@dataclass(frozen=True, slots=True)
class Indicator:
    """A measured property of a network; the older it is, the less certain.

    `active` says that bytes were spent to learn it, `synthetic` that it was drawn and not measured.
    """

    value: float
    measured_at_s: float
    active: bool = False
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Attachment:
    """The end of a network's first hop: a Wi-Fi access point, by its BSSID (`point`) and SSID (`name`).

    What was learnt about one access point says little of the next. So errors and places are learnt
    anew when `point` changes. `since_s` is when it was first seen there (monotonic seconds).
    """

    point: str
    name: str
    since_s: float


@dataclass(frozen=True, slots=True)
class CompetingTransfer:
    """A transfer under way, with which others share its network.

    `rate_bps` is how fast its bytes came lately; inf: as fast as it is let, as it has just begun.
    """

    flow: "FlowKey"
    remaining_bytes: float
    rate_bps: float = inf


# The bytes that this host's transfers have still to carry, by network and direction.
Competing = Mapping[str, Mapping[Direction, tuple[CompetingTransfer, ...]]]


class NetworkLife(StrEnum):
    """The state of a network that is up (`cedos/controller/networks/liveness.py` has the transitions)."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    SILENT = "silent"
    DEAD = "dead"
    CAPTIVE = "captive"


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """The state of a network, why in words, and since when (monotonic, s).

    `page`: the log-in page of a captive portal, where that is known.
    """

    life: NetworkLife
    why: str
    since_s: float
    page: str = ""

    @property
    def condemned(self) -> bool:
        """Return whether the network carries nothing as long as this holds."""
        return self.life in (NetworkLife.DEAD, NetworkLife.CAPTIVE)


@dataclass(frozen=True, slots=True)
class Context:
    """The indicators of the networks at one instant: network name -> indicator name -> indicator.

    Indicator names are the columns of a transfer data set without their network prefix: `rtt_s`,
    `rtt_min_s`, `ping_loss`, `past1_bps`, `past5_bps`, `past10_bps`, `available`, `dns_s`,
    `rssi_dbm`, `link_bps`, `chan_util`, `rsrp_dbm`, `rsrq_db`, `sinr_db`, `cqi`, `speed_mps`. Beyond
    those: `dbm`, `ap_count`, `loss`, `delivery_down_bps`, `delivery_up_bps`, `past1_up_bps` and other
    rates of the uplink, `silence_s`, and `captive` (1: a portal is in the way). `attachments` has the
    access points, where known, `competing` by network what this host's other transfers have still to
    carry, `pauses` for how long it was silent each time of late, s, and `verdicts` the state of each
    network (a context of a data set has none).
    """

    at_s: float
    networks: Mapping[str, Mapping[str, Indicator]]
    attachments: Mapping[str, Attachment] = field(default_factory=dict)
    competing: Competing = field(default_factory=dict)
    pauses: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    verdicts: Mapping[str, NetworkVerdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """A transfer's size in bytes: the median with a 90 % interval, and where it comes from.

    `source` is one of `default`, `content-length`, `history`, `hint`, `progress`. An exact size
    has all three equal.
    """

    low_bytes: int
    median_bytes: int
    high_bytes: int
    source: str


# The last port that a rule of the kernel's can be about: it refuses one for 65535
# (`fib_rule_port_range_valid`).
LAST_RULED_PORT: Final = 65_534


@dataclass(frozen=True, slots=True)
class FlowKey:
    """The 4-tuple of a TCP or UDP flow, seen from this host; events of one flow are joined by it."""

    local: Address
    local_port: int
    remote: Address
    remote_port: int
    protocol: str = "tcp"

    def __hash__(self) -> int:
        # Every event of a flow looks it up; addresses hash in Python, slowly, and ports suffice.
        return hash((self.local_port, self.remote_port))


@dataclass(frozen=True, slots=True)
class FlowSample:
    """A TCP flow or MPTCP subflow as the kernel shows it; None: the kernel has no sample yet.

    `state` is the kernel's number, `token` that of the MPTCP connection. `rtt_s` is the kernel's smoothed
    estimate, which only sending refreshes; `receive_rtt_s` the one that receiving refreshes, from an
    acknowledgement to the data that it let go. `idle_down_s` counts from the last data received,
    `idle_ack_s` from the last acknowledgement. Of `segments` with data, `retransmits` were sent again.
    `unread`: the program is slower than the network (`kernel.tcp_info.unread`), or `window_limit_bytes`
    (rcv_ssthresh; the kernel raises it for a program that reads at once) grows and the window does not
    yet.
    `counted` is False where the kernel told no figures.
    """

    key: FlowKey
    at_s: float
    state: int
    token: int | None
    rtt_s: float | None
    rtt_min_s: float | None
    delivery_rate_bps: float | None
    bytes_down: int
    bytes_up: int
    retransmits: int
    idle_down_s: float
    unacknowledged: int
    idle_ack_s: float = inf
    receive_rtt_s: float | None = None
    segments: int = 0
    unread: bool = False
    window_limit_bytes: int = 0
    counted: bool = True

    def has_grown(self, before: "FlowSample | None") -> bool:
        """Return whether the limit has grown since: then its program reads."""
        return before is not None and self.window_limit_bytes > before.window_limit_bytes


@dataclass(frozen=True, slots=True)
class Transfer:
    """A unit of application data. `deadline_s` counts from the decision; None: no deadline."""

    size: SizeEstimate
    direction: Direction = Direction.DOWN
    label: Label = Label()
    deadline_s: float | None = None
    flow: FlowKey | None = None
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The expected cost of a strategy: seconds, joules, metered bytes, and all in one currency.

    `time_low_s` and `time_high_s` bound the 90 % interval of the completion time.
    """

    strategy: Strategy
    time_s: float
    time_low_s: float
    time_high_s: float
    energy_j: float
    metered_bytes: float
    cost: float


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision is a record: what was known, what each strategy would cost, what was chosen and why."""

    number: int
    made_unix_s: float
    transfer: Transfer
    context: Context
    evaluations: tuple[Evaluation, ...]
    choice: Strategy
    objective: str
    reason: str


@dataclass(frozen=True, slots=True)
class Subflow:
    """A path of a finished flow: its addresses, its network, the bytes that it carried."""

    key: FlowKey
    network: str | None
    bytes_down: int
    bytes_up: int
    rtt_s: float | None = None
    rtt_min_s: float | None = None
    delivery_rate_bps: float | None = None
    retransmits: int = 0


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected and the actual time of a flow's only transfer, s."""

    strategy: str  # how it was carried, in the predictors' words: `wifi`, `mptcp_cellular` ...
    network: str  # the local network that it began on
    direction: Direction
    carried_bytes: int
    took_s: float
    rate_age_s: float  # how old that network's rate was; 0: fresh
    # By strategy the 5 %, 50 % and 95 % quantiles and the mean.
    expected: Mapping[str, tuple[float, float, float, float]]
    # What the predictors were shown, as in a transfer data set.
    columns: Mapping[str, float] = field(default_factory=dict)
    # How many times longer than they said it was expected to take, for what shared the network,
    # queues and silences.
    lengthened: float = 1.0


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """A finished flow as it goes to history, to the predictors' errors and to the budgets.

    `token` identifies an MPTCP connection, None for plain TCP. `started_unix_s` is None where the
    start was not seen (the flow is older than the daemon). `exact` is False where the final bytes of
    a subflow are not known. `prediction` is there where one transfer was carried one way.
    """

    subflows: tuple[Subflow, ...]
    token: int | None
    started_unix_s: float | None
    ended_unix_s: float
    server_name: str | None = None
    decision: int | None = None
    size: SizeEstimate | None = None
    switches: tuple[tuple[float, Strategy], ...] = field(default=())
    exact: bool = True
    prediction: Prediction | None = None


MOST_AGE_S: Final = 1e9
_MOST_BYTES: Final = 10**15
_Bytes = Annotated[int, Meta(ge=0, le=_MOST_BYTES)]
_Interface = Annotated[str, Meta(min_length=1, max_length=64)]
_MOST_INTERFACES: Final = 16


class CarriedConnection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program's connection through a gateway: in the proxy's report, in `status`, in the history.

    Bytes are payload since the connection began, so that a lost report does no harm; in the history they
    are payload since the record before.
    """

    # The server's name, else its address.
    server: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65_535)]
    # The proxy's own for the connection, never used twice.
    number: Annotated[int, Meta(ge=0, le=2**53)] = 0
    # The gateway's name, as it was joined. A report has one for all its connections.
    gateway: Annotated[str, Meta(max_length=253)] = ""
    # Of the gateway, to which the session's connections led. As `gateway`.
    addresses: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    age_s: Annotated[float, Meta(ge=0, le=MOST_AGE_S)] = 0.0
    bytes_down: _Bytes = 0
    bytes_up: _Bytes = 0
    # Both ways, by interface in a report, by the network's name elsewhere. Where a session used
    # several at once, by what the whole session carried over each in that second.
    bytes_by_network: Annotated[dict[_Interface, _Bytes], Meta(max_length=64)] = {}
    # Number of the daemon's last decision about data like this in the session.
    decision: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    strategy: Strategy | None = None  # the choice of that decision
    ended_unix_s: float | None = None  # None while the connection lives

    @property
    def totals(self) -> tuple[int, int, dict[str, int]]:
        """Bytes down, up, and by network."""
        return self.bytes_down, self.bytes_up, self.bytes_by_network

    def at_least(self, told: "CarriedConnection") -> "CarriedConnection":
        """Return `told` with totals that never shrink; of its interfaces, those beyond 16 are dropped."""
        by = dict(self.bytes_by_network)
        for interface, count in told.bytes_by_network.items():
            if interface in by or (count and len(by) < _MOST_INTERFACES):
                by[interface] = max(count, by.get(interface, 0))
        return msgspec.structs.replace(
            told,
            bytes_down=max(self.bytes_down, told.bytes_down),
            bytes_up=max(self.bytes_up, told.bytes_up),
            bytes_by_network=by,
        )

    def growth_since(self, before: "CarriedConnection") -> "CarriedConnection":
        """Return it with the bytes by which it has grown since it was `before`."""
        by = {
            interface: more
            for interface, count in self.bytes_by_network.items()
            if (more := count - before.bytes_by_network.get(interface, 0))
        }
        return msgspec.structs.replace(
            self,
            bytes_down=self.bytes_down - before.bytes_down,
            bytes_up=self.bytes_up - before.bytes_up,
            bytes_by_network=by,
        )

    def with_names(self, names: Mapping[str, str]) -> "CarriedConnection":
        """Return it with the networks' names; an interface without a name keeps its own."""
        found: dict[str, int] = {}
        for interface, count in self.bytes_by_network.items():
            name = names.get(interface, interface)
            found[name] = min(found.get(name, 0) + count, _MOST_BYTES)
        return msgspec.structs.replace(self, bytes_by_network=found)


class Every(StrEnum):
    """The recurrence of a budget."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_HELPER_NAME: Final = re.compile(r"helper-\d+")
_MOST_SUPPLY: Final = 1e15
_FIRST_YEAR, _LAST_YEAR = 1981, 8999


class PhoneUse(StrEnum):
    """The use of metered networks, in people's words."""

    WITHOUT_WIFI = "only without Wi-Fi"
    TO_SAVE_TIME = "to save time"
    FREELY = "freely"


@dataclass(frozen=True, slots=True)
class Budget:
    """A supply of one resource for one period. Errors: ValueError, with what would be right."""

    name: str  # what the person calls it
    resource: Resource  # what is counted
    supply: float  # bytes, joules or money for a period
    until: str  # the end of a period, local time in ISO 8601 (`2026-12-01T00:00:00`)
    # The beginning of one that does not recur, likewise; empty: when it was first seen.
    since: str = ""
    # Names of the networks whose use counts; empty: all that are metered. Energy: empty.
    networks: tuple[str, ...] = ()
    every: Every | None = None  # how it recurs; None: it does not
    # Joules of this host's battery until it is charged; `supply` is what it then holds.
    battery: bool = False
    # Data or money: once it is spent, programs are kept off the networks it counts. None: as the
    # budget that it replaces, else not.
    hard: bool | None = None

    def __post_init__(self) -> None:
        for what, name in (("budget", self.name), *(("network", each) for each in self.networks)):
            if not is_name(name):
                raise ValueError(
                    f'"{name}" cannot be the name of a {what}: use 1 to 31 letters and digits, and'
                    " after the first also . _ -"
                )
        if not 0.0 <= self.supply <= _MOST_SUPPLY:
            raise ValueError(
                f"a supply of {self.supply:g} cannot be; more than 0, and {_MOST_SUPPLY:,.0f} at most,"
                " would be right"
            )
        if not self.supply and not self.battery:
            raise ValueError(
                'a supply of 0 would forbid everything; more, such as "1MB", would be right'
            )
        if self.battery and self.resource is not Resource.ENERGY:
            raise ValueError("only energy comes from a battery")
        if self.hard and any(map(is_helper_name, self.networks)):
            raise ValueError(
                "a hard budget cannot name a helper: no program is kept off it;"
                " `cedos share request --budget` ends its use"
            )
        if self.hard and not self.resource.meter.can_bar:
            raise ValueError(
                f"a budget of {'the battery' if self.battery else 'energy'} cannot be hard: programs"
                " use energy whether they are let on a network or not; data and money can be"
            )
        until = _instant(self.until)
        if self.since and _instant(self.since) >= until and self.every is None:
            raise ValueError(f"it would end ({until:%Y-%m-%d %H:%M}) before it begins")


def is_name(text: str) -> bool:
    """Tell whether a budget or a network can have this name."""
    return _NAME.fullmatch(text) is not None


def is_helper_name(text: str) -> bool:
    """Tell whether this is the name of a helper, of which each one's table has one."""
    return _HELPER_NAME.fullmatch(text) is not None


def end_wrong(end: datetime) -> str:
    """Why a date and time cannot be the end of anything, in words; "": it can."""
    if end.tzinfo is not None:
        return "an end has no zone: what this host's wall shows would be right, 2026-12-01 08:00"
    if not _FIRST_YEAR <= end.year <= _LAST_YEAR:
        return f"the year {end.year} cannot be; {_FIRST_YEAR} to {_LAST_YEAR} would be right"
    return ""


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'"{text}" is no date and time such as 2026-12-01T00:00:00') from None
    if why := end_wrong(found):
        raise ValueError(f'"{text}": {why}')
    return found
