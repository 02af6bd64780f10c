"""The daemon's configuration (DESIGN, "Commands and files"): what may be set, to what, and by default.

`cedos.toml` beside this module explains every default to users; a test keeps the two equal.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal, TypedDict

import msgspec
from msgspec import Meta

from cedos import amounts, toml_file
from cedos.errors import ConfigError
from cedos.model import NetworkKind

DEFAULT_FILE = Path("/etc/cedos/cedos.toml")
SHIPPED_FILE = Path(__file__).with_name("cedos.toml")

InterfaceName = Annotated[
    str,
    Meta(
        pattern=r"^[^/\s:]{1,15}$",
        description="an interface's name (at most 15 characters, as `ip link` shows it)",
    ),
]
NetworkName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,30}$",
        description="a short name of letters, digits and . _ -",
    ),
]
_Exponent = Annotated[float, Meta(ge=0, le=10)]
_Rate = Annotated[float, Meta(ge=0, le=1e6)]
_Interval = Annotated[float, Meta(ge=0.1, le=3600)]
_Offset = Annotated[float, Meta(ge=-1e9, le=1e9)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Size = Annotated[int, Meta(ge=1, le=10**12)]


PROBE_PORT = 7007
"""The usual port of a probe server."""


def endpoint(value: str) -> tuple[IPv4Address | IPv6Address, int]:
    """The address and port of a probe server.

    Raises:
        ValueError: the text says neither `ADDRESS:PORT` nor `[ADDRESS]:PORT`; the port may be missing.
    """
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?", value)
    try:
        if match is None:
            raise ValueError(value)
        address, port = ip_address(match[1] or match[2]), int(match[3] or PROBE_PORT)
    except ValueError as error:
        raise ValueError(
            f'"{value}": "192.0.2.1:7007" or "[2001:db8::1]:7007" would be right'
        ) from error
    if not 0 < port < 65536:
        raise ValueError(f'"{value}": ports go from 1 to 65535')
    return address, port


def _target(
    value: str, name: str, family: type[IPv4Address] | type[IPv6Address], example: str
) -> None:
    if value == "gateway":
        return
    try:
        right = isinstance(ip_address(value), family)
    except ValueError:
        right = False
    if not right:
        version = "IPv4" if family is IPv4Address else "IPv6"
        raise ValueError(
            f'{name} must be an {version} address such as "{example}", or "gateway", not "{value}"'
        )


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the configuration; never changes once loaded."""


class NetworkConfig(Section, frozen=True, kw_only=True):
    """What the user knows better than the host about one interface; None: as found."""

    name: NetworkName | None = None
    kind: NetworkKind | None = None
    metered: bool | None = None
    ignore: bool = False
    money_per_mb: Annotated[float, Meta(ge=0, le=1e6)] | None = None


class Override(TypedDict, total=False):
    """What the user says of one interface, as `cedos.monitor` takes it; absent keys are not said."""

    name: str
    kind: str
    metered: bool
    ignore: bool


class DecisionConfig(Section, frozen=True, kw_only=True):
    """The one decision: what is best, and what makes a change worth while.

    `alpha`, `beta`, `gamma` are Delphi's exponents of speed, energy and metered bytes; the two
    rates are prices in seconds per joule and per metered megabyte for the objective `weighted`.
    """

    objective: Literal["max-s", "max-s-per-e", "weighted"] = "max-s"
    alpha: _Exponent = 1.0
    beta: _Exponent = 1.0
    gamma: _Exponent = 0.0
    follow: bool = False
    seconds_per_joule: _Rate = 0.0
    seconds_per_metered_mb: _Rate = 0.0
    switch_cost_s: Annotated[float, Meta(ge=0, le=60)] = 0.1
    hysteresis: Annotated[float, Meta(ge=0, le=1)] = 0.1
    reevaluate_interval_s: _Interval = 1.0
    idle_interval_s: _Interval = 5.0
    redundant: bool = False

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        if self.follow and self.objective != "max-s-per-e":
            raise ValueError(
                f'follow moves the exponents of objective = "max-s-per-e"; "{self.objective}" has none'
            )


class FollowConfig(Section, frozen=True, kw_only=True):
    """Which way the exponents go (`cedos.selector.follow.Curves` has the same fields)."""

    beta_full: _Exponent = 0.0
    beta_empty: _Exponent = 2.0
    battery_full: _Share = 0.8
    battery_empty: _Share = 0.1
    gamma_unused: _Exponent = 0.0
    gamma_used: _Exponent = 1.0
    plan_easy: _Share = 0.5

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        if self.battery_empty >= self.battery_full:
            raise ValueError(
                f"battery_empty ({self.battery_empty:g}) must be less than"
                f" battery_full ({self.battery_full:g})"
            )


class PlanConfig(Section, frozen=True, kw_only=True):
    """The data plan of the metered networks together; `metered_bytes` None: no limit."""

    metered_bytes: _Size | None = None
    reset_day: Annotated[int, Meta(ge=1, le=31)] = 1


