"""The controller's events: what the host, the programs and the user tell it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cedos.controller.commands import (
    BarNetworks,
    CloseConnection,
    Command,
    HoldAnswers,
    Place,
    RescueFlow,
    SetRuled,
)
from cedos.controller.hint import HintRequest, PrefetchReport
from cedos.controller.rule import RuleRequest
from cedos.model import (
    Address,
    Budget,
    Direction,
    Evaluation,
    FlowKey,
    FlowSample,
    Indicator,
    Label,
    Network,
    PhoneUse,
    SizeEstimate,
    Strategy,
    Transfer,
)
from cedos.selector.budgets.keeper import Period
from cedos.selector.deadlines.transfer_table import TableTransfer
from cedos.selector.decision.case import Sent
from cedos.selector.decision.sessions import Detour

# States of a TCP socket, by the kernel's numbers.
ESTABLISHED, SYN_SENT = 1, 2


class Witness(StrEnum):
    """A kind of witness; its value is what had no answer, in words.

    `ELSEWHERE`: several servers that did not answer here answered over another network.
    """

    PING = "pings"
    NAME = "look-ups"
    PAGE = "the test page's request"
    CONNECTION = "new connections"
    ELSEWHERE = "connections that another network carries"
    TRANSFER = "running transfers"
    DATAGRAM = "datagrams"
    RADIO = "its radio"


@dataclass(frozen=True, slots=True)
class HostDefault:
    """The host's own default of an IP version, which stays.

    `interface` is empty where the host refuses everything; `vpn`: it is a tunnel; `what` says what leads
    there, in words; `first`: another program's rule, which the kernel asks before all of cedos.
    """

    interface: str
    vpn: bool
    what: str
    first: bool = False

    @property
    def overrules(self) -> bool:
        """Return whether it holds even for what is under a user's rule."""
        return self.vpn or not self.interface


@dataclass(frozen=True, slots=True)
class FlowOpened:
    """A flow's first packet left (or came). Of MPTCP it is a subflow.

    `own`: the daemon made it, to learn about a network; `mark`: its socket's, where that is known.
    """

    key: FlowKey
    at_s: float
    at_unix_s: float
    incoming: bool = False
    own: bool = False
    mark: int | None = None


@dataclass(frozen=True, slots=True)
class FlowClosed:
    """A flow's end with its final figures, seen from this host.

    Bytes are payload for TCP, where a handshake or an end may count as one byte more; for UDP they
    are whole packets. `exact` is False where the final figures are not known: the notification was
    lost (then they are the last ones seen), or the kernel does not count UDP
    (`nf_conntrack_acct=0`: then 0). A UDP flow ends when connection tracking gives it up, 30 to
    120 s after its last packet. Unknown values are None; `started_unix_s` is, for flows older than
    the monitor. `idle_down_s` and `idle_ack_s` are as in `FlowSample`, at the end.
    """

    key: FlowKey
    ended_unix_s: float
    bytes_down: int
    bytes_up: int
    rtt_s: float | None = None
    rtt_min_s: float | None = None
    delivery_rate_bps: float | None = None
    retransmits: int = 0
    at_s: float = 0.0
    started_unix_s: float | None = None
    exact: bool = True
    idle_down_s: float | None = None
    idle_ack_s: float | None = None


FlowEvent = FlowOpened | FlowClosed


@dataclass(frozen=True, slots=True)
class SizeLearned:
    """The size of a transfer that has begun, or a better estimate; `label`, `deadline_s` by a hint.

    `tls`: its connection began with a handshake of TLS that was seen. `progressed`: the flow has carried
    more than was expected.
    """

    key: FlowKey
    direction: Direction
    size: SizeEstimate
    server_name: str | None = None
    label: Label | None = None
    deadline_s: float | None = None
    tls: bool = False
    progressed: bool = False


# The kind of a record by which all names below its owner are looked up elsewhere (RFC 6672).
DNAME: Final = 39


