"""Probes of the networks, when a rule says that they are worth it (Delphi, section 5.2).

With a probe server these are a look-up and a train of packets that measures the rate.
Without one a look-up tells that a network lives, where pings are in vain and programs do not hear it
anyway. (Pings go by a schedule, `docs/decisions/pings.md`.)
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, inf
from typing import Final

from cedos.controller.commands import SendProbe
from cedos.controller.config import ProbingConfig
from cedos.controller.outbox import Outbox, next_beat_s
from cedos.model import Network, NetworkKind
from cedos.selector.energy import PowerModel
from cedos.selector.probing.rules import FixedRate, Moment, PassiveChange, ProbeRule
from cedos.selector.probing.value import Price, ProbeValue, probe_cost

_ASK_S: Final = 1.0
# The time over which the starts of transfers are counted.
_REMEMBERED_S: Final = 60.0
# The bytes of a look-up and its ping, and the time that the radio is used for them.
_LIGHT_BYTES, _LIGHT_S = 320, 0.1


class Probing:
    """The rules, which are asked once a second about every network that is up.

    Args:
        power: the radios.
        seen: what a rule may look at now, without the arrivals of transfers.

    Attributes:
        networks: those that are up and may be probed.
        attended: whether a person is at the host.
        pingable: the networks with a host to ping that may answer.
    """

    def __init__(
        self,
        outbox: Outbox,
        config: ProbingConfig,
        power: PowerModel,
        seen: Callable[[float], Moment],
    ) -> None:
        self.networks: tuple[Network, ...] = ()
        self.attended = True
        self.pingable: frozenset[str] = frozenset()
        # When each network was last probed.
        self._sent_at_s: dict[str, float] = {}
        self._outbox = outbox
        self._config = config
        self._power = power
        self._seen = seen
        self._rules: dict[tuple[str, int, NetworkKind], ProbeRule] = {}
        # The transfers that began since the rules were asked, and the recent rate of such beginnings.
        self._begun = 0
        self._begun_per_s = 0.0
        self._asked_at_s: float | None = None
        self._ask_at_s: float | None = None

    def next_timer_s(self) -> float | None:
        return self._ask_at_s

    # -- events -------------------------------------------------------------------------------

    def networks_changed(self, networks: Iterable[Network], now_s: float) -> None:
        """Take all networks; one that is new begins without a past, one that comes back does not.

        Else a router that withdraws its default route each second would have all others probed.
        """
        networks = tuple(networks)
        self.networks = tuple(network for network in networks if network.up)
        there = {_key(network): network for network in networks}
        self._rules = {
            key: self._rules.get(key) or rule_of(self._config, [network], self._power)
            for key, network in there.items()
        }
        names = {network.name for network in networks}
        self._sent_at_s = {name: at_s for name, at_s in self._sent_at_s.items() if name in names}
        if self._ask_at_s is None and self._config.enabled and self._config.kinds:
            self._asked_at_s, self._ask_at_s = now_s, next_beat_s(now_s, _ASK_S)

    def on_transfer_begun(self) -> None:
        """Note a new transfer. Most directions are unknown yet."""
        self._begun += 1

    def on_timer(self, now_s: float) -> None:
        """Ask the rules, and have networks probed where that is worth it."""
        if self._ask_at_s is None or now_s < self._ask_at_s:
            return
        passed_s = now_s - (self._asked_at_s if self._asked_at_s is not None else now_s)
        self._asked_at_s, self._ask_at_s = now_s, next_beat_s(now_s, _ASK_S)
        kept = exp(-passed_s / _REMEMBERED_S)
        self._begun_per_s = self._begun_per_s * kept + self._begun / _REMEMBERED_S
        pending, self._begun = self._begun > 0, 0
        moment = replace(self._seen(now_s), pending=pending, transfers_per_s=self._begun_per_s)
        for network in self.networks:
            rule = self._rules[_key(network)]
            if not rule.weigh(network.name, moment):
                continue
            if self._config.light and not self._needed(network.name, moment):
                continue
            rule.probed(network.name, moment)
            self._sent_at_s[network.name] = now_s
            self._outbox.give(SendProbe(network.name, self._config.kinds))

    def _needed(self, network: str, moment: Moment) -> bool:
        """Return whether a look-up, which only tells that a network lives, tells anything new."""
        if network in self.pingable:
            return False  # pings tell that
        sent_at_s = self._sent_at_s.get(network, -inf)
        heard_at_s = max(sent_at_s, moment.heard_at_s.get(network, -inf))
        return moment.now_s - heard_at_s >= self._config.interval_s


def rule_of(config: ProbingConfig, networks: Iterable[Network], power: PowerModel) -> ProbeRule:
    """Return the configured rule, with what a probe of each network takes."""
    if config.rule == "fixed":
        return FixedRate(config.full_interval_s)
    if config.rule == "change":
        return PassiveChange(config.threshold, config.full_interval_s)
    prices: dict[str | None, Price] = {None: expected_price(config, NetworkKind.CELLULAR, power)}
    prices |= {each.name: expected_price(config, each.kind, power) for each in networks}
    if config.light:
        return ProbeValue(prices, idle_per_s=0.0, light=True)
    # A user at the screen may load something at any time.
    return ProbeValue(prices)


def expected_price(config: ProbingConfig, kind: NetworkKind, power: PowerModel) -> Price:
    """Return a probe's expected cost, the radio's joules and the bytes, in seconds."""
    up = down = _LIGHT_BYTES / 2
    if config.server:
        down += config.train_bytes
    sent = up + down
    energy_j = probe_cost(
        kind, bytes_up=up, bytes_down=down, seconds=_LIGHT_S, power=power
    ).energy_j
    cost_s = config.seconds_per_joule * energy_j + config.seconds_per_mb * sent / 1e6
    return Price(cost_s, energy_j=energy_j, carried_bytes=sent)


def _key(network: Network) -> tuple[str, int, NetworkKind]:
    """Return what a network's rules are kept by: they have the price of its kind."""
    return network.name, network.index, network.kind
