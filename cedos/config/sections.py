"""The sections of the configuration, and the types of their values."""

import re
from datetime import datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cedos.budget_kinds import Resource
from cedos.config import amounts
from cedos.model import Budget, Every, NetworkKind, PhoneUse

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
Rate = Annotated[float, Meta(ge=0, le=1e6)]
Interval = Annotated[float, Meta(ge=0.1, le=3600)]
Instant = Annotated[float, Meta(ge=-1e9, le=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A section of the configuration, immutable once loaded."""


class NetworkConfig(Section, frozen=True, kw_only=True):
    """`[networks.NAME]`: the user's facts about an interface; None: as found by the host."""

    name: NetworkName | None = None
    kind: NetworkKind | None = None
    metered: bool | None = None
    ignore: bool = False
    money_per_mb: Annotated[float, Meta(ge=0, le=1e6)] | None = None


class DecisionConfig(Section, frozen=True, kw_only=True):
    """`[decision]`: the objective, and whether copies may be sent."""

    objective: Literal["balanced", "max-s", "max-s-per-e"] = "balanced"
    seconds_per_joule: Rate = 0.01
    # `phone`, `seconds_per_joule`: the prices of metered data and of joules for `balanced`.
    phone: PhoneUse = PhoneUse.TO_SAVE_TIME
    redundant: bool = False


class BudgetConfig(Section, frozen=True, kw_only=True):
    """`[budgets.NAME]`: one of `data`, `energy`, `money` or `battery`, and its end."""

    until: str
    data: str | None = None
    energy: str | None = None
    money: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    battery: bool = False
    every: Every | None = None
    networks: list[NetworkName] = msgspec.field(default_factory=list)
    hard: bool = False

    def __post_init__(self) -> None:
        given = [name.value for name in Resource if getattr(self, name) is not None]
        given += ["battery"] * self.battery
        if len(given) != 1:
            raise ValueError(
                "a budget is of one of data, energy, money or battery,"
                f" not of {' and '.join(given) or 'none'}"
            )
        if ":" in self.until and "-" not in self.until and self.every is not Every.DAY:
            raise ValueError(f'until = "{self.until}" is another time every day: every = "day"')
        self.budget("budget", datetime(2026, 1, 1))

    def budget(self, name: str, now: datetime) -> Budget:
        """Return the budget; `now` is the local time from which times of day count."""
        resource, supply = Resource.ENERGY, 0.0
        if self.data is not None:
            resource, supply = Resource.DATA, amounts.size_bytes(self.data)
        elif self.money is not None:
            resource, supply = Resource.MONEY, self.money
        elif self.energy is not None:
            supply = amounts.joules(self.energy)
        return Budget(
            name,
            resource,
            supply,
            amounts.parse_end(self.until, now, kept=True).isoformat(),
            networks=tuple(self.networks),
            every=self.every,
            battery=self.battery,
            hard=self.hard,
        )


class PacingConfig(Section, frozen=True, kw_only=True):
    """`[pacing]`: the controller of the budgets' prices."""

    controller: Literal["pacer", "odyssey"] = "pacer"


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


class ProbesConfig(Section, frozen=True, kw_only=True):
    """`[probes]`: pings and DNS queries."""

    enabled: bool = True
    target: str = "1.1.1.1"
    target_ipv6: str = "2606:4700:4700::1111"
    interval_s: Interval = 2.0
    idle_interval_s: Interval = 30.0
    dns: bool = True
    dns_name: Annotated[
        str, Meta(pattern=r"^([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?$", max_length=253)
    ] = "example.com"
    portal_url: Annotated[str, Meta(max_length=2000)] = "http://network-test.debian.org/nm"

    def __post_init__(self) -> None:
        _target(self.target, "target", IPv4Address, "1.1.1.1")
        _target(self.target_ipv6, "target_ipv6", IPv6Address, "2606:4700:4700::1111")
        if self.portal_url and not self.portal_url.startswith("http://"):
            raise ValueError(
                'portal_url must be an http:// URL such as "http://network-test.debian.org/nm"'
                f' (a portal cannot answer https), or "", not "{self.portal_url}"'
            )
        if self.idle_interval_s < self.interval_s:
            raise ValueError(
                f"idle_interval_s ({self.idle_interval_s:g}) must not be shorter than"
                f" interval_s ({self.interval_s:g})"
            )


class EnergyConfig(Section, frozen=True, kw_only=True):
    """`[energy]`: the radios' power models (`cedos/storage/radios.toml`)."""

    device: Annotated[str, Meta(min_length=1)] = "delphi"
    cellular: Annotated[str, Meta(min_length=1)] = "lte"
    wifi: Annotated[str, Meta(min_length=1)] = "wifi"
    file: Path | None = None


class ProfilerConfig(Section, frozen=True, kw_only=True):
    """`[profiler]`: sizes from the first packets of flows."""

    enabled: bool = True


class SteeringConfig(Section, frozen=True, kw_only=True):
    """`[steering]`: what the daemon may do with this host's connections."""

    rescue: bool = True
    lookups: bool = True
    tcp: bool = True
    close_stuck: str = "never"
    short_queues: bool = False

    def __post_init__(self) -> None:
        if self.close_stuck not in ("never", "lost") and self.closes_after_s is None:
            raise ValueError(
                f'close_stuck = "{self.close_stuck}": "never", "lost" or "after 3s" (1 to 600 s) would be'
                " right"
            )

    @property
    def closes_after_s(self) -> float | None:
        """Return the silence in seconds after which stuck connections are closed; None: never."""
        found = re.fullmatch(r"after (\d{1,3}(?:\.\d)?)s", self.close_stuck)
        seconds = float(found[1]) if found else 0.0
        return seconds if 1.0 <= seconds <= 600.0 else None


class TransfersConfig(Section, frozen=True, kw_only=True):
    """`[transfers]`: transfers with deadlines (`cedos transfers`)."""

    stay_awake: bool = True


class PredictorsConfig(Section, frozen=True, kw_only=True):
    """`[predictors]`: the model of completion times: `shipped`, or the path of a file."""

    model: Annotated[str, Meta(min_length=1)] = "shipped"

    @property
    def model_path(self) -> Path | None:
        return None if self.model == "shipped" else Path(self.model)


class HistoryConfig(Section, frozen=True, kw_only=True):
    """`[history]`: the file of decisions and finished flows."""

    enabled: bool = True


class ProvidersConfig(Section, frozen=True, kw_only=True):
    """`[providers]`: the host's radios as indicators, or files recorded beside a trace."""

    host: bool = True
    # CSV files by interface.
    series: dict[InterfaceName, Path] = msgspec.field(default_factory=dict)
    # The monotonic clock at the file's second 0, by interface; by default the daemon's start.
    started_at_s: dict[InterfaceName, Instant] = msgspec.field(default_factory=dict)


class LogConfig(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