class BudgetConfig(Section, frozen=True, kw_only=True):
    """A budget: one of `data`, `energy`, `money` or `battery`, and until when it is to last.

    `unit`, `unit_money` and `seconds_per_money` are for data that is bought as one goes.
    """

    until: str
    data: str | None = None
    energy: str | None = None
    money: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    battery: bool = False
    every: Literal["day", "week", "month", "year"] | None = None
    networks: list[NetworkName] = []
    unit: str | None = None
    unit_money: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    seconds_per_money: Annotated[float, Meta(ge=0, le=1e9)] = 60.0

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        said = [name for name in ("data", "energy", "money") if getattr(self, name) is not None]
        said += ["battery"] * self.battery
        if len(said) != 1:
            raise ValueError(
                "a budget is of one of data, energy, money or battery,"
                f" not of {' and '.join(said) or 'none'}"
            )
        if self.money == 0.0:
            raise ValueError("money = 0 would forbid everything; more would be right")
        amounts.until(self.until, datetime(2026, 1, 1))
        if ":" in self.until and "-" not in self.until and self.every != "day":
            raise ValueError(f'until = "{self.until}" is another time every day: every = "day"')
        for text, read in ((self.data, amounts.size_bytes), (self.energy, amounts.joules)):
            if text is not None and not read(text):
                raise ValueError(f'"{text}" would forbid everything; more would be right')
        if self.unit is not None and (self.data is None or not amounts.size_bytes(self.unit)):
            raise ValueError('unit, such as "1GB", is for budgets of data')


class PacingConfig(Section, frozen=True, kw_only=True):
    """Which controller moves the prices of budgets."""

    controller: Literal["pacer", "odyssey"] = "pacer"


class EnergyConfig(Section, frozen=True, kw_only=True):
    """Whose radios joules are reckoned with (`cedos/radios.toml`)."""

    device: Annotated[str, Meta(min_length=1)] = "delphi"
    cellular: Annotated[str, Meta(min_length=1)] = "lte"
    wifi: Annotated[str, Meta(min_length=1)] = "wifi"
    file: Path | None = None


class ProbesConfig(Section, frozen=True, kw_only=True):
    """Active probes: pings and DNS questions; with a `server`, UDP trains and short transfers too."""

    enabled: bool = True
    target: str = "1.1.1.1"
    target_ipv6: str = "2606:4700:4700::1111"
    interval_s: _Interval = 2.0
    idle_interval_s: _Interval = 30.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    dns: bool = True
    dns_name: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?$", max_length=253)
    ] = "example.com"
    portal_url: Annotated[str, Meta(max_length=2000)] = "http://network-test.debian.org/nm"
    portal_body: Annotated[str, Meta(max_length=1000)] = "NetworkManager is online"
    server: str = ""
    key_file: Path | None = None
    train_packets: Annotated[int, Meta(ge=2, le=200)] = 50
    train_packet_bytes: Annotated[int, Meta(ge=64, le=1452)] = 1200
    tcp_bytes: Annotated[int, Meta(ge=1_000, le=10_000_000)] = 100_000
    rule: Literal["value", "change", "fixed"] = "value"
    full_interval_s: _Interval = 30.0
    threshold: Annotated[float, Meta(ge=0, le=100)] = 0.5
    seconds_per_joule: Annotated[float, Meta(ge=0, le=1000)] = 0.005
    seconds_per_mb: Annotated[float, Meta(ge=0, le=1000)] = 0.2

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        _target(self.target, "target", IPv4Address, "1.1.1.1")
        _target(self.target_ipv6, "target_ipv6", IPv6Address, "2606:4700:4700::1111")
        if self.server:
            endpoint(self.server)
            if self.key_file is None:
                raise ValueError(
                    "server needs key_file, the key that `cedos probe-server --new-key` made"
                )
        if self.portal_url and not self.portal_url.startswith("http://"):
            raise ValueError(
                'portal_url must be an http:// URL such as "http://network-test.debian.org/nm"'
                f' (nobody but a portal would answer https wrongly), or "", not "{self.portal_url}"'
            )
        if self.idle_interval_s < self.interval_s:
            raise ValueError(
                f"idle_interval_s ({self.idle_interval_s:g}) must not be shorter than"
                f" interval_s ({self.interval_s:g})"
            )


class ProfilerConfig(Section, frozen=True, kw_only=True):
    """What is learnt from the first packets of flows, and what is guessed without (Delphi, 4.2)."""

    enabled: bool = True
    default_size_bytes: _Size = 3_000
    default_large_bytes: _Size = 100_000

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        if self.default_large_bytes < self.default_size_bytes:
            raise ValueError(
                f"default_large_bytes ({self.default_large_bytes}) must not be less than"
                f" default_size_bytes ({self.default_size_bytes})"
            )


class SteeringConfig(Section, frozen=True, kw_only=True):
    """Which hands the daemon may lay on the kernel."""

    default: bool = True
    destinations: bool = True
    mptcp: bool = True
    iptables: bool = True
    rescue: bool = True
    short_queues: bool = False


