"""The daemon's decision and the evaluators' brute force are one: the same times, joules, bytes, cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Context, Direction, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.energy import DELPHI
from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty import evaluator
from cedos.selector.uncertainty.evaluator import Redundant, Term, Way
from predictors.base import Distribution
from predictors.error import ErrorHistory

HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})
NAMES = {"single(wlan0)": "wifi", "single(lte0)": "cellular", "redundant(wlan0, lte0)": "both"}
seconds = st.lists(st.floats(0.01, 100), min_size=10, max_size=10)


@given(seconds, seconds, st.floats(0, 2), st.floats(0, 1e-4))
def test_decide_hedges_as_brute_force_does(host, wifi, cellular, s_per_j, s_per_byte):
    model = host.oracle(wifi=wifi, cellular=cellular)
    decision = decide(Case(
        host.transfer(50_000), Context(1000.0, {}), host.both, model,
        WeightedCost(s_per_j, s_per_byte), number=1, made_unix_s=0.0, kinds=HEDGED,
    ))  # fmt: skip
    knows = evaluator(
        "brute-force", lambda name: ErrorHistory(prior=Distribution(tuple(sorted(locals_of[name]))))
    )
    locals_of = {"wifi": wifi, "cellular": cellular}
    ways = []
    for network, name in zip(host.both, locals_of, strict=True):
        knows.predict(name, 1.0, 0.0)
        radio = DELPHI.radios[network.kind]
        ways.append(
            Way(
                name,
                (Term(name, lambda time_s: time_s),),
                watts=radio.active_w(Direction.DOWN),
                fixed_j=radio.added_tail_j(None),
                metered_bytes=50_000.0 if network.metered else 0.0,
            )
        )
    ways.append(Redundant("both", ("wifi", "cellular")))
    choice = knows.choose(ways, WeightedCost(s_per_j, s_per_byte))
    judged = {each.name: each for each in choice.evaluations}
    for mine in decision.evaluations:
        theirs = judged[NAMES[str(mine.strategy)]]
        found = (mine.time_s, mine.energy_j, mine.metered_bytes, mine.cost)
        expected = (theirs.time_s, theirs.energy_j, theirs.metered_bytes, theirs.cost)
        assert found == pytest.approx(expected, rel=1e-9)
    best = min(each.cost for each in choice.evaluations)
    assert judged[NAMES[str(decision.choice)]].cost == pytest.approx(best, rel=1e-9)
