"""The open choices of prefetching, as budgets want to know them: what each unit would save.

Whoever paces a budget does better who sees what is still waiting: 30 messages that could be had ahead of
time are as many chances to turn bytes into seconds.
"""

from collections.abc import Hashable, Sequence

from cedos.selector.budget import Resource
from cedos.selector.budget_controller import Option
from cedos.selector.prefetch_path import Path, Prices, on_demand
from cedos.selector.prefetch_queue import Queue

Choices = dict[Resource, list[tuple[Hashable, list[Option]]]]


def choices(queue: Queue, now_s: float, paths: Sequence[Path], prices: Prices) -> Choices:
    """For each item that waits: leave it to demand, or fetch it over each network.

    The first option is to leave it, the others follow in the order of the networks. Costs are seconds,
    with the other resource at its price; what is left to demand counts as often as it is asked for, and
    for as much as a free network does not come before that.
    """
    found: Choices = {Resource.DATA: [], Resource.ENERGY: []}
    if not paths:
        return found
    joule_s = prices.energy_rate()
    rates = [prices.data_rate(path.name) for path in paths]
    metered = [rate > 0.0 for rate in rates]
    for candidate in queue.candidates(now_s):
        size, accuracy = candidate.size_bytes, candidate.accuracy
        spared = on_demand(size, paths, prices)
        sent = [amount for amount, counts in zip(spared.sent, metered, strict=True) if counts]
        elsewhere_s = sum(rate * each for rate, each in zip(rates, spared.sent, strict=True))
        now = [path.fetch_s(size) if path.present else path.average.fetch_s(size) for path in paths]
        joules = [path.active_j(took_s, size) for path, took_s in zip(paths, now, strict=True)]
        chance = max(
            (
                path.in_time(size, candidate.hazard_per_s)
                for path, counts in zip(paths, metered, strict=True)
                if not counts and not path.present
            ),
            default=0.0,
        )
        asked = accuracy * (1.0 - chance)
        data = [Option(asked * (spared.time_s + joule_s * spared.energy_j), asked * sum(sent))]
        energy = [Option(asked * (spared.time_s + elsewhere_s), asked * spared.energy_j)]
        for path, rate, counts, energy_j in zip(paths, rates, metered, joules, strict=True):
            if path.present or counts:
                data.append(Option(joule_s * energy_j, size if counts else 0.0))
                energy.append(Option(rate * size, energy_j))
        found[Resource.DATA].append((candidate.key, data))
        found[Resource.ENERGY].append((candidate.key, energy))
    return found
