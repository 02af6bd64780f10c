"""The input of one decision: the transfer, the networks and what counts.

Roles: predictors know one `wifi` and one `cellular`, a host has any number of named networks.

Predictors and data sets call the strategies `wifi`, `cellular`, `mptcp_wifi`, `mptcp_cellular`
(the primary subflow's network) and `redundant`; decisions call them by the networks of this host.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

from cedos.model import Context, Network, NetworkKind, Strategy, StrategyKind, Transfer
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.objective import MaxS, Objective
from cedos.selector.uncertainty.times import CompletionModel

ROLES = ("wifi", "cellular")
_CELLULAR = NetworkKind.CELLULAR
# The networks that each of the predictors' strategies uses, the primary one first.
ROLES_OF = {
    "wifi": ("wifi",),
    "cellular": ("cellular",),
    "mptcp_wifi": ("wifi", "cellular"),
    "mptcp_cellular": ("cellular", "wifi"),
    "redundant": ("wifi", "cellular"),
}
# Strategies that any program's flow can use. Redundancy needs a session and a request.
USUAL_KINDS = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP})


@dataclass(frozen=True, slots=True)
class Roles:
    """The networks that have the roles `wifi` and `cellular`; None for a role without a network."""

    wifi: Network | None
    cellular: Network | None

    def players(self) -> list[tuple[str, Network]]:
        """Return the roles that have a network, each with it, Wi-Fi first."""
        both = (("wifi", self.wifi), ("cellular", self.cellular))
        return [(role, network) for role, network in both if network is not None]


def assign(networks: Sequence[Network], dead: Collection[str] = ()) -> Roles:
    """Assign the two roles to the networks that are up.

    An unmetered Wi-Fi or Ethernet gets `wifi`, a cellular network (or else a metered one) `cellular`. Of
    two networks of one sort, the better suited one gets its own role and the next one the other role;
    unmetered ones come first, then the order is by name. A dead network (see `liveness`) gets a role
    only if no living one is left for it.
    """
    up = [network for network in networks if network.up]
    if len(up) == 1:
        only = up[0]
        return Roles(None, only) if only.kind == _CELLULAR else Roles(only, None)
    if not up:
        return Roles(None, None)
    # The role `wifi` goes to a living network that is neither cellular nor metered, if there is one.
    wifi = min(up, key=lambda n: (n.name in dead, n.kind == _CELLULAR, n.metered, n.name))
    cellular = min(
        (network for network in up if network is not wifi),
        key=lambda n: (n.name in dead, *_unlike_cellular(n), n.name),
    )
    if wifi.kind == _CELLULAR and cellular.kind != _CELLULAR:
        wifi, cellular = cellular, wifi  # a dead Wi-Fi beside a living phone keeps its own role
    return Roles(wifi, cellular)


def pairs(networks: Sequence[Network], dead: Collection[str] = ()) -> tuple[Roles, ...]:
    """Return the roles of each pair of networks, so that predictors of two networks judge any number.

    The first pair is that of `assign`; up to two networks have no other one. Dead networks take no part
    while another one lives.
    """
    first = assign(networks, dead)
    up = [network for network in networks if network.up]
    living = [network for network in up if network.name not in dead] or up
    if len(up) <= len(ROLES) or len(living) < len(ROLES):
        return (first,)
    # More than two networks: assign the roles within each pair.
    ordered = sorted(living, key=lambda network: network.name)
    others = [assign(pair) for pair in combinations(ordered, len(ROLES))]
    return (first, *[roles for roles in others if roles != first])


def _unlike_cellular(network: Network) -> tuple[bool, bool]:
    """Return a sort key: cellular networks first, the free ones before others, then metered networks."""
    if network.kind == _CELLULAR:
        return False, network.metered
    return True, not network.metered


def strategies(
    roles: Roles,
    kinds: Collection[StrategyKind] = USUAL_KINDS,
    dead: Collection[str] = (),
    awaited: Collection[str] = (),
) -> tuple[tuple[str, Strategy], ...]:
    """Return the strategies open to a transfer, as (predictors' name, strategy), simplest first.

    If only one network is up or lives, only `single` remains, whatever `kinds` says. If the dead network
    is `awaited`, `mptcp` remains too, with the living network first: the dead one joins when it lives
    again. Where no network lives, all are tried.
    """
    players = [(role, network.name) for role, network in roles.players()]
    living = tuple([player for player in players if player[1] not in dead])
    found = _strategies(living or tuple(players), frozenset(kinds))
    # A dead network joins an MPTCP connection when it lives again.
    if len(living) == 1 < len(players) and StrategyKind.MPTCP in kinds:
        ((role, first),) = living
        found += tuple(
            (f"mptcp_{role}", Strategy(StrategyKind.MPTCP, (first, name)))
            for _, name in players
            if name in awaited and name != first
        )
    return found


@lru_cache(maxsize=256)
def _strategies(
    players: tuple[tuple[str, str], ...], kinds: frozenset[StrategyKind]
) -> tuple[tuple[str, Strategy], ...]:
    found = []
    if StrategyKind.SINGLE in kinds or len(players) == 1:
        found = [(role, Strategy(StrategyKind.SINGLE, (name,))) for role, name in players]
    if len(players) < len(ROLES):
        return tuple(found)
    # Two networks: MPTCP with either one first, or the same data over both.
    forth = tuple(name for _, name in players)
    if StrategyKind.MPTCP in kinds:
        found.append(("mptcp_wifi", Strategy(StrategyKind.MPTCP, forth)))
        found.append(("mptcp_cellular", Strategy(StrategyKind.MPTCP, forth[::-1])))
    if StrategyKind.REDUNDANT in kinds:
        found.append(("redundant", Strategy(StrategyKind.REDUNDANT, forth)))
    return tuple(found)


def role_strategy(strategy: Strategy, roles: Roles) -> str:
    """Return the predictors' name of a strategy.

    ValueError: its networks have no role, or it is `defer`.
    """
    for name, known in strategies(roles, frozenset(StrategyKind)):
        # The order of networks matters for MPTCP, where the first one is primary, but not for copies.
        if known == strategy or (
            known.kind == strategy.kind == StrategyKind.REDUNDANT
            and set(known.networks) == set(strategy.networks)
        ):
            return name
    raise ValueError(f"{strategy} is none of the strategies that predictors know")


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
    model: CompletionModel  # the predictors
    objective: Objective = _MAX_S  # turns the time and the use of resources into one cost
    power: PowerModel = DELPHI  # the radios' watts and tails
    # Strategies that can be carried out for this transfer: `redundant` needs a session, `mptcp` a
    # program that opens MPTCP sockets.
    kinds: Collection[StrategyKind] = USUAL_KINDS
    # Network -> seconds since its radio was last used; absent: long ago.
    idle_s: Mapping[str, float] = field(default_factory=dict)
    # Network -> money per megabyte; absent: 0.01 if metered, else nothing.
    price_per_mb: Mapping[str, float] = field(default_factory=dict)
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
