"""Which network serves somebody who waits: the same for what is simulated and what is played live."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cedos.selector.budgets.prices import Prices
from cedos.selector.energy.radio import Radio
from cedos.selector.energy.radio_watch import RadioWatch
from emu.experiments.imp.budgets import Budgets
from emu.experiments.imp.knowledge import Knowledge
from emu.lab.simulation.network import ReplayedNetwork

METERED = ("cellular",)
_SLOWER = 2.0
"""Whoever waits is moved to a network that is expected to be done in less than 1 / so much."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A network that is there, as a demand finds it.

    Attributes:
        rate_bps: towards the host, expected.
        rtt_s: its round-trip time.
        idle_s: seconds since it was last used; None: never.
    """

    name: str
    rate_bps: float
    rtt_s: float
    radio: Radio
    idle_s: float | None

    def cost_s(self, size_bytes: float, prices: Prices) -> float:
        """A demand's cost over it: seconds, joules and metered bytes, as any decision's."""
        time_s = 8.0 * size_bytes / self.rate_bps + self.rtt_s
        energy_j = self.radio.transfer_j(bytes_down=size_bytes, seconds=time_s, idle_s=self.idle_s)
        cost_s = time_s + energy_j * prices.energy_rate(energy_j, time_s)
        return cost_s + size_bytes * prices.data_rate(self.name, size_bytes, time_s)


def costs(
    offers: Iterable[Offer], size_bytes: float, prices: Prices, *, breaks: bool
) -> dict[str, float]:
    """By network that may serve it.

    `breaks`: whether so much would break a cap on data: it waits for a free network then.
    """
    return {
        offer.name: offer.cost_s(size_bytes, prices)
        for offer in offers
        if not (breaks and offer.name in METERED)
    }


def best(offers: Iterable[Offer], size_bytes: float, prices: Prices, *, breaks: bool) -> str | None:
    """The network of the lowest cost; arguments as `costs`."""
    found = costs(offers, size_bytes, prices, breaks=breaks)
    return min(found, key=found.__getitem__) if found else None


def moves(
    offers: Sequence[Offer], network: str, left_bytes: float, prices: Prices, *, breaks: bool
) -> bool:
    """Whether what is under way over a network would be done much sooner over another one."""
    here_s = [offer.cost_s(left_bytes, prices) for offer in offers if offer.name == network]
    elsewhere_s = [
        cost_s
        for name, cost_s in costs(offers, left_bytes, prices, breaks=breaks).items()
        if name != network
    ]
    return bool(here_s and elsewhere_s) and _SLOWER * min(elsewhere_s) < here_s[0]


class Demand:
    """Serves what somebody waits for over the network of the lowest cost, at any instant of a trial.

    Args:
        knowledge: what their rates are taken for.
        budgets: their prices, and what would break them.
        start_s: the second of the replay at which the trial begins.
    """

    def __init__(
        self,
        networks: Mapping[str, ReplayedNetwork],
        radios: Mapping[str, Radio],
        watches: Mapping[str, RadioWatch],
        knowledge: Knowledge,
        budgets: Budgets,
        start_s: float,
    ) -> None:
        self._networks, self._radios, self._watches = networks, radios, watches
        self._knowledge, self._budgets, self._start_s = knowledge, budgets, start_s

    def up(self, name: str, now_s: float) -> bool:
        return self._networks[name].up_at(self._start_s + now_s)

    def best(self, size_bytes: float, now_s: float) -> str | None:
        """The network to serve it over; None: none for now."""
        prices, breaks = self._budgets.prices(now_s), self._budgets.breaks(size_bytes)
        return best(self._offers(now_s), size_bytes, prices, breaks=breaks)

    def moves(self, name: str, left_bytes: float, now_s: float) -> bool:
        """Whether what is under way over a network is to go on over another one."""
        prices, breaks = self._budgets.prices(now_s), self._budgets.breaks(left_bytes)
        return moves(self._offers(now_s), name, left_bytes, prices, breaks=breaks)

    def _offers(self, now_s: float) -> list[Offer]:
        return [
            Offer(
                name,
                self._knowledge.rate_bps(name),
                network.rtt_s,
                self._radios[name],
                self._watches[name].idle_s(now_s),
            )
            for name, network in self._networks.items()
            if self.up(name, now_s)
        ]
