"""The time of one decision, from context and transfer to the finished record.

Measured as in the daemon: one process, garbage collection on, decisions kept for the history. The
contexts are drawn at random: something or everything known of each network, now and then a dead one.
Wall-clock percentiles are what a transfer waits; on a shared machine the 99th belongs to the
neighbours, so the CPU time stands beside it.
"""

import math
import random
from collections.abc import Callable, Collection
from functools import partial

from cedos.model import (
    Context,
    Decision,
    Direction,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision.case import USUAL_KINDS, Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost
from cedos.storage.model_files import load
from emu.bench import timed
from predictors.inputs import CONTEXT_COLUMNS

_CASES = 2_000
_DECISIONS = 20_000
_NETWORKS = (
    Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False),
    Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True),
)
_NAME_OF = {"wifi": "wlan0", "cellular": "lte0"}
_OBJECTIVES = (MaxS(), MaxSPerE(), WeightedCost(s_per_j=0.1, s_per_metered_byte=1e-7))
_ALL_KINDS = USUAL_KINDS | {StrategyKind.REDUNDANT}
# Usual values of indicators. Those not named are rates in bit/s.
_USUAL = {
    "rtt_s": (0.005, 0.2),
    "rtt_min_s": (0.005, 0.1),
    "ping_loss": (0.0, 0.4),
    "available": (1.0, 1.0),
    "dns_s": (0.01, 0.5),
    "udp_loss": (0.0, 0.2),
    "rssi_dbm": (-90.0, -30.0),
    "chan_util": (0.0, 1.0),
    "rsrp_dbm": (-130.0, -70.0),
    "rsrq_db": (-20.0, -3.0),
    "sinr_db": (-5.0, 30.0),
    "cqi": (1.0, 15.0),
    "mps": (0.0, 30.0),
}
_RATES_BPS = (1e5, 1e8)


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Time decisions by the shipped predictors.

    Returns:
        `p50_us`, `p99_us` (four strategies), `p50_redundant_us`, `p99_redundant_us` (five), and each
        p99 again as `cpu_...`.
    """
    dice = random.Random(4)
    model = load(None)
    drawn = [(_transfer(dice), _context(dice)) for _ in range(_CASES)]

    def decision(kinds: Collection[StrategyKind], number: int) -> Callable[[], Decision]:
        transfer, context = drawn[number % _CASES]
        objective = _OBJECTIVES[number % len(_OBJECTIVES)]
        return lambda: decide(
            Case(transfer, context, _NETWORKS, model, objective, kinds=kinds, number=number)
        )

    figures: dict[str, float] = {}
    for key, make in (
        ("", partial(decision, USUAL_KINDS)),
        ("_redundant", partial(decision, _ALL_KINDS)),
    ):
        progress(f"{_DECISIONS} decisions{key.replace('_', ', ')}")
        figures |= timed(key, make, _DECISIONS)
    return figures


def _columns(dice: random.Random) -> dict[str, float]:
    row = {"size_bytes": _size(dice), "direction_up": float(dice.random() < 0.3)}
    known = dice.uniform(0.5, 1.2)
    for column in CONTEXT_COLUMNS:
        if dice.random() < known:
            row[column] = _drawn(column, dice)
    return row


def _drawn(column: str, dice: random.Random) -> float:
    _, _, name = column.partition("_")
    if name in _USUAL:
        return dice.uniform(*_USUAL[name])
    return math.exp(dice.uniform(math.log(_RATES_BPS[0]), math.log(_RATES_BPS[1])))


def _size(dice: random.Random) -> float:
    return float(int(math.exp(dice.uniform(math.log(300), math.log(3e7)))))


def _transfer(dice: random.Random) -> Transfer:
    size = int(_size(dice))
    direction = Direction.UP if dice.random() < 0.3 else Direction.DOWN
    return Transfer(SizeEstimate(size, size, size, "hint"), direction)


def _context(dice: random.Random) -> Context:
    at_s = 1000.0
    networks: dict[str, dict[str, Indicator]] = {name: {} for name in _NAME_OF.values()}
    for column, value in _columns(dice).items():
        role, _, name = column.partition("_")
        if role in _NAME_OF:
            networks[_NAME_OF[role]][name] = Indicator(value, at_s - dice.uniform(0.0, 5.0))
    if dice.random() < 0.05:
        dead = dice.choice(tuple(networks))
        networks[dead]["ping_loss"] = Indicator(1.0, at_s, active=True)
    return Context(at_s, networks)
