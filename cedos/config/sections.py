"""The smaller sections of the configuration."""

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cedos.config.section import InterfaceName, Offset, Section, Size

Port = Annotated[int, Meta(ge=1, le=65535)]


class EnergyConfig(Section, frozen=True, kw_only=True):
    """Whose radios joules are reckoned with (`cedos/storage/radios.toml`)."""

    device: Annotated[str, Meta(min_length=1)] = "delphi"
    cellular: Annotated[str, Meta(min_length=1)] = "lte"
    wifi: Annotated[str, Meta(min_length=1)] = "wifi"
    file: Path | None = None


class ProfilerConfig(Section, frozen=True, kw_only=True):
    """What is learnt from the first packets of flows, and what is guessed without (Delphi, 4.2)."""

    enabled: bool = True
    default_size_bytes: Size = 3_000
    default_large_bytes: Size = 100_000

    def __post_init__(self) -> None:
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
    lookups: bool = True
    retransmission: bool = True
    close_stuck: str = "never"
    close_stuck_ports: tuple[Port, ...] = (80, 443, 8000, 8080, 8443, 9418)
    short_queues: bool = False

    def __post_init__(self) -> None:
        if self.close_stuck not in ("never", "lost") and self.closes_after_s is None:
            raise ValueError(
                f'close_stuck = "{self.close_stuck}": "never", "lost" or "after 3s" (1 to 600 s) would be'
                " right"
            )

    @property
    def closes_after_s(self) -> float | None:
        """Return after how much silence stuck connections are closed; None: silence closes none."""
        found = re.fullmatch(r"after (\d{1,3}(?:\.\d)?)s", self.close_stuck)
        seconds = float(found[1]) if found else 0.0
        return seconds if 1.0 <= seconds <= 600.0 else None


class TransfersConfig(Section, frozen=True, kw_only=True):
    """Transfers with deadlines (`cedos transfers`)."""

    stay_awake: bool = True
    wake: bool = False
    wake_battery_percent: Annotated[int, Meta(ge=0, le=100)] = 40


class PredictorsConfig(Section, frozen=True, kw_only=True):
    """Which trained model predicts completion times: `shipped`, or the path of a file."""

    model: Annotated[str, Meta(min_length=1)] = "shipped"
    adapt: bool = False

    @property
    def model_path(self) -> Path | None:
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
    series: dict[InterfaceName, Path] = msgspec.field(default_factory=dict)
    offset_s: dict[InterfaceName, Offset] = msgspec.field(default_factory=dict)
    started_at_s: Annotated[float, Meta(ge=0, le=1e12)] | None = None

    def __post_init__(self) -> None:
        if stray := [name for name in self.offset_s if name not in self.series]:
            raise ValueError(f"offset_s names {stray[0]}, which has no series")


class LogConfig(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"
