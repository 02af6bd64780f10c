"""A probe is worth sending when its answer saves more than it costs (DESIGN, "The one decision").

What an answer may change is the choice of the next transfers. Let `b` be the least cost of a
strategy that starts on the network and `r` that of the best one that does not. With age the knowledge
of `b` gets vague: relative drift of standard deviation sigma(age). A fresh look removes that part, and
if it turns the order of `b` and `r` around, the difference is saved. For a normal drift the expected
saving has a closed form (the expected value of information for two alternatives). Two rarer pieces of
news count apart, since they are not a drift: that a network in use died, and that one which is worse
than the others, or dead, is again what it was at one of its last probes. Without the second one, a
network that was met in a bad second is believed to be bad for as long as nothing else happens.

What scheduled pings tell is known to whoever evaluates, and triggers nothing here: a probe after each
change of loss or round trip cost more bytes and chose no better (`emu/experiments/delphi_adaptive.toml`).
"""

from collections import deque
from dataclasses import dataclass
from math import erf, exp, expm1, hypot, pi, sqrt

from cedos.selector.budgets.prices import Prices
from cedos.selector.budgets.supply import PROHIBITIVE
from cedos.selector.probing.rules import Moment, PassiveChange, ProbeVerdict
from cedos.selector.rounded import rounded

_NEVER_S = 1e9
# A change of so many ranges is as new as news gets.
_WHOLE = 3.0
# Of each network the best costs, as they were believed when it was probed, that are remembered.
_REMEMBERED = 20
_LASTS_S = 0.1


@dataclass(frozen=True, slots=True)
class Drift:
    """How fast knowledge of a network goes stale, from how real networks change.

    Attributes:
        sigma_1s: standard deviation of the log completion time that one second of age adds.
        growth: sigma grows with age to this power.
        sigma_most: and never beyond this.
        death_per_s: how often a network that works stops carrying anything, per second.
        revival_per_s: how often one that is dead, or worse than the others, is what it was before.
        death_cost_s: seconds lost by a transfer that starts on a network that has just died.
        sigma_change: standard deviation that a change of the passive indicators by their whole range
            adds (Delphi's equation 1): a sign of news counts in the same currency as age.
        death_per_change: how often such a change is a network's end, or its return.
    """

    sigma_1s: float = 0.25
    growth: float = 0.35
    sigma_most: float = 0.9
    death_per_s: float = 0.01
    revival_per_s: float = 0.2
    death_cost_s: float = 0.5
    sigma_change: float = 0.6
    death_per_change: float = 0.1

    def sigma(self, age_s: float, change: float = 0.0) -> float:
        """The standard deviation after `age_s` and a passive change, in logarithms of time."""
        grown: float = self.sigma_1s * max(age_s, 0.0) ** self.growth
        return min(hypot(grown, self.sigma_change * change), self.sigma_most)

    def died(self, age_s: float, change: float = 0.0) -> float:
        """The probability that a network which worked carries nothing any more."""
        return -expm1(-self.death_per_s * age_s - self.death_per_change * change)

    def returned(self, age_s: float, change: float = 0.0) -> float:
        """The probability that a network which was bad is what it was before."""
        return -expm1(-self.revival_per_s * age_s - self.death_per_change * change)


@dataclass(frozen=True, slots=True)
class Price:
    """What one probe of a network costs: see `selector.probe_cost` for its joules and bytes.

    Attributes:
        cost: in the currency of evaluations: seconds, if prices of joules and bytes are.
        lifetime_s: how long its answer is of use; transfers that begin within it share the cost.
        energy_j: joules that budgets charge beside.
        carried_bytes: and bytes.
    """

    cost: float
    lifetime_s: float = 5.0
    energy_j: float = 0.0
    carried_bytes: float = 0.0

    def today(self, network: str, prices: Prices) -> float:
        """The cost with what budgets ask for it at this moment, like any transfer's."""
        return (
            self.cost
            + prices.energy_s(self.energy_j, _LASTS_S)
            + prices.data_s(network, self.carried_bytes, _LASTS_S)
        )


