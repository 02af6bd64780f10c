"""The daemon's configuration (DESIGN, "Commands and files"): what may be set, to what, and by default.

`cedos.toml` beside this package explains every default to users; a test keeps the two equal.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from cedos.config import toml_file
from cedos.config.budgets import BudgetConfig, PacingConfig, PlanConfig
from cedos.config.decision import DecisionConfig, FollowConfig
from cedos.config.networks import NetworkConfig
from cedos.config.probes import ProbesConfig
from cedos.config.section import InterfaceName, NetworkName, Section
from cedos.config.sections import (
    EnergyConfig,
    HistoryConfig,
    LogConfig,
    PredictorsConfig,
    ProfilerConfig,
    ProvidersConfig,
    SteeringConfig,
    TransfersConfig,
)
from cedos.model import NetworkOverride

__all__ = [
    "BudgetConfig",
    "Config",
    "DecisionConfig",
    "EnergyConfig",
    "FollowConfig",
    "HistoryConfig",
    "LogConfig",
    "NetworkConfig",
    "PacingConfig",
    "PlanConfig",
    "PredictorsConfig",
    "ProbesConfig",
    "ProfilerConfig",
    "ProvidersConfig",
    "Section",
    "SteeringConfig",
    "TransfersConfig",
    "found",
    "load",
]

DEFAULT_FILE = Path("/etc/cedos/cedos.toml")
SHIPPED_FILE = Path(__file__).with_name("cedos.toml")


class Config(Section, frozen=True, kw_only=True):
    """All that the daemon may be told; `networks` is by interface name."""

    networks: dict[InterfaceName, NetworkConfig] = msgspec.field(default_factory=dict)
    decision: DecisionConfig = DecisionConfig()
    follow: FollowConfig = FollowConfig()
    plan: PlanConfig = PlanConfig()
    budgets: dict[NetworkName, BudgetConfig] = msgspec.field(default_factory=dict)
    pacing: PacingConfig = PacingConfig()
    energy: EnergyConfig = EnergyConfig()
    probes: ProbesConfig = ProbesConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    steering: SteeringConfig = SteeringConfig()
    transfers: TransfersConfig = TransfersConfig()
    predictors: PredictorsConfig = PredictorsConfig()
    history: HistoryConfig = HistoryConfig()
    providers: ProvidersConfig = ProvidersConfig()
    log: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        names = [network.name or interface for interface, network in self.networks.items()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f'two networks are called "{twice[0]}"; give each a name of its own')
        if "plan" in self.budgets and self.plan.metered_bytes is not None:
            raise ValueError('[plan] is a budget called "plan" already; give yours another name')

    def network_overrides(self) -> dict[str, NetworkOverride]:
        overrides: dict[str, NetworkOverride] = {}
        for interface, network in self.networks.items():
            override = NetworkOverride(ignore=network.ignore)
            if network.name is not None:
                override["name"] = network.name
            if network.kind is not None:
                override["kind"] = network.kind.value
            if network.metered is not None:
                override["metered"] = network.metered
            overrides[interface] = override
        return overrides


def found(path: Path | None = None) -> Path | None:
    """The file that `load` reads; None where there is none, and the defaults hold."""
    if path is not None:
        return path
    # One that is there but cannot be read is an error of `load`, not a reason for defaults.
    with suppress(PermissionError):
        try:
            DEFAULT_FILE.stat()
        except FileNotFoundError:
            return None
    return DEFAULT_FILE


def load(path: Path | None = None) -> Config:
    """Loads the configuration.

    `path`: the file; None: `/etc/cedos/cedos.toml` where it exists, else the defaults.
    Errors: ConfigError, with file, line and what would be right, one line per problem.
    """
    path = found(path)
    if path is None:
        return Config()
    config = toml_file.read(path, Config)
    if (key_file := config.probes.key_file) is not None:
        probes = msgspec.structs.replace(
            config.probes, key_file=path.parent / key_file.expanduser()
        )
        config = msgspec.structs.replace(config, probes=probes)
    if (radios := config.energy.file) is not None:
        energy = msgspec.structs.replace(config.energy, file=path.parent / radios.expanduser())
        config = msgspec.structs.replace(config, energy=energy)
    if (model := config.predictors.model_path) is not None:
        located = str(path.parent / model.expanduser())
        predictors = msgspec.structs.replace(config.predictors, model=located)
        config = msgspec.structs.replace(config, predictors=predictors)
    return config