class PredictorsConfig(Section, frozen=True, kw_only=True):
    """Which trained model predicts completion times: `shipped`, or the path of a file."""

    model: Annotated[str, Meta(min_length=1)] = "shipped"
    adapt: bool = False

    @property
    def model_path(self) -> Path | None:
        """The model's file, None for the shipped one (as `cedos.predictor_file.load` takes it)."""
        return None if self.model == "shipped" else Path(self.model)


class HistoryConfig(Section, frozen=True, kw_only=True):
    """Where decisions and finished flows are kept; no `path`: in the state directory."""

    enabled: bool = True
    path: Path | None = None
    max_rows: Annotated[int, Meta(ge=1_000, le=100_000_000)] = 200_000


class ProvidersConfig(Section, frozen=True, kw_only=True):
    """Where indicators come from: the host's radios, or files recorded beside a trace.

    `series` maps interfaces to CSV files, `offset_s` to the instant of the file at which it starts;
    `started_at_s` is the monotonic clock's reading at that start (None: the daemon's own start).
    """

    host: bool = True
    adb: bool = True
    series: dict[InterfaceName, Path] = {}
    offset_s: dict[InterfaceName, _Offset] = {}
    started_at_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        if stray := [name for name in self.offset_s if name not in self.series]:
            raise ValueError(f"offset_s names {stray[0]}, which has no series")


class LogConfig(Section, frozen=True, kw_only=True):
    """What is logged to standard error, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Config(Section, frozen=True, kw_only=True):
    """All that the daemon may be told; `networks` is by interface name."""

    networks: dict[InterfaceName, NetworkConfig] = {}
    decision: DecisionConfig = DecisionConfig()
    follow: FollowConfig = FollowConfig()
    plan: PlanConfig = PlanConfig()
    budgets: dict[NetworkName, BudgetConfig] = {}
    pacing: PacingConfig = PacingConfig()
    energy: EnergyConfig = EnergyConfig()
    probes: ProbesConfig = ProbesConfig()
    profiler: ProfilerConfig = ProfilerConfig()
    steering: SteeringConfig = SteeringConfig()
    predictors: PredictorsConfig = PredictorsConfig()
    history: HistoryConfig = HistoryConfig()
    providers: ProvidersConfig = ProvidersConfig()
    log: LogConfig = LogConfig()

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        names = [network.name or interface for interface, network in self.networks.items()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f'two networks are called "{twice[0]}"; give each a name of its own')
        if "plan" in self.budgets and self.plan.metered_bytes is not None:
            raise ValueError('[plan] is a budget called "plan" already; give yours another name')

    def network_overrides(self) -> dict[str, Override]:
        """What the user says of interfaces, by interface."""
        said: dict[str, Override] = {}
        for interface, network in self.networks.items():
            override = Override(ignore=network.ignore)
            if network.name is not None:
                override["name"] = network.name
            if network.kind is not None:
                override["kind"] = network.kind.value
            if network.metered is not None:
                override["metered"] = network.metered
            said[interface] = override
        return said


def load(path: Path | None = None) -> Config:
    """Loads the configuration.

    Args:
        path: the file; None: `/etc/cedos/cedos.toml` where it exists, else the defaults.

    Raises:
        ConfigError: with file, line and what would be right, one line per problem.
    """
    if path is None:
        path = DEFAULT_FILE
        # One that is there but cannot be read is an error below, not a reason for defaults.
        with suppress(PermissionError):
            try:
                path.stat()
            except FileNotFoundError:
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


@dataclass(frozen=True, slots=True)
class Directories:
    """Where a daemon keeps its state (survives a restart) and its run-time files (does not)."""

    state: Path
    runtime: Path

    @property
    def socket(self) -> Path:
        """The control socket."""
        return self.runtime / "control.sock"

    @property
    def pid_file(self) -> Path:
        """The file that the living daemon holds a lock on."""
        return self.runtime / "daemon.pid"

    @property
    def history(self) -> Path:
        """The history, unless configured elsewhere."""
        return self.state / "history.sqlite"


def directories(environment: Mapping[str, str] = os.environ) -> Directories:
    """The directories by `CEDOS_*_DIR`, else systemd's `*_DIRECTORY`, else the system's usual ones.

    Raises:
        ConfigError: a variable holds a path that is not absolute.
    """
    return Directories(
        state=_directory(environment, "STATE", "/var/lib/cedos"),
        runtime=_directory(environment, "RUNTIME", "/run/cedos"),
    )


def _directory(environment: Mapping[str, str], what: str, usual: str) -> Path:
    for variable in (f"CEDOS_{what}_DIR", f"{what}_DIRECTORY"):
        # systemd separates several directories by colons; the first one is the unit's own.
        if value := environment.get(variable, "").partition(":")[0]:
            path = Path(value)
            if not path.is_absolute():
                raise ConfigError(f"{variable} must be an absolute path, not {value}")
            return path
    return Path(usual)
