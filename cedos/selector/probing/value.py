"""The value of a probe: send it if its answer saves more than it costs.

An answer may change the choice of the next transfers. Let `b` be the least cost of a strategy that
starts on the network and `r` that of the best one that does not. With age the knowledge of `b` gets
vague: relative drift of standard deviation sigma(age). A fresh measurement removes that part, and
if it reverses the order of `b` and `r`, the difference is saved. For a normal drift the expected
saving has a closed form (the expected value of information for two alternatives).

Two rarer events count apart, since they are no drift: a network in use died, or a network that is
worse or dead recovered to what it was at an earlier probe. Without the second, a network met in a
bad second would be believed bad for ever.

Results of scheduled pings are in the evaluations, and trigger nothing here: a probe after each
change of loss or round trip cost more bytes and chose no better
(`emu/experiments/delphi_adaptive.toml`).

A probe's energy is Delphi's (Table 3): delay times the radio's power, for its UDP probe that of the
bytes' direction, for a DNS query and pings that between the two; the tail, which the table leaves
out, is added.
"""

from collections import deque
from dataclasses import dataclass
from math import erf, exp, expm1, hypot, pi, sqrt

from cedos.model import Direction, NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.prices import Prices
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.probing.rules import Moment, PassiveChange

# A probe with this share of its bytes in one direction is charged at that direction's power.
_ONE_WAY = 0.9


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Joules while the probe lasted, and those by which it prolonged the radio's tail."""

    active_j: float
    tail_j: float

    @property
    def energy_j(self) -> float:
        """The joules of the probe."""
        return self.active_j + self.tail_j


def probe_cost(
    kind: NetworkKind,
    *,
    bytes_up: float,
    bytes_down: float,
    seconds: float,
    idle_s: float | None = None,
    power: PowerModel = DELPHI,
) -> ProbeCost:
    """Return the joules of one probe.

    `bytes_up`: sent; where nothing was sent, nothing is paid.
    `bytes_down`: received.
    `seconds`: from the first packet to the last, or to the end of waiting for it.
    `idle_s`: seconds since the radio was last used; None: long ago.
    """
    if bytes_up <= 0:
        return ProbeCost(0.0, 0.0)
    radio = power.radios[kind]
    up_share = bytes_up / (bytes_up + bytes_down)
    if up_share > _ONE_WAY:
        active_w = radio.active_w(Direction.UP)
    elif up_share < 1 - _ONE_WAY:
        active_w = radio.active_w(Direction.DOWN)
    else:
        active_w = (radio.active_w(Direction.UP) + radio.active_w(Direction.DOWN)) / 2
    return ProbeCost(active_w * seconds, radio.added_tail_j(idle_s))


# An age that stands for "never probed".
_NEVER_S = 1e9
# A change of this many ranges is entirely new.
_WHOLE = 3.0
# The number of remembered best costs of each network, as expected when it was probed.
_REMEMBERED = 20
# The assumed duration of a probe, for the prices of its joules and bytes.
_LASTS_S = 0.1
# How long its answer is of use; transfers that begin within it share the cost.
_LIFETIME_S = 5.0


# The rates at which knowledge of a network goes stale, from how real networks change: the standard
# deviation of the log completion time that one second of age adds, the power of the age with which it
# grows, and its most.
_SIGMA_1S, _GROWTH, _SIGMA_MOST = 0.25, 0.35, 0.9
# How often a network that works stops carrying anything, per second, and how often one that is dead, or
# worse than the others, is what it was before.
_DEATH_PER_S, _REVIVAL_PER_S = 0.01, 0.2
# Seconds lost by a transfer that starts on a network that has just died.
_DEATH_COST_S = 0.5
# Standard deviation that a change of the passive indicators by their whole range adds (Delphi's equation
# 1: a sign of news counts in the same currency as age), and how often such a change is a network's end,
# or its return.
_SIGMA_CHANGE, _DEATH_PER_CHANGE = 0.6, 0.1


def _sigma(age_s: float, change: float) -> float:
    """Return the standard deviation after `age_s` and a passive change, in logarithms of time."""
    grown: float = _SIGMA_1S * max(age_s, 0.0) ** _GROWTH
    return min(hypot(grown, _SIGMA_CHANGE * change), _SIGMA_MOST)


def _died(age_s: float, change: float) -> float:
    """Return the probability that a network which worked carries nothing any more."""
    return -expm1(-_DEATH_PER_S * age_s - _DEATH_PER_CHANGE * change)


