"""Uncertain predictions and the choice that follows from them: Meatballs (dissertation, chapter 4).

Each method is an evaluator behind one interface (4.3) and has a name. Decisions on transfers weigh all
outcomes in `cedos/selector/decision/evaluate.py`, as brute force does.
"""

from collections.abc import Callable, Mapping
from typing import Final

from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.error_bounds import ErrorBounds
from cedos.selector.uncertainty.evaluator import Evaluator, Trusting
from predictors.error import ErrorHistory

METHODS: Final[Mapping[str, type[Evaluator]]] = {
    each.name: each for each in (BruteForce, ErrorBounds, Bayesian, Trusting)
}


def evaluator(
    method: str = BruteForce.name,
    history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory(),
) -> Evaluator:
    """Return a new evaluator without knowledge, of one of `METHODS`; `history` as of `Evaluator`."""
    return METHODS[method](history)
