"""What nobody can have without the future: the best causal policy, told how its networks behave.

Each network of a real place becomes a Markov chain over the rate of a second (an outage, or one of five
levels, with the place's own transitions), so that "the best policy" is a number: dynamic programming over
what is left, the time to the deadline and both networks' levels, which the policy is told for the second
that begins. It minimises bytes over the cellular network, a missed deadline costing as much as some
transfers of the usual size. Nobody plays these worlds better without the future, and ours is told less.
One transfer at a time: with several the state has no end. Wi-Fi is always used.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cedos.selector.deadlines.chance import ChanceScheduler
from emu.experiments.cedos import places
from emu.experiments.cedos.clairvoyant import feasible, most_wifi_bytes
from emu.experiments.cedos.simulate import CELLULAR, WIFI, Host, simulate
from emu.experiments.cedos.world import Wanted, World
from emu.places.places import Place

MISS_COSTS: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
"""What a miss costs, in transfers of the place's mean size over the cellular network."""

_LEVELS: Final = 5
_SIZES: Final = 1001
_KNOWN_S: Final = 10
_LEARNED_S: Final = 1200
_LOADS: Final = (0.1, 0.6)
_WITHIN_S: Final = (60, 599)
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Chain:
    """A network: the rate of each level (bits a second), and the transitions from level to level."""

    edges: Numbers
    rates: Numbers
    moves: Numbers

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Chain":
        """That of a trace, which is repeated for ever."""
        rates = np.array(seconds)
        some = rates[rates > 0.0]
        cuts = np.quantile(some, np.arange(1, _LEVELS) / _LEVELS) if len(some) else []
        edges = np.unique(np.array([1e-9, *cuts]))
        level = np.searchsorted(edges, rates, side="right")
        there = np.unique(level)
        moves = np.zeros((len(edges) + 1,) * 2)
        np.add.at(moves, (level, np.roll(level, -1)), 1.0)
        moves = moves[np.ix_(there, there)]
        means = np.array([rates[level == each].mean() for each in there])
        return cls(edges[there[1:] - 1], means, moves / moves.sum(axis=1, keepdims=True))

    def level(self, rate_bps: float) -> int:
        return int(np.searchsorted(self.edges, rate_bps, side="right"))

    def draw(self, random: Random, seconds: int) -> list[float]:
        at = random.randrange(len(self.rates))
        found = []
        for second in range(seconds + 100):  # where it begins is forgotten first
            at = random.choices(range(len(self.rates)), self.moves[at].tolist())[0]
            if second >= 100:
                found.append(float(self.rates[at]))
        return found


class CausalOptimum:
    """The best decisions at a place, for transfers of at most `largest_bytes`, at one cost of a miss."""

    def __init__(
        self, wifi: Chain, cellular: Chain, largest_bytes: float, longest_s: int, miss_bytes: float
    ) -> None:
        self._wifi, self._cellular = wifi, cellular
        self._sizes = np.linspace(0.0, largest_bytes, _SIZES)
        shape = (len(wifi.rates), len(cellular.rates), _SIZES)
        value = np.zeros(shape) + miss_bytes * (self._sizes > 0.0)
        self._ahead: list[Numbers] = []
        """By seconds to go after this one: the cost expected, by levels of this one and what is left."""
        for _ in range(longest_s):
            ahead = np.einsum("ik,jl,klb->ijb", wifi.moves, cellular.moves, value, optimize=True)
            self._ahead.append(ahead.astype(np.float32))
            value = np.empty(shape)
            for i in range(shape[0]):
                for j in range(shape[1]):
                    value[i, j] = np.minimum(*self._costs(ahead[i, j], i, j, self._sizes))

    def _costs(self, ahead: Numbers, i: int, j: int, left: Numbers) -> tuple[Numbers, Numbers]:
        """Without and with the cellular network in this second."""
        after = np.maximum(left - self._wifi.rates[i] / 8.0, 0.0)
        paid = np.minimum(after, self._cellular.rates[j] / 8.0)
        return (
            np.interp(after, self._sizes, ahead),
            paid + np.interp(after - paid, self._sizes, ahead),
        )

    def play(self, world: World) -> tuple[float, bool]:
        """Bytes over Wi-Fi of the one transfer, and whether it is in time; what is late goes unpaid."""
        (flow,) = world.flows
        left, by_wifi = flow.size_bytes, 0.0
        for second in range(int(flow.deadline_s)):
            w, c = world.wifi[second] / 8.0, world.cellular[second] / 8.0
            i, j = self._wifi.level(8.0 * w), self._cellular.level(8.0 * c)
            ahead = self._ahead[int(flow.deadline_s) - second - 1][i, j]
            wait, begin = self._costs(ahead, i, j, np.array([left]))
            take = min(left, w)
            by_wifi += take
            left -= take
            if begin[0] < wait[0]:
                left -= min(left, c)
            if left <= 1e-6:
                return by_wifi, True
        return by_wifi, False


