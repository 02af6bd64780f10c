"""Figures 3 and 6 and Table 3: what probing costs, and what probing less does to the choice (5.2, 6.2.2).

Three rules are played on places that were probed second by second: a fixed rate, Delphi's threshold
on the change of the passive indicators, and our value of information. What each of them knows at the
starts of measured transfers goes to a model that never saw the place; its choices are judged by the
times that were measured.

Only what a host without traffic knows counts: probes and, where they were measured, the radio's
indicators. Passive indicators that trigger Delphi's rule at places where they were not measured are
synthetic (`emu.data.probe_replay`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.errors import DataSetError
from cedos.model import Evaluation, NetworkKind, Strategy, StrategyKind
from cedos.selector.probing.cost import probe_cost
from emu import ROOT
from emu.data.datasets import DataSet
from emu.data.evaluate import examples_of
from emu.data.probe_replay import DNS_BYTES, PING_BYTES, Asked, Walk, load, replay
from emu.data.probe_rules import FixedRate, PassiveChange, ProbeRule, ProbeValue
from emu.statistics import Bootstrap, mean
from predictors.completion import CompletionModel
from predictors.training.examples import Examples, Settings, dealt
from predictors.training.train import fit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Played:
    parameter: float
    regret: Floats
    figures: Mapping[str, Any]

    @property
    def kb(self) -> float:
        kb: float = self.figures["kb_per_300s"]
        return kb


_TYPICAL_BYTES = (3_000.0, 300_000.0)
_PER_S = 300.0  # figures are per five minutes, as in the paper
_BISECTIONS = 6
_ERRORS_AT = (0.1, 0.25, 0.5, 0.75, 0.9)


def run(
    data: DataSet,  # transfers at the places of the series
    *,
    # A file of probed places, relative to the repository.
    series: str = "traces/probe_series.parquet",
    # Of the fixed rate; trains were recorded every other second.
    intervals_s: Sequence[float] = (2, 4, 5, 10, 20, 40, 80),
    # Of Delphi's rule, in ranges of the indicators.
    thresholds: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    # Of our rule: the cost of a probe in seconds.
    prices_s: Sequence[float] = (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.4, 0.8),
    folds: int = 8,  # models are trained on the other groups, in so many parts
    # So many models of each part choose, and their regrets are averaged: with a single one the
    # regret is 0.03 lower or higher as the model happens to be grown.
    seeds: int = 3,
    seed: int = 1,  # of the synthetic indicators
) -> dict[str, Any]:
    """Return probes, bytes, joules, regret and prediction error by rule and by its parameter.

    Returns:
        `{"rules": {NAME: [{...}]}, "halved": [...], "equal": [...], "table3": {...}, "rows", "places",
        "synthetic_share"}`. `halved` sets our rule, with half the bytes, against each fixed
        rate, and `equal`, with the same bytes, against each of Delphi's thresholds: the mean
        difference of regrets, transfer by transfer, with its interval over groups.

    Raises:
        DataSetError: no transfer lies within a probed place.
    """
    walks = load(ROOT / series, seed)
    place, start_s = data.texts["place"], data.numbers["start_s"]
    # Only transfers within a probed place can be judged by what its probes told.
    inside = np.array(
        [
            str(name) in walks and 1.0 <= at_s < walks[str(name)].seconds
            for name, at_s in zip(place, start_s, strict=True)
        ]
    )
    if not inside.any():
        raise DataSetError(f"{data.source}: no transfer lies within the places of {series}")
    chosen = data.take(inside)
    groups = chosen.texts["group"]
    # Train on fresh answers of each second, and judge a place by models of the other groups.
    always = {name: replay(walk, FixedRate(1.0)) for name, walk in walks.items()}
    fresh = _examples(chosen, _columns(chosen, always))
    models: dict[str, list[CompletionModel]] = {}
    for train, test in dealt(fresh.groups, min(folds, len(np.unique(groups)))):
        grown = [fit(fresh.take(train), Settings(seed=each)) for each in range(seeds)]
        models |= dict.fromkeys({str(name) for name in chosen.texts["place"][test]}, grown)
    walks = {name: walk for name, walk in walks.items() if name in models}

    # Each rule with the values of its one parameter.
    rules: dict[str, tuple[Sequence[float], Callable[[float], ProbeRule]]] = {
        "fixed": (intervals_s, FixedRate),
        "change": (thresholds, PassiveChange),
        "value": (prices_s, ProbeValue),
    }
    bootstrap = Bootstrap(groups)

    # Let a rule probe all places, then choose by what was known, and count both.
    def play(name: str, value: float) -> _Played:
        outlooks = {each: _outlook(models[each][0]) for each in walks} if name == "value" else {}
        asked = {
            each: replay(walk, rules[name][1](value), outlooks.get(each))
            for each, walk in walks.items()
        }
        regret, off = _judged(chosen, _columns(chosen, asked), models)
        figures = bootstrap.figure("regret_mean", mean(regret)) | {"cellular_rel_error": off}
        return _Played(value, regret, {"parameter": value, **_effort(asked, walks), **figures})

    played = {name: [play(name, value) for value in values] for name, (values, _) in rules.items()}

    # Compare with our rule at a price at which it spends the wanted share of the bytes.
    def against(other: str, bytes_share: float) -> list[dict[str, Any]]:
        return [
            {
                "parameter": point.parameter,
                "kb_per_300s": point.kb,
                "ours": ours.parameter,
                "bytes_share": round(ours.kb / point.kb, 3),
                **bootstrap.figure("regret_more", mean(ours.regret - point.regret)),
            }
            for point in played[other]
            if (ours := _within(bytes_share * point.kb, played["value"], partial(play, "value")))
        ]

    return {
        "rows": len(chosen),
        "places": len(walks),
        "synthetic_share": round(
            sum(len(walk.synthetic) for walk in walks.values()) / (2 * len(walks)), 3
        ),
        "rules": {name: [each.figures for each in points] for name, points in played.items()},
        "halved": against("fixed", 0.5),
        "equal": against("change", 1.0),
        "table3": _table3(walks),
    }


def _columns(data: DataSet, asked: Mapping[str, Asked]) -> list[dict[str, float]]:
    rows = []
    numbers = zip(
        data.texts["place"],
        data.numbers["start_s"],
        data.numbers["size_bytes"],
        data.numbers["direction_up"],
        strict=True,
    )
    for place, start_s, size_bytes, up in numbers:
        known = asked[str(place)].known[int(start_s)]
        rows.append({**known, "size_bytes": float(size_bytes), "direction_up": float(up)})
    return rows


def _examples(data: DataSet, rows: Sequence[Mapping[str, float]]) -> Examples:
    examples = examples_of(data, data.texts["group"])
    names = sorted({name for row in rows for name in row})
    columns = {name: np.array([row.get(name, np.nan) for row in rows]) for name in names}
    return Examples(
        columns, examples.times_s, examples.censored, examples.groups, examples.instants
    )


def _outlook(model: CompletionModel) -> Callable[[Mapping[str, float]], tuple[Evaluation, ...]]:
    """Return what the next transfer would cost: the mean over a small and a medium one."""
    strategies = {
        name: Strategy(
            StrategyKind.MPTCP if name.startswith("mptcp") else StrategyKind.SINGLE,
            (name.removeprefix("mptcp_"),),
        )
        for name in model.strategies
    }

    def evaluate(known: Mapping[str, float]) -> tuple[Evaluation, ...]:
        costs = dict.fromkeys(strategies, 0.0)
        for size_bytes in _TYPICAL_BYTES:
            for name, time in model.predict({**known, "size_bytes": size_bytes}).items():
                costs[name] += time.mean / len(_TYPICAL_BYTES)
        return tuple(
            Evaluation(strategies[name], cost, cost, cost, 0.0, 0.0, cost)
            for name, cost in costs.items()
        )

    return evaluate


def _judged(
    data: DataSet,
    rows: Sequence[Mapping[str, float]],
    models: Mapping[str, Sequence[CompletionModel]],
) -> tuple[Floats, dict[str, float]]:
    """Regrets of the choices by what was known, and the errors of the predictions for cellular."""
    times_s = np.column_stack([data.times_s[name] for name in data.strategies])
    best_s = np.nanmin(times_s, axis=1)
    regret, off = np.zeros(len(data)), np.zeros(len(data))
    for index, (place, row) in enumerate(zip(data.texts["place"], rows, strict=True)):
        judges = models[str(place)]
        for model in judges:
            predicted = model.predict(row)
            means = {name: predicted[name].mean for name in data.strategies if name in predicted}
            choice = data.strategies.index(min(means, key=means.__getitem__))
            regret[index] += (times_s[index, choice] / best_s[index] - 1.0) / len(judges)
            measured_s = data.times_s["cellular"][index]
            off[index] += abs(predicted["cellular"].quantile(0.5) / measured_s - 1.0) / len(judges)
    return regret, {f"{q:g}": round(float(np.quantile(off, q)), 4) for q in _ERRORS_AT}


def _within(
    kb: float, points: Sequence[_Played], play: Callable[[float], _Played]
) -> _Played | None:
    """Return the rule with a price at which it spends all but a twentieth of so many bytes, if any."""
    dear = [point for point in points if point.kb <= kb]
    cheap = [point for point in points if point.kb > kb]
    if not dear:
        return None
    best = max(dear, key=lambda point: point.kb)
    low = max((point.parameter for point in cheap), default=best.parameter)
    for _ in range(_BISECTIONS):
        if best.kb >= 0.95 * kb or low >= best.parameter:
            break
        between = play(sqrt(low * best.parameter))
        if between.kb <= kb:
            best = between
        else:
            low = between.parameter
    return best


def _effort(asked: Mapping[str, Asked], walks: Mapping[str, Walk]) -> dict[str, float]:
    seconds = sum(walk.seconds for walk in walks.values())
    errors = [error for each in asked.values() for error in each.errors]
    return {
        "probes_per_300s": round(sum(a.probes for a in asked.values()) / seconds * _PER_S, 2),
        "kb_per_300s": round(sum(a.bytes for a in asked.values()) / seconds * _PER_S / 1e3, 2),
        "energy_j_per_300s": round(sum(a.energy_j for a in asked.values()) / seconds * _PER_S, 2),
        "error": round(float(np.mean(errors)), 4) if errors else 0.0,
    }


def _table3(walks: Mapping[str, Walk]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for network in ("wifi", "cellular"):
        records = [record for walk in walks.values() for record in walk.networks[network]]
        dns_s = float(np.median([r["dns_s"] for r in records if "dns_s" in r]))
        rtt_s = float(np.median([r["rtt_s"] for r in records if "rtt_s" in r]))
        trains = [r for r in records if "udp_probe_s" in r]
        train_s = float(np.median([r["udp_probe_s"] for r in trains]))
        up = float(np.median([r["udp_bytes_up"] for r in trains]))
        down = float(np.median([r["udp_bytes_down"] for r in trains]))
        kind = NetworkKind(network)
        found[network] = {
            "dns": _row(kind, DNS_BYTES / 2, DNS_BYTES / 2, dns_s),
            # a ping a second, as the paper's
            "pings": _row(kind, 5 * PING_BYTES, 5 * PING_BYTES, 9.0 + rtt_s),
            "udp": _row(kind, up, down, train_s),
        }
    return found


def _row(kind: NetworkKind, up: float, down: float, seconds: float) -> dict[str, float]:
    cost = probe_cost(kind, bytes_up=up, bytes_down=down, seconds=seconds)
    return {
        "bytes": round(up + down),
        "median_s": round(seconds, 4),
        "energy_mj": round(cost.active_j * 1e3, 1),
        "tail_mj": round(cost.tail_j * 1e3, 1),
    }
