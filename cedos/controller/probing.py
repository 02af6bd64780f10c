"""Look-ups over the networks, when they are worth it (after Delphi, section 5.2).

A look-up tells that a network lives, where pings are in vain and programs do not hear it anyway. (Pings
go by a schedule, `docs/decisions/pings.md`.)
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import exp, inf
from typing import Final

from cedos.controller.commands import SendProbe
from cedos.controller.outbox import Outbox, next_beat_s
from cedos.model import Network, NetworkKind
from cedos.selector.energy import PowerModel
from cedos.selector.probing.rules import Moment
from cedos.selector.probing.value import Price, ProbeValue, probe_cost

_ASK_S: Final = 1.0
# The time over which the starts of transfers are counted.
_REMEMBERED_S: Final = 60.0
# The bytes of a look-up and its ping, and the time that the radio is used for them.
_BYTES, _LASTS_S = 320, 0.1
# The prices of a joule and a megabyte of them.
_SECONDS_PER_JOULE, _SECONDS_PER_MB = 0.01, 0.2


class Probing:
    """The rules, which are asked once a second about every network that is up.

    Args:
        interval_s: between look-ups over a network, at least; None: there are none.
        power: the radios.
        seen: what a rule may look at now, without the arrivals of transfers.

    Attributes:
        networks: those that are up and may be probed.
        pingable: the networks with a host to ping that may answer.
    """

    def __init__(
        self,
        outbox: Outbox,
        interval_s: float | None,
        power: PowerModel,
        seen: Callable[[float], Moment],
    ) -> None:
        self.networks: tuple[Network, ...] = ()
        self.pingable: frozenset[str] = frozenset()
        # When each network was last probed.
        self._sent_at_s: dict[str, float] = {}
        self._outbox = outbox
        self._interval_s = interval_s
        self._power = power
        self._seen = seen
        self._rules: dict[tuple[str, int, NetworkKind], ProbeValue] = {}
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
            key: self._rules.get(key)
            or ProbeValue(expected_price(network.kind, self._power), light=True)
            for key, network in there.items()
        }
        names = {network.name for network in networks}
        self._sent_at_s = {name: at_s for name, at_s in self._sent_at_s.items() if name in names}
        if self._ask_at_s is None and self._interval_s is not None:
            self._asked_at_s, self._ask_at_s = now_s, next_beat_s(now_s, _ASK_S)

    def on_transfer_begun(self) -> None:
        """Note a new transfer. Most directions are unknown yet."""
        self._begun += 1

    def on_timer(self, now_s: float) -> None:
        """Ask the rules, and have networks probed where that is worth it."""
        if self._interval_s is None or self._ask_at_s is None or now_s < self._ask_at_s:
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
            if not self._needed(network.name, moment, self._interval_s):
                continue
            rule.probed(network.name, moment)
            self._sent_at_s[network.name] = now_s
            self._outbox.give(SendProbe(network.name))

    def _needed(self, network: str, moment: Moment, interval_s: float) -> bool:
        """Return whether a look-up, which only tells that a network lives, tells anything new."""
        if network in self.pingable:
            return False  # pings tell that
        sent_at_s = self._sent_at_s.get(network, -inf)
        heard_at_s = max(sent_at_s, moment.heard_at_s.get(network, -inf))
        return moment.now_s - heard_at_s >= interval_s


def expected_price(kind: NetworkKind, power: PowerModel) -> Price:
    """Return a look-up's expected cost, the radio's joules and the bytes, in seconds."""
    energy_j = probe_cost(
        kind, bytes_up=_BYTES / 2, bytes_down=_BYTES / 2, seconds=_LASTS_S, power=power
    ).energy_j
    cost_s = _SECONDS_PER_JOULE * energy_j + _SECONDS_PER_MB * _BYTES / 1e6
    return Price(cost_s, energy_j=energy_j, carried_bytes=_BYTES)


def _key(network: Network) -> tuple[str, int, NetworkKind]:
    """Return what a network's rules are kept by: they have the price of its kind."""
    return network.name, network.index, network.kind
