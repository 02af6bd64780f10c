"""The time of one decision, from context and transfer to the finished record.

Measured as in the daemon: one process, garbage collection on, decisions kept for the history. The
contexts are drawn at random: something or everything known of each network, now and then a dead one.
Wall-clock percentiles are what a transfer waits; on a shared machine the 99th belongs to the
neighbours, so the CPU time stands beside it.
"""

import gc
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence

from cedos.errors import ModelError
from cedos.model import (
    Context,
    Decision,
    Direction,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide, decide_again
from cedos.selector.decision.living import Living, rest_of
from cedos.selector.decision.roles import USUAL_KINDS
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost
from cedos.selector.uncertainty.times import CompletionModel
from cedos.storage.model_files import load
from predictors.base import Distribution, minimum_of
from predictors.inputs import CONTEXT_COLUMNS, STRATEGIES, naive_time_s

NAME = "decision"

_CASES = 2_000
_DECISIONS = 20_000
_WARM_UP = 500
_KEPT = 1_000
_TRAINING_ROWS = 600
_PAIRS = 200
_NETWORKS = (
    Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False),
    Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True),
)
_NAME_OF = {"wifi": "wlan0", "cellular": "lte0"}
_OBJECTIVES = (MaxS(), MaxSPerE(), WeightedCost(s_per_j=0.1, s_per_metered_byte=1e-7))
_ALL_KINDS = USUAL_KINDS | {StrategyKind.REDUNDANT}
# Where an indicator of that name usually lies; others are rates, in bit/s.
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
    """Time decisions.

    Returns:
        `p50_us`, `p99_us` (four strategies), `p50_redundant_us`, `p99_redundant_us` (five),
        `p99_again_us` (a living flow), `p50_predict_us` (the predictors' part of a decision), each
        p99 again as `cpu_...`, and `pairs_over_walk_ratio`: how much longer the minimum of two times
        takes as Meatballs' sum over all pairs.
    """
    dice = random.Random(4)
    model = _model(dice, progress)
    drawn = [(_transfer(dice), _context(dice)) for _ in range(_CASES)]
    current = Strategy(StrategyKind.SINGLE, ("wlan0",))
    living = Living(current, switch_cost_s=0.1, observed_bps=5e6)

    def case(number: int, kinds: Collection[StrategyKind] = USUAL_KINDS) -> Case:
        transfer, context = drawn[number % _CASES]
        objective = _OBJECTIVES[number % len(_OBJECTIVES)]
        return Case(transfer, context, _NETWORKS, model, objective, kinds=kinds, number=number)

    def decided(number: int) -> Decision:
        return decide(case(number))

    def decided_redundant(number: int) -> Decision:
        return decide(case(number, _ALL_KINDS))

    def decided_again(number: int) -> Decision:
        transfer, context = drawn[number % _CASES]
        rest = rest_of(transfer, 50_000)
        return decide_again(Case(rest, context, _NETWORKS, model, number=number), living)

    columns = [_columns(dice) for _ in range(_CASES)]
    assert gc.isenabled()
    figures: dict[str, float] = {}
    for key, make in (("", decided), ("_redundant", decided_redundant), ("_again", decided_again)):
        progress(f"{_DECISIONS} decisions ({make.__name__})")
        wall_us, cpu_us = _timed(make, _DECISIONS)
        figures[f"p50{key}_us"] = _percentile(wall_us, 0.50)
        figures[f"p99{key}_us"] = _percentile(wall_us, 0.99)
        figures[f"cpu_p99{key}_us"] = _percentile(cpu_us, 0.99)
    predict_us, _ = _timed(lambda number: model.predict(columns[number % _CASES]), _CASES)
    figures["p50_predict_us"] = _percentile(predict_us, 0.50)
    figures["pairs_over_walk_ratio"] = _pairs_over_walk([model.predict(each) for each in columns])
    return figures


def _timed(make: Callable[[int], object], count: int) -> tuple[list[float], list[float]]:
    kept: deque[object] = deque(maxlen=_KEPT)
    wall_us, cpu_us = [], []
    for number in range(count + _WARM_UP):
        cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
        kept.append(make(number))
        wall_us.append((time.perf_counter_ns() - wall_ns) / 1e3)
        cpu_us.append((time.thread_time_ns() - cpu_ns) / 1e3)
    return sorted(wall_us[_WARM_UP:]), sorted(cpu_us[_WARM_UP:])


def _percentile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(math.ceil(share * len(ascending)) - 1, len(ascending) - 1)]


def _pairs_over_walk(predictions: Sequence[dict[str, Distribution] | object]) -> float:
    """Time of the mean of a minimum by all pairs over that by survival functions."""
    parts = [(each["wifi"], each["cellular"]) for each in predictions if isinstance(each, dict)]
    begun_ns = time.thread_time_ns()
    walked = [minimum_of(a, b).mean for a, b in parts[:_PAIRS]]
    walked_ns = time.thread_time_ns()
    summed = [
        sum([min(x, y) for x in a.samples for y in b.samples]) / (len(a.samples) * len(b.samples))
        for a, b in parts[:_PAIRS]
    ]
    summed_ns = time.thread_time_ns()
    assert all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(walked, summed, strict=True))
    return (summed_ns - walked_ns) / (walked_ns - begun_ns)


def _model(dice: random.Random, progress: Callable[[str], None]) -> CompletionModel:
    try:
        model = load(None)
    except ModelError:
        progress("no shipped predictors: growing some from drawn transfers")
        return _freshly_made(dice)
    progress("deciding with the shipped predictors")
    return model


def _freshly_made(dice: random.Random) -> CompletionModel:
    """Predictors of the usual size, grown from transfers that behave as the textbook says, nearly."""
    import numpy as np  # noqa: PLC0415  (heavy, and only where there is no shipped model)

    from predictors.training.examples import Examples  # noqa: PLC0415
    from predictors.training.train import fit  # noqa: PLC0415

    rows = [_columns(dice) for _ in range(_TRAINING_ROWS)]
    times: dict[str, list[float]] = {strategy: [] for strategy in STRATEGIES}
    for row in rows:
        for strategy in STRATEGIES:
            role = strategy.removeprefix("mptcp_")
            naive_s = naive_time_s(
                row["size_bytes"],
                row.get(f"{role}_rtt_s", 0.05),
                row.get(f"{role}_past1_bps", 1e7),
            )
            times[strategy].append(naive_s * dice.lognormvariate(0.1, 0.3))
    names = sorted({name for row in rows for name in row})
    return fit(
        Examples(
            {name: np.array([row.get(name, math.nan) for row in rows]) for name in names},
            {strategy: np.array(of) for strategy, of in times.items()},
            {strategy: np.zeros(len(rows), dtype=np.bool_) for strategy in STRATEGIES},
            np.arange(len(rows)) % 20,
        )
    )


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
