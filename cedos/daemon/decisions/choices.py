"""The method, objective and model of decisions, by the configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from cedos.config import Config
from cedos.controller.config import Choices
from cedos.controller.flows.learning import Learning
from cedos.daemon import state_file
from cedos.daemon.budgets.metering import money_per_mb, radios_of
from cedos.errors import ModelError
from cedos.host.profiler.sizes import UNKNOWN
from cedos.selector.energy import PowerModel
from cedos.selector.objective import MaxS, MaxSPerE, Objective, WeightedCost
from cedos.selector.uncertainty import method_of
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.times import CompletionModel
from cedos.storage import model_files
from predictors.completion import CompletionModel as TreeModel
from predictors.posterior import Posterior

_log = structlog.get_logger(__name__)


POSTERIOR_FILE: Final = "posterior.json"
_POSTERIOR: Final = "what came of predictions"


def objective(config: Config) -> Objective:
    decision = config.decision
    match decision.objective:
        case "max-s":
            return MaxS()
        case "max-s-per-e":
            return MaxSPerE(decision.alpha, decision.beta, decision.gamma)
        case "balanced":
            return WeightedCost(decision.seconds_per_joule).for_phone(decision.phone)


def choices(
    config: Config,
    state: Path,
    problems: list[str],
    load: Callable[[Path | None], TreeModel] = model_files.load,
) -> Choices:
    """Return how to decide: without usable predictors by the rule of thumb, and `problems` says so.

    `load` reads the predictors' file.
    """
    model: CompletionModel | None = None
    method = method_of(config.decision.method)
    try:
        general = load(config.predictors.model_path)
        model = learned(general, state) if method is Bayesian else general
    except ModelError as error:
        problems.append(f"{error}. Until then a rule of thumb decides")
        _log.warning("no predictors", why=str(error))
    return Choices(
        objective=objective(config),
        model=model,
        default_size_bytes=int(UNKNOWN.median_bytes),
        margin=config.decision.hysteresis,
        switch_cost_s=config.decision.switch_cost_s,
        destinations=config.steering.destinations,
        redundant=config.decision.redundant,
        price_per_mb=money_per_mb(config),
        power=PowerModel(radios_of(config)),
        method=method,
    )


def learned(model: TreeModel, folder: Path) -> Learning:
    """Return the predictors with what was learned earlier, or new ones if that cannot be used."""
    path = folder / POSTERIOR_FILE
    posterior = Posterior()
    state = state_file.read(path, _POSTERIOR)
    if state is not None:
        try:
            kept = Posterior.from_state(state)
            if state.get("model") != model.fingerprint():
                raise ValueError("it was learned of another model")
            posterior = kept
        except ValueError as error:
            state_file.unusable(path, _POSTERIOR, error)
    return Learning(model, posterior)


def keep_learned(learning: Learning, folder: Path) -> None:
    """Write what is learned to its file."""
    state_file.write(folder / POSTERIOR_FILE, learning.kept(), _POSTERIOR)