@dataclass(frozen=True, slots=True)
class RecordOwner:
    """A name with records in a response: its addresses there, and all names that it leads to."""

    name: str
    addresses: tuple[Address, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DnsReply:
    """A response: its number, error code, whether it was cut, its question, and its addresses.

    `aliases` are the other names to which it leads (CNAME, and a service's target). An address belongs
    to the name that was asked for; to another one only if that is among `owners`, and has it.
    """

    number: int
    code: int
    truncated: bool
    name: str
    kind: int
    addresses: tuple[Address, ...] = ()
    aliases: tuple[str, ...] = ()
    owners: tuple[RecordOwner, ...] = ()

    @property
    def names(self) -> tuple[RecordOwner, ...]:
        """Return the name that was asked for, to which all of it belongs, and the other owners."""
        return (RecordOwner(self.name, self.addresses, self.aliases), *self.owners)


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The wall clock's time now."""

    unix_s: float


@dataclass(frozen=True, slots=True)
class HostSlept:
    """The host slept, which the monotonic clock did not count."""

    slept_s: float


@dataclass(frozen=True, slots=True)
class NetworksChanged:
    """A network appeared, changed or went; these are all now.

    `helpers` are neighbours by whom sessions reach the gateway. Nothing else goes over them.
    """

    networks: tuple[Network, ...]
    helpers: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class BudgetSet:
    """A budget is set or changed, in the period of now.

    `stamped`: it is the same one; its beginning changed as the wall's clock was set.
    """

    unix_s: float
    budget: Budget
    period: Period
    stamped: bool = False


@dataclass(frozen=True, slots=True)
class BudgetRemoved:
    """A budget was taken back."""

    name: str


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The units of a budget that were used in its period; of a battery's none: its charge tells.

    `until`: the period's end as people read it.
    """

    name: str
    spent: float
    period: Period
    until: str


@dataclass(frozen=True, slots=True)
class BudgetsCounted:
    """The use of all budgets."""

    unix_s: float
    uses: Sequence[BudgetUse]


@dataclass(frozen=True, slots=True)
class PhoneUseChanged:
    """The use of metered networks that a person wants; None: as configured."""

    use: PhoneUse | None


@dataclass(frozen=True, slots=True)
class PrefetchingChanged:
    """A program tells what it may still prefetch, and what it has used."""

    report: PrefetchReport


@dataclass(frozen=True, slots=True)
class HostDefaultsChanged:
    """By IP version the host's own default that stays."""

    defaults: Mapping[int, HostDefault]


@dataclass(frozen=True, slots=True)
class IndicatorsRead:
    """Indicators of a provider or a probe."""

    network: str
    indicators: Mapping[str, Indicator]


@dataclass(frozen=True, slots=True)
class ProvidersRead:
    """A reason to look at the facts: the providers were read, or a check has ended."""


@dataclass(frozen=True, slots=True)
class Attached:
    """A network is attached to an access point."""

    network: str
    point: str
    name: str


@dataclass(frozen=True, slots=True)
class CountersRead:
    """An interface's counters."""

    network: str
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class PingEnded:
    """A ping was answered, or not in time (None)."""

    network: str
    rtt_s: float | None
    asked_s: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Witnessed:
    """A witness heard something from beyond a network's router, or missed it.

    `asked_s`: when that was asked for which is missed.
    """

    network: str
    heard: bool
    witness: Witness
    at_s: float
    asked_s: float | None = None


class PortalVerdict(StrEnum):
    """The meaning of an answer to the test page.

    `silent`: no answer came. `unclear`: the page's server is broken. `filtered`: this network keeps
    the page from being asked for.
    """

    FREE = "free"
    CAPTIVE = "captive"
    SILENT = "silent"
    UNCLEAR = "unclear"
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True)
class PortalFinding:
    """A verdict with its reason in words, and the log-in page where that was told.

    `witness` is who spoke: the page, or the resolver that was asked for its name. `likeness` is equal
    for equal answers: two networks with the same wrong answer have not both the same portal, the test
    page changed. `guessed`: what did not answer need not be a resolver. `hosts`: the hosts that a
    person meets on the way to the log-in page, with their addresses in this network.
    """

    verdict: PortalVerdict
    why: str
    page: str = ""
    likeness: str = ""
    witness: Witness = Witness.PAGE
    guessed: bool = False
    hosts: Mapping[str, Sequence[Address]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageChecked:
    """The end of `CheckPage`."""

    network: str
    number: int
    finding: PortalFinding


class TlsAnswer(StrEnum):
    """The end of a TLS handshake; `answered`: by something that could not prove to be the host."""

    PROVEN = "proven"
    ANSWERED = "answered"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class HandshakeEnded:
    """The end of `ShakeHands`; None: no host is known that could be asked."""

    network: str
    number: int
    answer: TlsAnswer | None


@dataclass(frozen=True, slots=True)
class FlowsSampled:
    """A look at all sockets: it took `took_s`. `asked_at_s`: when the oldest pending ping was sent.

    `looked` is False where nothing was to be seen, and no socket was looked at.
    """

    samples: Sequence[FlowSample]
    asked_at_s: Mapping[str, float]
    took_s: float = 0.0
    looked: bool = True


@dataclass(frozen=True, slots=True)
class SubflowJoined:
    """An MPTCP connection was established, or has a further subflow; `steerable`: it is ours to move."""

    token: int
    key: FlowKey
    steerable: bool


@dataclass(frozen=True, slots=True)
class Steerable:
    """A change of whether an MPTCP connection may be moved; it may have ended."""

    token: int
    steerable: bool


@dataclass(frozen=True, slots=True)
class FirstPacketSeen:
    """A flow's first packet has no answer.

    The kernel sends it again in `resend_in_s`, as `resent` times before. `received_bytes`: the counters
    of all interfaces now. `user`: the number of the socket's owner.
    """

    key: FlowKey
    resend_in_s: float
    resent: int
    received_bytes: Mapping[str, int]
    user: int = 0


@dataclass(frozen=True, slots=True)
class FirstPacketAnswered:
    """A flow needs no rescue: it was answered or closed, or is a further subflow of MPTCP."""

    key: FlowKey


@dataclass(frozen=True, slots=True)
class FirstTimeoutsSet:
    """An answer to `SetFirstTimeouts`: whether first packets are repeated early."""

    early: bool


@dataclass(frozen=True, slots=True)
class SizesKnown:
    """The sizes of earlier transfers with an address and port, by direction."""

    remote: Address
    port: int
    sizes: Mapping[Direction, SizeEstimate]


@dataclass(frozen=True, slots=True)
class HintGiven:
    """A user's program says what its transfers will be like; the hint gets the next number."""

    hint: HintRequest
    uid: int


@dataclass(frozen=True, slots=True)
class HintWithdrawn:
    """A hint is taken back by who may do so (`Hints.check`)."""

    number: int


@dataclass(frozen=True, slots=True)
class ChoiceAsked:
    """A program asks how to carry out a transfer (`Decider.choose`), for which `programs` wait."""

    transfer: Transfer
    redundant: bool
    multipath: bool
    sent: Sent | None = None
    detour: Detour | None = None
    programs: int = 1


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """A decision that was taken elsewhere, to be numbered and recorded (a deadline's, a rescue's)."""

    transfer: Transfer
    choice: Strategy
    reason: str
    evaluations: tuple[Evaluation, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferReported:
    """A program tells of its transfer with a deadline.

    `used_bytes`: by network, in the `lasted_s` since its last word. `said_s`: when it said so.
    """

    transfer: TableTransfer
    said_s: float
    used_bytes: Mapping[str, int] = field(default_factory=dict)
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A user's transfer is complete or given up."""

    key: str
    uid: int
    said_s: float


@dataclass(frozen=True, slots=True)
class BatteryRead:
    """The battery's charge as a share; None: there is none, or it is not known.

    `energy_j`: what it holds; None: that is not known.
    """

    level: float | None = None
    discharging: bool = False
    energy_j: float | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A user's rule by its number; None: it was removed."""

    number: int
    rule: RuleRequest | None


# The user in place of a socket's, where the kernel cannot tell it.
UNKNOWN_USER: Final = -3


@dataclass(frozen=True, slots=True)
class AnswersRead:
    """Answers to look-ups were read, before programs have them or on their way.

    `number`: under which the packet waits for `ReleaseAnswer`; None: it does not wait. `believed` are of
    resolvers that this host is set up to ask, and to what a program has asked; `claimed` all others, but
    for `relayed`: what other servers say to a resolver on loopback, which has asked them.
    `mistaken`: what is no answer to its question, though programs may take it for one, as an answer to
    that question, and as what it says; one of kind DNAME is about all names below its own. `user`: whose
    socket it is for; -1: there is none. Or it is `UNKNOWN_USER`.
    """

    number: int | None
    believed: tuple[DnsReply, ...]
    claimed: tuple[DnsReply, ...] = ()
    mistaken: tuple[DnsReply, ...] = ()
    relayed: tuple[DnsReply, ...] = ()
    user: int = -1


@dataclass(frozen=True, slots=True)
class NameLookedUp:
    """The end of `LookUpName`; `told`: IP version -> the answer of a resolver that did not fail."""

    name: str
    told: Mapping[int, DnsReply]


@dataclass(frozen=True, slots=True)
class LookupAsked:
    """A program asked a resolver, which `public` says is a public one, for a name on the internet.

    The flow and the number tell the look-up from others; `interface`: where the question left.
    """

    key: FlowKey
    number: int
    name: str
    interface: str
    public: bool


@dataclass(frozen=True, slots=True)
class LookupAnswered:
    """The resolver that a program has asked answered; `failed`: that it failed, or refused."""

    key: FlowKey
    number: int
    failed: bool


@dataclass(frozen=True, slots=True)
class ResolverReplied:
    """An answer to `AskResolver`: it has the name, or is `refused`; None: no answer came in time."""

    key: FlowKey
    number: int
    attempt: int
    refused: bool | None


@dataclass(frozen=True, slots=True)
class HostsFileRead:
    """The names of the hosts file and their addresses."""

    hosts: Mapping[str, Sequence[Address]]


@dataclass(frozen=True, slots=True)
class CommandDone:
    command: RescueFlow | CloseConnection | BarNetworks | HoldAnswers | SetRuled


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command could not be carried out; `places`: which destinations of `SetDestinations`.

    `why`: in words, where people are told.
    """

    command: Command
    places: Sequence[Place] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The instant that `Controller.next_timer_s` named has come."""


Event = (
    AnswersRead
    | Attached
    | BatteryRead
    | BudgetRemoved
    | BudgetSet
    | BudgetsCounted
    | ChoiceAsked
    | ClockRead
    | CommandDone
    | CommandFailed
    | CountersRead
    | DecisionMade
    | FirstPacketAnswered
    | FirstPacketSeen
    | FirstTimeoutsSet
    | FlowClosed
    | FlowOpened
    | FlowsSampled
    | HandshakeEnded
    | HintGiven
    | HintWithdrawn
    | HostDefaultsChanged
    | HostSlept
    | HostsFileRead
    | IndicatorsRead
    | LookupAnswered
    | LookupAsked
    | NameLookedUp
    | NetworksChanged
    | PageChecked
    | PingEnded
    | PhoneUseChanged
    | PrefetchingChanged
    | ProvidersRead
    | ResolverReplied
    | RuleSet
    | SizeLearned
    | SizesKnown
    | Steerable
    | SubflowJoined
    | TimerFired
    | TransferEnded
    | TransferReported
    | Witnessed
)