def _returned(age_s: float, change: float) -> float:
    """Return the probability that a bad network is what it was before."""
    return -expm1(-_REVIVAL_PER_S * age_s - _DEATH_PER_CHANGE * change)


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one probe of a network; `probe_cost` gives its joules and bytes."""

    cost: float  # in the currency of evaluations: seconds, if prices of joules and bytes are
    energy_j: float = 0.0  # joules that energy budgets price as well
    carried_bytes: float = 0.0  # bytes that data budgets price as well

    def today(self, network: str, prices: Prices) -> float:
        """Return the cost with the budgets' present prices, like any transfer's."""
        return (
            self.cost
            + prices.energy_s(self.energy_j, _LASTS_S)
            + prices.data_s(network, self.carried_bytes, _LASTS_S)
        )


class ProbeValue:
    """Probes where the expected saving exceeds the price."""

    def __init__(
        self,
        price: Price,  # of one probe
        *,
        # Whether the probe (a ping, a look-up) tells only that a network lives, not how fast it is.
        light: bool = False,
    ) -> None:
        self._light = light
        self._price = price
        self._probed_at_s: dict[str, float] = {}
        self._before: dict[str, deque[float]] = {}
        self._passive = PassiveChange(0.0)

    def worth(self, network: str, moment: Moment) -> float:
        """Return the expected saving of all transfers that an answer would serve, in units of cost."""
        best, rival = _best(network, moment)
        if rival is None:
            return 0.0  # nothing to choose from
        quiet_s = self._quiet_s(network, moment)
        age_s = moment.now_s - self._probed_at_s.get(network, -_NEVER_S)
        change = min(self._passive.change(network, moment), _WHOLE)
        if self._light and network not in self._probed_at_s:
            change = 0.0  # the change since an unknown moment
        each = 0.0
        # The saving if the answer reverses the order of the two best strategies.
        if best is not None and not self._light:
            each = expected_saving(abs(rival - best), best * _sigma(age_s, change))
        # The saving if the network died: transfers would not begin on it.
        if best is not None and best <= rival:
            each += _died(quiet_s, change) * max(_DEATH_COST_S - (rival - best), 0.0)
        elif best is None or not self._light:
            # The saving if a worse or dead network recovered to one of its earlier costs. Without any,
            # its best is assumed to be half of the rival's cost.
            before = self._before.get(network) or (0.5 * rival,)
            saved = sum([max(rival - cost, 0.0) for cost in before]) / len(before)
            each += _returned(age_s, change) * saved
        # As many transfers begin while the answer is of use.
        return each * (moment.transfers_per_s * _LIFETIME_S + (1.0 if moment.pending else 0.0))

    def _quiet_s(self, network: str, moment: Moment) -> float:
        """Return the seconds since the network was last heard: other traffic is as good as a probe."""
        probed_at_s = self._probed_at_s.get(network, -_NEVER_S)
        return moment.now_s - max(probed_at_s, moment.heard_at_s.get(network, -_NEVER_S))

    def weigh(self, network: str, moment: Moment) -> bool:
        cost = self._price.today(network, moment.prices)
        if cost >= PROHIBITIVE:
            return False  # a used-up budget forbids it
        # A network without any knowledge is probed once.
        known_alive = self._light and network in moment.heard_at_s
        if network not in self._probed_at_s and not known_alive:
            return True
        return self.worth(network, moment) > cost

    def probed(self, network: str, moment: Moment) -> None:
        self._probed_at_s[network] = moment.now_s
        self._passive.probed(network, moment)
        best, _ = _best(network, moment)
        if best is not None:
            self._before.setdefault(network, deque(maxlen=_REMEMBERED)).append(best)


def _best(network: str, moment: Moment) -> tuple[float | None, float | None]:
    """Return the least cost of a strategy that starts on the network, and of one that does not."""
    mine: list[float] = []
    others: list[float] = []
    for each in moment.evaluations:
        (mine if each.strategy.networks[:1] == (network,) else others).append(each.cost)
    return min(mine, default=None), min(others, default=None)


def expected_saving(gap: float, sigma: float) -> float:
    """Return E[max(0, X - gap)] for a normal X of mean 0: the average saving of a reversed order."""
    if sigma <= 0.0:
        return 0.0
    z = gap / sigma
    # The closed form sigma * (phi(z) - z * (1 - Phi(z))) of a normal distribution's partial expectation.
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi)
    above = 0.5 * (1.0 - erf(z / sqrt(2.0)))
    return sigma * (density - z * above)
