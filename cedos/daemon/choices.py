"""From the configuration to how decisions are taken."""

import structlog

from cedos import predictor_file
from cedos.config import Config
from cedos.daemon.director import Choices
from cedos.errors import ModelError
from cedos.selector.objective import MaxS, MaxSPerE, Objective, WeightedCost
from cedos.selector.uncertainty import CompletionModel

_log = structlog.get_logger(__name__)


def objective(config: Config) -> Objective:
    """The configured objective."""
    decision = config.decision
    match decision.objective:
        case "max-s":
            return MaxS()
        case "max-s-per-e":
            return MaxSPerE(decision.alpha, decision.beta, decision.gamma)
        case "weighted":
            return WeightedCost(decision.seconds_per_joule, decision.seconds_per_metered_mb / 1e6)


def choices(config: Config, problems: list[str]) -> Choices:
    """How to decide: without usable predictors by the rule of thumb, and `problems` says so."""
    model: CompletionModel | None = None
    try:
        model = predictor_file.load(config.predictors.model_path)
    except ModelError as error:
        problems.append(f"{error}; deciding by a rule of thumb until then")
        _log.warning("no predictors", why=str(error))
    return Choices(
        objective=objective(config),
        model=model,
        default_size_bytes=config.profiler.default_size_bytes,
        margin=config.decision.hysteresis,
        switch_cost_s=config.decision.switch_cost_s,
        destinations=config.steering.destinations,
    )
