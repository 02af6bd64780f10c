"""Scenarios: an experiment as a TOML file that people write, and the resolved form a run keeps."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from cedos.config import toml_file
from cedos.config.toml_lines import key_lines
from cedos.errors import ConfigError
from cedos.model import Direction
from emu import policies
from emu.workloads.mixed import TransferClass


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    host: str
    direction: Direction
    min_bytes: int
    max_bytes: int
    per_minute: float = 0.0
    mptcp_share: float = 0.5
    slot_s: float = 0.0

    def __post_init__(self) -> None:
        if (self.per_minute > 0) == (self.slot_s > 0):
            raise ValueError("either per_minute or slot_s must be above 0")

    def transfer_class(self) -> TransferClass:
        return TransferClass(**msgspec.structs.asdict(self))


class PageLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[page]]`: generated sites, visited in a browser one after another.

    Each of `sites` sites has one page; visits are about `every_s` apart, in a seeded order.
    """

    name: str
    sites: Annotated[int, Meta(ge=1, le=200)] = 12
    every_s: Annotated[float, Meta(ge=0.5)] = 8.0
    tls: bool = True


class VideoLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[video]]`: `play_s` of video, opened in a browser `at_s` into the run.

    `bitrate_bps` is one of `bitrates_bps`; without it the player adapts to its buffer, which holds
    `buffer_s` at most. `cmcd`: it says with each request what it has in store (CTA-5004); `hls`: it
    reads playlists.
    """

    name: str
    at_s: Annotated[float, Meta(ge=0)] = 1.0
    play_s: Annotated[float, Meta(ge=2, le=600)] = 40.0
    segment_s: Annotated[float, Meta(ge=1, le=20)] = 4.0
    bitrates_bps: Annotated[tuple[int, ...], Meta(min_length=1)] = (700_000, 2_000_000, 5_000_000)
    bitrate_bps: int | None = None
    buffer_s: float = 12.0
    tls: bool = True
    cmcd: bool = False
    hls: bool = False

    def __post_init__(self) -> None:
        if list(self.bitrates_bps) != sorted(set(self.bitrates_bps)) or self.bitrates_bps[0] <= 0:
            raise ValueError("bitrates_bps must ascend from above 0")
        if self.bitrate_bps is not None and self.bitrate_bps not in self.bitrates_bps:
            raise ValueError(f"bitrate_bps must be one of {list(self.bitrates_bps)}")
        if self.buffer_s < 2 * self.segment_s:
            raise ValueError("buffer_s must hold two segments")


class BrowserSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[browser]`: how pages and videos are fetched: MPTCP by `mptcpize`, HTTP/2 where TLS is."""

    mptcp: bool = True
    http2: bool = True
    nice: Annotated[int, Meta(ge=-20, le=19)] = -5


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment: which place, from when to when, which load, under which policies.

    `duration_s` 0 means to the end of the place's common time. `place` "" means the first one of
    the collection; `places` runs it at each of them, from starts drawn by the seed
    (`emu.lab.runs.series`). `repeats` runs all policies again with the next seed. With a `relay`,
    the server speaks no MPTCP and `cedos relay` stands between it and the providers: programs are
    told of it (`proxy`) or diverted to it (`transparent`).
    """

    load: tuple[Load, ...] = ()
    page: tuple[PageLoad, ...] = ()
    video: tuple[VideoLoad, ...] = ()
    browser: BrowserSettings = BrowserSettings()
    name: str = "run"
    place: str = ""
    places: tuple[str, ...] = ()
    start_s: float = 0.0
    duration_s: float = 0.0
    warm_up_s: float = 4.0
    limit_s: float = 30.0
    relay: Literal["", "proxy", "transparent"] = ""
    repeats: int = 1
    seed: int = 1
    policies: tuple[str, ...] = (
        "wifi-first",
        "cellular-only",
        "mptcp-wifi",
        "mptcp-cellular",
        "cedos",
    )
    policy: dict[str, dict[str, Any]] = {}

    def __post_init__(self) -> None:
        if not (self.load or self.page or self.video):
            raise ValueError("nothing to do: it needs a [[load]], a [[page]] or a [[video]]")
        if self.relay and (self.page or self.video):
            raise ValueError("a relay goes with [[load]] only")


def read(file: Path) -> Scenario:
    """Reads a scenario; ConfigError names the file, the key, and what would be right."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"there is no scenario {file} ({error.strerror})") from error
    found = toml_file.read(file, Scenario)
    if strangers := [name for name in found.policy if name not in policies.names()]:
        lines = key_lines(text)
        raise ConfigError(
            "\n".join(
                f"{file}:{lines.get(('policy', name), 1)}: {policies.unknown(name)}"
                for name in strangers
            )
        )
    return found
