"""Models that may judge a row: those that have not seen its group, or Delphi's random splits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GroupKFold

from cedos.errors import ConfigError, DataSetError
from emu.data.datasets import DataSet
from predictors.completion import CompletionModel
from predictors.training.examples import Examples, Settings
from predictors.training.train import fit

Progress = Callable[[float, str], None]

_MOST_FOLDS = 25
_RANDOM_FOLDS = 10


def examples_of(data: DataSet, groups: NDArray[Any]) -> Examples:
    starts = data.numbers.get("start_s", np.arange(len(data)))
    instants = np.char.add(np.char.add(data.texts["place"], " "), starts.astype(np.str_))
    return Examples(data.columns, data.times_s, data.censored, groups, instants)


def models_by_group(
    data: DataSet,
    examples: Examples,
    settings: Settings,
    progress: Progress = lambda share, what: None,
    *,
    most_folds: int = _MOST_FOLDS,
) -> list[CompletionModel]:
    """Return for each row a model trained on the other groups, dealt into at most so many folds.

    DataSetError: too few groups, or too little to learn from.
    """
    folds = min(len(np.unique(examples.groups)), most_folds)
    if folds < 3:
        raise DataSetError(
            f"{data.source}: leaving groups out needs at least three of them, it has {folds} "
            f"(in {len(data)} rows with all times); random rows need none, nor does a given model"
        )
    parts = GroupKFold(folds).split(np.empty((len(data), 1)), groups=examples.groups)
    return _trained(data, examples, list(parts), settings, progress)


def models_at_random(
    data: DataSet,
    examples: Examples,
    train_share: float,
    settings: Settings,
    progress: Progress = lambda share, what: None,
) -> list[CompletionModel]:
    """Return for each row a model trained on a random share of the others, the same places among them.

    Delphi's split is 0.1: a tenth to learn from (section 6.1). 0.9 is the usual one. Each row is judged
    once, by one of ten models. ConfigError: the share is not from 0.1 to 0.9. DataSetError: too little
    to learn from.
    """
    if not 1 / _RANDOM_FOLDS <= train_share <= 1 - 1 / _RANDOM_FOLDS:
        raise ConfigError(f"train_share is {train_share:g}; a share from 0.1 to 0.9 is needed")
    part = np.random.default_rng(settings.seed).permutation(len(data)) % _RANDOM_FOLDS
    used = round(train_share * _RANDOM_FOLDS)
    parts = []
    for number in range(_RANDOM_FOLDS):
        ahead = (part - number) % _RANDOM_FOLDS
        parts.append((np.nonzero((ahead > 0) & (ahead <= used))[0], np.nonzero(part == number)[0]))
    return _trained(data, examples, parts, settings, progress)


def _trained(
    data: DataSet,
    examples: Examples,
    parts: list[tuple[NDArray[Any], NDArray[Any]]],
    settings: Settings,
    progress: Progress,
) -> list[CompletionModel]:
    models: list[CompletionModel | None] = [None] * len(data)
    for number, (train, test) in enumerate(parts):
        progress(number / len(parts), f"{settings.kind}: trained {number} of {len(parts)} times")
        try:
            trained = fit(examples.take(train), settings)
        except ValueError as error:
            raise DataSetError(f"{data.source}: {error}") from error
        for index in test.tolist():
            models[index] = trained
    return [each for each in models if each is not None]
