"""Which network serves somebody who waits: the same for what is simulated and what is played live."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cedos.selector.budgets.prices import Prices
from cedos.selector.energy.radio import Radio

METERED = ("cellular",)
_SLOWER = 2.0
"""Whoever waits is moved to a network that is expected to be done in less than 1 / so much."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A network that is there, as a demand finds it.

    Attributes:
        name: the network's.
        rate_bps: towards the host, expected.
        rtt_s: its round-trip time.
        radio: its power model.
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

    Args:
        offers: the networks that are there.
        size_bytes: what is still to be fetched.
        prices: conversion rates.
        breaks: whether so much would break a cap on data: it waits for a free network then.
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
