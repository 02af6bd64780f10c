"""The method, objective and model of decisions, by the configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from cedos.config import Config
from cedos.daemon.budgets.metering import money_per_mb, radios_of
from cedos.daemon.flows import learning
from cedos.errors import ModelError
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.objective import Curves, MaxS, MaxSPerE, Objective, WeightedCost
from cedos.selector.uncertainty import method_of
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.times import CompletionModel
from cedos.storage import model_files

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Choices:
    """The method, objective and model of decisions.

    `margin` is the share that a change must save, `switch_cost_s` what moving a living flow costs,
    `power` the radios, `redundant` whether the same data may go over several networks,
    `price_per_mb` what networks cost by name, if configured, `method` how uncertainty is taken.
    """

    objective: Objective
    model: CompletionModel | None
    default_size_bytes: int
    margin: float
    switch_cost_s: float
    destinations: bool = True
    redundant: bool = False
    power: PowerModel = DELPHI
    price_per_mb: Mapping[str, float] = field(default_factory=dict)
    method: type[Evaluator] = BruteForce


def objective(config: Config) -> Objective:
    decision = config.decision
    match decision.objective:
        case "max-s":
            return MaxS()
        case "max-s-per-e":
            return MaxSPerE(decision.alpha, decision.beta, decision.gamma)
        case "balanced":
            return WeightedCost(decision.seconds_per_joule).for_phone(decision.phone)


def curves(config: Config) -> Curves | None:
    """Return how the objective's exponents follow battery and data plan; None: they do not."""
    if not config.decision.follow:
        return None
    return Curves(alpha=config.decision.alpha, **msgspec.structs.asdict(config.follow))


def choices(config: Config, state: Path, problems: list[str]) -> Choices:
    """Return how to decide: without usable predictors by the rule of thumb, and `problems` says so."""
    model: CompletionModel | None = None
    method = method_of(config.decision.method)
    try:
        general = model_files.load(config.predictors.model_path)
        model = learning.load(general, state) if method is Bayesian else general
    except ModelError as error:
        problems.append(f"{error}. Until then a rule of thumb decides")
        _log.warning("no predictors", why=str(error))
    return Choices(
        objective=objective(config),
        model=model,
        default_size_bytes=config.profiler.default_size_bytes,
        margin=config.decision.hysteresis,
        switch_cost_s=config.decision.switch_cost_s,
        destinations=config.steering.destinations,
        redundant=config.decision.redundant,
        price_per_mb=money_per_mb(config),
        power=PowerModel(radios_of(config)),
        method=method,
    )
