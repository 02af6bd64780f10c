"""The open choices of prefetching, as budgets want to know them: what each unit would save.

Whoever paces a budget does better who sees what is still waiting: 30 messages that could be had ahead of
time are as many chances to turn bytes into seconds.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from cedos.model import Resource
from cedos.selector.budgets.controller import Option
from cedos.selector.prefetch.path import Path, PrefetchPrices, on_demand
from cedos.selector.prefetch.queue import Queue

Choices = dict[Resource, list[tuple[Hashable, list[Option]]]]


class Taking(NamedTuple):
    """What one way for an item takes: seconds that a person waits, joules, bytes by the networks' order.

    `network` is the place of the one that it is fetched over ahead of time; None: it is left to demand.
    """

    network: int | None
    time_s: float
    energy_j: float
    sent: tuple[float, ...]


def ways(
    queue: Queue, now_s: float, paths: Sequence[Path], prices: PrefetchPrices
) -> list[tuple[Hashable, list[Taking]]]:
    """For each item that waits: leave it to demand, or fetch it over each network.

    To leave it comes first, the others follow in the order of the networks. What is left to demand
    counts as often as it is asked for, and for as much as a free network does not come before that.
    """
    found: list[tuple[Hashable, list[Taking]]] = []
    if not paths:
        return found
    metered = [prices.data_rate(path.name) > 0.0 for path in paths]
    for candidate in queue.candidates(now_s):
        size, accuracy = candidate.size_bytes, candidate.accuracy
        spared = on_demand(size, paths, prices)
        now = [path.fetch_s(size) if path.present else path.average.fetch_s(size) for path in paths]
        chance = max(
            (
                path.in_time(size, candidate.hazard_per_s)
                for path, counts in zip(paths, metered, strict=True)
                if not counts and not path.present
            ),
            default=0.0,
        )
        asked = accuracy * (1.0 - chance)
        left = tuple([asked * each for each in spared.sent])
        options = [Taking(None, asked * spared.time_s, asked * spared.energy_j, left)]
        for at, (path, counts, took_s) in enumerate(zip(paths, metered, now, strict=True)):
            if path.present or counts:
                sent = tuple([size if at == other else 0.0 for other in range(len(paths))])
                options.append(Taking(at, 0.0, path.active_j(took_s, size), sent))
        found.append((candidate.key, options))
    return found


def choices(queue: Queue, now_s: float, paths: Sequence[Path], prices: PrefetchPrices) -> Choices:
    """The same for a budget of metered data and one of joules, each with the other at its price."""
    joule_s = prices.energy_rate()
    rates = [prices.data_rate(path.name) for path in paths]
    found: Choices = {Resource.DATA: [], Resource.ENERGY: []}
    for key, options in ways(queue, now_s, paths, prices):
        data, energy = [], []
        for one in options:
            counted = [sent for sent, rate in zip(one.sent, rates, strict=True) if rate > 0.0]
            data.append(Option(one.time_s + joule_s * one.energy_j, sum(counted)))
            sent_s = sum(rate * sent for rate, sent in zip(rates, one.sent, strict=True))
            energy.append(Option(one.time_s + sent_s, one.energy_j))
        found[Resource.DATA].append((key, data))
        found[Resource.ENERGY].append((key, energy))
    return found
