"""The controller's commands: what its caller is to do, in order.

A command that fails comes back as `events.CommandFailed`: the controller counts it as not done, and gives
it again with its next decision. `RescueFlow`, `CloseConnection`, `BarNetworks`, `HoldAnswers` and
`SetRuled` come back as `events.CommandDone` when they are done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cedos.controller.hint import HintRequest
from cedos.model import Address, Decision, FlowKey, FlowRecord, Network, NetworkLife, Strategy
from cedos.selector.decision.sessions import DetourVerdict

# A destination: a prefix and a port, or None for all ports.
Place = tuple[str, int | None]
# Stands in place of a network's name if connections to a destination are refused.
NOWHERE: Final = ""


def place_of(address: Address, port: int | None) -> Place:
    """Return the place of one address."""
    return f"{address}/{address.max_prefixlen}", port


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Send new connections over a network; `others`: for the IP versions that it lacks."""

    network: str
    others: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class SetDestinations:
    """Send new connections to destinations over networks; None: like all others; `NOWHERE`: refuse."""

    wanted: Mapping[Place, str | None]


@dataclass(frozen=True, slots=True)
class SetRuled:
    """The same for places that a user's rules are about, which nothing else overrides."""

    wanted: Mapping[Place, str | None]


@dataclass(frozen=True, slots=True)
class ForbidPlaces:
    """Let programs begin nothing at places over networks (names); None: forget a place.

    It holds where packets leave, whatever leads them there.
    """

    places: Mapping[Place, tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class SetMark:
    """Send new connections that carry a mark over a network; None: like all others."""

    mark: int
    network: str | None


@dataclass(frozen=True, slots=True)
class MoveConnection:
    """Move a living MPTCP connection."""

    token: int
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class ReleasePath:
    """Have what is under way over a network sent again over the connection's other networks."""

    token: int
    network: str


@dataclass(frozen=True, slots=True)
class LeaveSpares:
    """Keep no spare subflow of living MPTCP connections over these networks, and over all others."""

    networks: frozenset[str]


@dataclass(frozen=True, slots=True)
class BoundQueues:
    """Limit receive buffers: network -> (rate in bit/s, round trip in s)."""

    paths: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class AskNetwork:
    """Ping a network now, where pings are allowed and none may still be answered."""

    network: str


@dataclass(frozen=True, slots=True)
class FollowNetworks:
    """Bring the tables, rules and subflows in line with the networks."""

    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class AskName:
    """Ask a network's resolver for a fresh name: a witness beside pings, or in place of them."""

    network: str


@dataclass(frozen=True, slots=True)
class AskResolver:
    """Ask a network's resolver what a program has asked (`events.LookupAsked`).

    The answer is `events.ResolverReplied` with the number of this attempt.
    """

    key: FlowKey
    number: int
    attempt: int
    network: str
    resolver: Address


@dataclass(frozen=True, slots=True)
class AnswerLookup:
    """Answer a program's look-up with what an attempt has brought; None: with a failure."""

    key: FlowKey
    number: int
    attempt: int | None


@dataclass(frozen=True, slots=True)
class HoldAnswers:
    """Have answers to look-ups wait until `ReleaseAnswer`, or pass."""

    on: bool


@dataclass(frozen=True, slots=True)
class ReleaseAnswer:
    """Let an answer that waits pass, or drop it (`events.AnswersRead`)."""

    number: int
    passes: bool


@dataclass(frozen=True, slots=True)
class LookUpName:
    """Look a name up, in both IP versions; the end is `events.NameLookedUp`.

    `asked`: networks and resolvers, one to be asked after the other until one answers.
    """

    name: str
    asked: tuple[tuple[str, Address], ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell people something in the log; `about`: its facts by their names."""

    what: str
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BarNetworks:
    """Keep programs off these networks and no others; the end is `CommandDone` or `CommandFailed`."""

    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchNetworks:
    """Ping and probe these networks, where that is allowed: the barred ones count as down."""

    networks: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class TurnsChanged:
    """Wake the programs that wait for another turn of their transfers.

    The decisions about the transfers of these keys are to be worded and recorded (`events.DecisionMade`).
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeepTransfers:
    """Write the table of transfers for the next start."""


@dataclass(frozen=True, slots=True)
class KeepAwake:
    """Keep the host from falling asleep by itself, or do so no more."""

    on: bool


@dataclass(frozen=True, slots=True)
class CountUse:
    """Read all counters now; the answer is `events.BudgetsCounted`."""


@dataclass(frozen=True, slots=True)
class WatchSilence:
    """Ping these networks more often: an answer is overdue."""

    networks: frozenset[str]


@dataclass(frozen=True, slots=True)
class NoteUse:
    """Count these networks as in use: flows moved bytes over them."""

    networks: frozenset[str]


@dataclass(frozen=True, slots=True)
class LookAtFlows:
    """Look at all sockets; the answer is `events.FlowsSampled`."""


@dataclass(frozen=True, slots=True)
class LookAtFirstPacket:
    """Look whether a flow's first packet has an answer.

    The answer is `events.FirstPacketSeen` or `events.FirstPacketAnswered`, at once.
    """

    key: FlowKey


@dataclass(frozen=True, slots=True)
class SetFirstTimeouts:
    """Have first packets repeated after so many s, by network.

    The answer is `events.FirstTimeoutsSet`.
    """

    timeouts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RescueFlow:
    """Lead the kernel's repetition of a first packet over another network."""

    key: FlowKey
    network: str
    why: str


@dataclass(frozen=True, slots=True)
class EndRescue:
    """Remove the rule of a rescued flow that has ended."""

    key: FlowKey


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close a plain connection on which nothing comes, so that its program connects again."""

    key: FlowKey
    why: str


@dataclass(frozen=True, slots=True)
class RecordDecision:
    """Record a decision that is carried out."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class RecordFlow:
    """Record a flow that has ended.

    `chosen`: a program here began it, and it could have gone over another network.
    """

    record: FlowRecord
    chosen: bool


@dataclass(frozen=True, slots=True)
class CheckPage:
    """Ask for the test page over a network; `PageChecked` with this number is the answer."""

    network: str
    number: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class ShakeHands:
    """Make a TLS handshake with a well-known host; `HandshakeEnded` with this number is the answer."""

    network: str
    number: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class FollowHint:
    """Estimate the sizes of flows that a hint fits by it; `mark`: of their sockets, None: of any."""

    number: int
    hint: HintRequest
    mark: int | None


@dataclass(frozen=True, slots=True)
class ForgetHint:
    """Estimate sizes without this hint."""

    number: int


@dataclass(frozen=True, slots=True)
class ForgetFlow:
    """Forget a flow that was none: no peer answered, or its beginning was not seen."""

    key: FlowKey


@dataclass(frozen=True, slots=True)
class KeepRules:
    """Keep the user's rules for the next start."""

    rules: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AnswerChoice:
    """Answer a program that asked how to carry out its transfer; `detour`: whether that is worth it."""

    decision: Decision
    detour: DetourVerdict | None


@dataclass(frozen=True, slots=True)
class TellVerdict:
    """Tell people that a network's state has changed."""

    network: str
    life: NetworkLife
    before: NetworkLife
    why: str


Command = (
    AnswerChoice
    | AnswerLookup
    | AskName
    | AskNetwork
    | AskResolver
    | BarNetworks
    | BoundQueues
    | CheckPage
    | CloseConnection
    | CountUse
    | EndRescue
    | FollowHint
    | FollowNetworks
    | ForbidPlaces
    | ForgetFlow
    | ForgetHint
    | HoldAnswers
    | KeepAwake
    | KeepRules
    | KeepTransfers
    | LeaveSpares
    | LookAtFirstPacket
    | LookAtFlows
    | LookUpName
    | MoveConnection
    | NoteUse
    | RecordDecision
    | RecordFlow
    | ReleaseAnswer
    | ReleasePath
    | RescueFlow
    | SetDefault
    | SetDestinations
    | SetFirstTimeouts
    | SetMark
    | SetRuled
    | ShakeHands
    | Tell
    | TellVerdict
    | TurnsChanged
    | WatchNetworks
    | WatchSilence
)
