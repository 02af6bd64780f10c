"""The input of one decision: the transfer, the networks and what counts."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cedos.model import Context, Network, NetworkKind, StrategyKind, Transfer
from cedos.selector.decision.roles import USUAL_KINDS
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.objective import MaxS, Objective
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.times import CompletionModel


@dataclass(frozen=True, slots=True)
class Sent:
    """A transfer that was sent over `network` `waited_s` ago and has no answer so far.

    Completion times shorter than `waited_s` are no longer possible. A copy over another network can
    begin only now (dissertation, 4.3.4). The cost of the first copy is spent, whatever is chosen.
    """

    network: str
    waited_s: float


_MAX_S = MaxS()
# The price of a metered megabyte where none is configured; only ratios to other prices matter.
_PRICE_PER_METERED_MB = 0.01


@dataclass(frozen=True, slots=True)
class Case:
    """A transfer to be decided on, what is known, and what counts."""

    # Its median size counts. For a living flow this is the rest of its transfer.
    transfer: Transfer
    context: Context  # what is known of the networks; its `at_s` is the present instant
    networks: Sequence[Network]  # all networks of this host, up or not
    # Predictors; None: the rule of thumb (`decide.RuleOfThumb`).
    model: CompletionModel | None = None
    objective: Objective = _MAX_S  # turns the time and the use of resources into one cost
    power: PowerModel = DELPHI  # the radios' watts and tails
    # Strategies that can be carried out for this transfer: `redundant` needs a session, `mptcp` a
    # program that opens MPTCP sockets.
    kinds: Collection[StrategyKind] = USUAL_KINDS
    # Network -> seconds since its radio was last used; absent: long ago.
    idle_s: Mapping[str, float] = field(default_factory=dict)
    # Network -> money per megabyte; absent: 0.01 if metered, else nothing.
    price_per_mb: Mapping[str, float] = field(default_factory=dict)
    method: type[Evaluator] = BruteForce  # how the uncertainty of times counts
    # Given if the transfer was sent over a network already and has no answer so far.
    sent: Sent | None = None
    # The networks that programs are kept off, each with the reason in words.
    barred: Mapping[str, str] = field(default_factory=dict)
    # Whether the decision says why, which takes a quarter of its time. A living flow's move always does.
    worded: bool = True
    number: int = 0  # the decision's number in the records
    made_unix_s: float = 0.0  # the time of the decision in the records

    def money_per_mb(self, network: Network) -> float:
        """Return the money for a megabyte over a network; a helper names its own price."""
        if network.kind is NetworkKind.HELPER:
            return network.money_per_mb
        default = _PRICE_PER_METERED_MB if network.metered else 0.0
        return self.price_per_mb.get(network.name, default)
