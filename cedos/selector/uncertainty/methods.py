"""The evaluators by name: one interface, and which method stands behind it is the caller's to say."""

from collections.abc import Callable, Mapping

from cedos.errors import ConfigError
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.error_bounds import ErrorBounds
from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.trusting import Trusting
from predictors.error import ErrorHistory

_BY_NAME: Mapping[str, type[Evaluator]] = {
    each.method: each for each in (BruteForce, ErrorBounds, Bayesian, Trusting)
}
METHODS = tuple(_BY_NAME)


def evaluator(
    method: str = BruteForce.method,
    history: Callable[[str], ErrorHistory] = lambda quantity: ErrorHistory(),
) -> Evaluator:
    """A new evaluator that knows nothing yet.

    Args:
        method: one of `METHODS`.
        history: makes the empty history of a quantity's errors, given its name.

    Raises:
        ConfigError: there is no such method.
    """
    if method not in _BY_NAME:
        raise ConfigError(f"no evaluator is called {method!r}: there are {', '.join(METHODS)}")
    return _BY_NAME[method](history)