def drawn(random: Random, wifi: Chain, cellular: Chain) -> World:
    """One transfer that can be in time: 10 to 60 % of what both networks carry until then."""
    while True:
        within_s = random.randint(*_WITHIN_S)
        w, c = (each.draw(random, places.LONG_S + _KNOWN_S) for each in (wifi, cellular))
        world = wanted(random, w, c, within_s)
        if world is not None:
            return world


def wanted(random: Random, w: Sequence[float], c: Sequence[float], within_s: int) -> World | None:
    """The first seconds are known before; None: it cannot be in time."""
    known, w, c = (w[:_KNOWN_S], c[:_KNOWN_S]), w[_KNOWN_S:], c[_KNOWN_S:]
    size = random.uniform(*_LOADS) * (sum(w[:within_s]) + sum(c[:within_s])) / 8.0
    world = World(w, c, [Wanted(0, max(size, 1e4), float(within_s))], *known)
    return world if feasible(world) else None


def at_place(place: Place, runs: int, seed: int = 1) -> dict[str, Any]:
    """Sums over worlds drawn from the place's chains, and over pieces of its real traces."""
    seconds = [places.rates(place, name) for name in ("wifi", "cellular")]
    wifi, cellular = (Chain.of(each) for each in seconds)
    random = Random(f"{seed} {place.name}")
    chains = [drawn(random, wifi, cellular) for _ in range(runs)]
    real = list(_real(random, *seconds, runs=runs))
    sizes = [world.flows[0].size_bytes for world in (*chains, *real)]
    learned = [wifi.draw(random, _LEARNED_S), cellular.draw(random, _LEARNED_S)]
    found: dict[str, Any] = {
        name: {
            "transfers": len(worlds),
            "bytes": sum(world.flows[0].size_bytes for world in worlds),
            "clairvoyant": [sum(map(most_wifi_bytes, worlds)), 0],
            "ours": _ours(worlds, [[], []]),
            "ours_knowing_the_place": _ours(worlds, before),
        }
        for name, worlds, before in (("chains", chains, learned), ("real", real, seconds))
    }
    for cost in MISS_COSTS:
        miss_bytes = cost * sum(sizes) / len(sizes)
        optimum = CausalOptimum(wifi, cellular, max(sizes), _WITHIN_S[1], miss_bytes)
        for name, worlds in (("chains", chains), ("real", real)):
            found[name][f"causal_{cost:g}"] = _sum(map(optimum.play, worlds))
    return found


def together(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all places: shares over Wi-Fi, points below the clairvoyant, and misses."""
    shown: dict[str, Any] = {}
    for name in ("chains", "real"):
        of = [each[name] for each in found]
        total = sum(each["bytes"] for each in of)
        best = sum(each["clairvoyant"][0] for each in of) / total
        shown[name] = {"transfers": sum(each["transfers"] for each in of)}
        for policy in of[0].keys() - {"transfers", "bytes"}:
            share = sum(each[policy][0] for each in of) / total
            missed = sum(each[policy][1] for each in of)
            shown[name][policy] = {
                "wifi_share": share, "wifi_share_gap": best - share, "missed": missed
            }  # fmt: skip
    return shown


def _real(
    random: Random, wifi: Sequence[float], cellular: Sequence[float], *, runs: int
) -> Iterator[World]:
    count = 0
    while count < runs:
        begin, within_s = random.randrange(len(wifi)), random.randint(*_WITHIN_S)
        w, c = (
            [of[(begin + second) % len(of)] for second in range(places.LONG_S + _KNOWN_S)]
            for of in (wifi, cellular)
        )
        world = wanted(random, w, c, within_s)
        if world is not None:
            count += 1
            yield world


def _ours(worlds: Sequence[World], learned: Sequence[Sequence[float]]) -> list[float]:
    """Ours, with `learned` of both networks used second by second before each transfer."""

    def play(world: World) -> tuple[float, bool]:
        host, seconds = Host(), max(map(len, learned))
        for name, rates in zip((WIFI, CELLULAR), learned, strict=True):
            for second, rate_bps in enumerate(rates):
                host.measured(name, rate_bps, 1.0, float(second + 1))
        for rate_bps in learned[0]:
            host.stretches.passed(1.0, rate_bps > 0.0)
        (one,) = simulate(world, ChanceScheduler(), host, begin_s=float(seconds))
        return one.wifi_bytes, one.done_s <= world.flows[0].deadline_s + 1e-6

    return _sum(map(play, worlds))


def _sum(played: Iterator[tuple[float, bool]]) -> list[float]:
    every = list(played)
    return [sum(wifi for wifi, _ in every), float(sum(not met for _, met in every))]
