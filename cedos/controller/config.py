"""The controller's configuration: the objective and model of decisions, and what it may do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cedos.model import PhoneUse
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.objective import Objective
from cedos.selector.uncertainty.times import CompletionModel


@dataclass(frozen=True, slots=True)
class Choices:
    """The objective and model of decisions.

    `power` are the radios, `redundant` whether the same data may go over several networks,
    `price_per_mb` what networks cost by name, if configured.
    """

    objective: Objective
    model: CompletionModel
    default_size_bytes: int
    redundant: bool = False
    power: PowerModel = DELPHI
    price_per_mb: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """The settings that hold for the controller's life.

    Attributes:
        choices: how to decide.
        rescue: lead first packets elsewhere that have no answer.
        short_queues: bound the receive buffers by the measured rates.
        close_stuck: `never`, `lost` or `after`: when to close plain connections on a dead network.
        closes_after_s: the silence in s before that; None: only where the network is gone.
        pacing: the controller of budgets, `pacer` or `odyssey`.
        phone: the use of metered networks.
        dry_run: commands are printed only.
        first_number: the number of the first decision.
    """

    choices: Choices
    rescue: bool = True
    short_queues: bool = False
    close_stuck: str = "never"
    closes_after_s: float | None = None
    pacing: str = "pacer"
    phone: PhoneUse = PhoneUse.TO_SAVE_TIME
    dry_run: bool = False
    first_number: int = 1
