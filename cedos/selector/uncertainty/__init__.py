"""Uncertain predictions and the choice that follows from them: Meatballs (dissertation, chapter 4).

Each method is an evaluator behind one interface (4.3) and has a name.
"""

from collections.abc import Callable, Mapping

from cedos.errors import ConfigError
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.error_bounds import ErrorBounds
from cedos.selector.uncertainty.evaluator import Evaluator, Trusting
from predictors.error import ErrorHistory

_BY_NAME: Mapping[str, type[Evaluator]] = {
    each.name: each for each in (BruteForce, ErrorBounds, Bayesian, Trusting)
}
METHODS = tuple(_BY_NAME)


def method_of(name: str) -> type[Evaluator]:
    """Return the method of this name, one of `METHODS`. ConfigError: there is none."""
    if name not in _BY_NAME:
        raise ConfigError(f"no evaluator is called {name!r}: there are {', '.join(METHODS)}")
    return _BY_NAME[name]


def evaluator(
    method: str = BruteForce.name,
    history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory(),
) -> Evaluator:
    """Return a new evaluator without knowledge; arguments as of `method_of` and `Evaluator`."""
    return method_of(method)(history)