class ProbeValue:
    """Probes where the expected saving exceeds the price.

    Args:
        price: of one probe, by network name; another network's is that of `None`.
        drift: how knowledge goes stale.
        idle_per_s: transfers expected per second where none was seen of late and a person is there.
        light: of a probe that tells whether a network lives, not how fast it is (a ping, a look-up).
    """

    def __init__(
        self,
        price: dict[str | None, Price],
        drift: Drift = Drift(),
        idle_per_s: float = 0.1,
        light: bool = False,
    ) -> None:
        self._light = light
        self._price = price
        self._drift = drift
        self._idle_per_s = idle_per_s
        self._probed_at_s: dict[str, float] = {}
        self._before: dict[str, deque[float]] = {}
        self._passive = PassiveChange(0.0)

    def worth(self, network: str, moment: Moment) -> float:
        """The expected saving of all transfers that an answer would serve, in units of cost."""
        best, rival = _best(network, moment)
        if rival is None:
            return 0.0  # nothing to choose from
        drift, quiet_s = self._drift, self._quiet_s(network, moment)
        age_s = moment.now_s - self._probed_at_s.get(network, -_NEVER_S)
        change = min(self._passive.change(network, moment), _WHOLE)
        if self._light and network not in self._probed_at_s:
            change = 0.0  # since when is not known
        each = 0.0
        if best is not None and not self._light:
            each = expected_saving(abs(rival - best), best * drift.sigma(age_s, change))
        if best is not None and best <= rival:
            each += drift.died(quiet_s, change) * max(drift.death_cost_s - (rival - best), 0.0)
        elif best is None or not self._light:
            # Of a network that was never seen alive: at its best it would be as quick as half the rival.
            before = self._before.get(network) or (0.5 * rival,)
            saved = sum([max(rival - cost, 0.0) for cost in before]) / len(before)
            each += drift.returned(age_s, change) * saved
        return each * self._transfers(network, moment)

    def _quiet_s(self, network: str, moment: Moment) -> float:
        """Seconds since anything told that the network lives: what is heard makes a probe's word old."""
        probed_at_s = self._probed_at_s.get(network, -_NEVER_S)
        return moment.now_s - max(probed_at_s, moment.heard_at_s.get(network, -_NEVER_S))

    def weigh(self, network: str, moment: Moment) -> ProbeVerdict:
        price = self._of(network)
        cost = price.today(network, moment.prices)
        forbidden = cost >= PROHIBITIVE
        known_alive = self._light and network in moment.heard_at_s
        if network not in self._probed_at_s and not known_alive:
            why = "never probed, but a used-up budget forbids it"
            return ProbeVerdict(not forbidden, why if forbidden else "never probed", None, cost)
        worth = self.worth(network, moment)
        if forbidden:
            return ProbeVerdict(False, "a used-up budget forbids it", worth, cost)
        _, rival = _best(network, moment)
        count = self._transfers(network, moment)
        if rival is None:
            why = "no answer could change a choice, as there is only one possibility"
        elif not count > 0.0:
            why = "no transfer is expected while the answer is fresh"
        else:
            quiet_s = self._quiet_s(network, moment)
            probed_at_s = self._probed_at_s.get(network)
            if probed_at_s is None or (quiet_s < moment.now_s - probed_at_s and self._light):
                last = f"it was heard {_time(quiet_s)} ago"
            else:
                last = f"the last probe is {_time(moment.now_s - probed_at_s)} old"
            than = f"{'more' if worth > cost else 'not more'} than its price of {_time(cost)}"
            saves = (
                f"should save {_time(worth)} of waiting, {than}" if worth else "would save nothing"
            )
            why = f"{last}. A new one {saves}"
        return ProbeVerdict(worth > cost, why, worth, cost)

    def probed(self, network: str, moment: Moment) -> None:
        self._probed_at_s[network] = moment.now_s
        self._passive.probed(network, moment)
        best, _ = _best(network, moment)
        if best is not None:
            self._before.setdefault(network, deque(maxlen=_REMEMBERED)).append(best)

    def _of(self, network: str) -> Price:
        return self._price.get(network) or self._price[None]

    def _transfers(self, network: str, moment: Moment) -> float:
        """How many transfers begin while the answer is fresh."""
        per_s = moment.transfers_per_s
        if moment.attended:
            per_s = max(per_s, self._idle_per_s)
        return per_s * self._of(network).lifetime_s + (1.0 if moment.pending else 0.0)


def _best(network: str, moment: Moment) -> tuple[float | None, float | None]:
    """The least cost of a strategy that starts on the network, and of one that does not."""
    mine: list[float] = []
    others: list[float] = []
    for each in moment.evaluations:
        (mine if each.strategy.networks[:1] == (network,) else others).append(each.cost)
    return min(mine, default=None), min(others, default=None)


def expected_saving(gap: float, sigma: float) -> float:
    """E[max(0, X - gap)] for a normal X of mean 0: what turning the order around saves on average."""
    if sigma <= 0.0:
        return 0.0
    z = gap / sigma
    density = exp(-0.5 * z * z) / sqrt(2.0 * pi)
    above = 0.5 * (1.0 - erf(z / sqrt(2.0)))
    return sigma * (density - z * above)


def _time(seconds: float) -> str:
    return f"{rounded(seconds, 3)} s" if seconds >= 0.1 else f"{rounded(seconds * 1000)} ms"
