"""Meatballs' methods by name (dissertation, 4.3)."""

from collections.abc import Callable, Mapping

from cedos.errors import ConfigError
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.error_bounds import ErrorBounds
from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.trusting import Trusting
from predictors.error import ErrorHistory

_BY_NAME: Mapping[str, type[Evaluator]] = {
    each.name: each for each in (BruteForce, ErrorBounds, Bayesian, Trusting)
}
METHODS = tuple(_BY_NAME)


def method_of(name: str) -> type[Evaluator]:
    """The method called so, one of `METHODS`.

    Raises:
        ConfigError: there is none.
    """
    if name not in _BY_NAME:
        raise ConfigError(f"no evaluator is called {name!r}: there are {', '.join(METHODS)}")
    return _BY_NAME[name]


def evaluator(
    method: str = BruteForce.name,
    history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory(),
) -> Evaluator:
    """A new evaluator that knows nothing yet; arguments as `method_of` and `Evaluator` have them."""
    return method_of(method)(history)
