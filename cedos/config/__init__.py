"""The daemon's configuration: settings, their types and defaults.

`cedos.toml` beside this package explains every default to users; a test keeps the two equal.
"""

import difflib
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from cedos.config import toml_file
from cedos.config.sections import (
    BudgetConfig,
    DecisionConfig,
    EnergyConfig,
    HistoryConfig,
    InterfaceName,
    LogConfig,
    NetworkConfig,
    NetworkName,
    PacingConfig,
    PredictorsConfig,
    ProbesConfig,
    ProfilerConfig,
    ProvidersConfig,
    Section,
    SteeringConfig,
    TransfersConfig,
)
from cedos.model import Budget, NetworkOverride

__all__ = [
    "BudgetConfig",
    "Config",
    "DecisionConfig",
    "EnergyConfig",
    "HistoryConfig",
    "LogConfig",
    "NetworkConfig",
    "PacingConfig",
    "PredictorsConfig",
    "ProbesConfig",
    "ProfilerConfig",
    "ProvidersConfig",
    "Section",
    "SteeringConfig",
    "TransfersConfig",
    "found",
    "load",
    "unknown_names",
]

DEFAULT_FILE = Path("/etc/cedos/cedos.toml")
SHIPPED_FILE = Path(__file__).with_name("cedos.toml")


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration; `networks` is by interface name."""

    networks: dict[InterfaceName, NetworkConfig] = msgspec.field(default_factory=dict)
    decision: DecisionConfig = DecisionConfig()
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


def find_file(path: Path | None = None) -> Path | None:
    """Return the file that `load` reads; None: there is none, and the defaults hold."""
    if path is not None:
        return path
    # If the file exists but cannot be read, `load` raises an error instead of using the defaults.
    with suppress(PermissionError):
        try:
            DEFAULT_FILE.stat()
        except FileNotFoundError:
            return None
    return DEFAULT_FILE


def load(path: Path | None = None) -> Config:
    """Load the configuration.

    `path`: the file; None: `/etc/cedos/cedos.toml` if it exists, else the defaults. ConfigError:
    one line for each problem, with file, line and what would be right.
    """
    path = find_file(path)
    if path is None:
        return Config()
    config = toml_file.read(path, Config)
    if (radios := config.energy.file) is not None:
        energy = msgspec.structs.replace(config.energy, file=path.parent / radios.expanduser())
        config = msgspec.structs.replace(config, energy=energy)
    if (model := config.predictors.model_path) is not None:
        located = str(path.parent / model.expanduser())
        predictors = msgspec.structs.replace(config.predictors, model=located)
        config = msgspec.structs.replace(config, predictors=predictors)
    return config


def unknown_names(
    config: Config,
    budgets: Iterable[Budget],
    *,
    interfaces: Collection[str],
    networks: Collection[str],
) -> list[str]:
    """Describe the names that are not among these. Ignored interfaces are never networks."""
    named = {
        **{f"[networks.{name}]": name for name, each in config.networks.items() if not each.ignore},
        **{f"[providers] series.{name}": name for name in config.providers.series},
    }
    found = [
        f"{where} names the interface {name}, which is not there now{_hint(name, interfaces)}"
        for where, name in named.items()
        if name not in interfaces
    ]
    return found + [
        f'the budget "{budget.name}" names the network {name},'
        f" which is not there now{_hint(name, networks)}"
        for budget in budgets
        for name in budget.networks
        if name not in networks
    ]


def _hint(name: str, known: Collection[str]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f"; did you mean {near[0]}?"
    are = "is" if len(known) == 1 else "are"
    return f"; there {are} {', '.join(sorted(known))}" if known else ""
