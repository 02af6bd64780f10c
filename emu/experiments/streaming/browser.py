"""DASH in Chromium on a train, over Wi-Fi alone and through the local proxy and a gateway.

`python -m emu.experiments.streaming.browser --places DIR p14` plays 90 s of 640 kbit/s with a player
that keeps a minute ahead, from the beginning of the place, and says what came over which network beside
the fewest metered bytes with which anybody could have played it. Ways: `plain`, Wi-Fi alone; `https`, the
gateway, which sees nothing of it; `cmcd`, the gateway and a player that says what it has in store; `hls`,
one that says nothing, and reads a playlist. By request alone, as npm brings them once: `hls.js` and
`dash.js`, the players that sites use, which say nothing (`-cmcd`: do) and go through the gateway
(`-plain`: over Wi-Fi alone). The browser has their programs already, as who comes again does.
"""

import dataclasses
import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.experiments.streaming.optimum import Playback, least_metered_bytes
from emu.experiments.streaming.ride import carried
from emu.lab.runs import browsing
from emu.lab.runs.scenario import Scenario, VideoLoad
from emu.places.places import load
from emu.testbed.access import Access
from emu.testbed.phones import LTE, SERVER, WLAN, Laptop
from emu.testbed.programs.rescue_laptop import put_on_time, through_gateway
from emu.testbed.programs.servers import Servers
from emu.workloads.web import libraries, video
from emu.workloads.web.libraries import Library
from emu.workloads.web.video import PLAYER

_RATE_BPS: Final = 640_000
_PLAY_S, _AHEAD_S, _LIMIT_S, _WARM_S = 90.0, 60.0, 60.0, 4.0
_DELAY_S: Final = 2.0
"""Who knows the future begins to play after so long; and when this player did, also with its segments."""

_BROWSER_USER: Final = "65534"
_VISIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Way:
    """`library`: without, our own player."""

    gateway: bool = True
    tls: bool = False
    cmcd: bool = False
    hls: bool = False
    library: Library | None = None


_OURS: Final = {
    "plain": _Way(gateway=False, tls=True),
    "https": _Way(tls=True),
    "cmcd": _Way(cmcd=True),
    "hls": _Way(hls=True),
}
_WAYS: Final = _OURS | {
    f"{name}{suffix}": _Way(gateway=suffix != "-plain", cmcd=suffix == "-cmcd", library=library)
    for name, library in libraries.LIBRARIES.items()
    for suffix in ("", "-cmcd", "-plain")
}
_VIDEO: Final = VideoLoad(
    "video", at_s=0.2, play_s=_PLAY_S, segment_s=2.0, bitrates_bps=(_RATE_BPS,),
    bitrate_bps=_RATE_BPS, buffer_s=_AHEAD_S,
)  # fmt: skip


def watched(
    accesses: tuple[Access, Access],
    name: str,
    keep: Path | None = None,
    bitrates_bps: tuple[int, ...] = (_RATE_BPS,),
) -> dict[str, Any]:
    """One ride, one of `_WAYS`; of several rates the player chooses.

    EmulationError: among others, a library cannot be fetched.
    """
    way = _WAYS[name]
    loaded = msgspec.structs.replace(
        _VIDEO,
        tls=way.tls,
        cmcd=way.cmcd,
        hls=way.hls,
        bitrates_bps=bitrates_bps,
        bitrate_bps=bitrates_bps[0] if len(bitrates_bps) == 1 else None,
    )
    scenario = Scenario(video=(loaded,), duration_s=_PLAY_S, limit_s=_LIMIT_S, seed=1)
    wanted = browsing.plan(scenario, 1)
    fetched = None
    if way.library is not None:
        fetched = libraries.fetched(way.library)
        videos = [dataclasses.replace(each, page=way.library.page) for each in wanted.videos]
        wanted = dataclasses.replace(wanted, videos=videos)
    (planned,) = wanted.videos
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*accesses, source_rules=not way.gateway))
        player = laptop.directory / "player"
        shutil.copytree(PLAYER, player)
        if fetched is not None:
            (player / "libraries").mkdir()
            shutil.copy(fetched, player / "libraries")
        sites = video.nginx_servers([planned.media], player, tls=True, http2=True)
        servers = stack.enter_context(
            Servers(laptop, tls=True, sites=sites, addresses={video.HOST: SERVER})
        )
        put_on_time(laptop)
        if way.gateway:
            stack.enter_context(through_gateway(laptop, _BROWSER_USER))
        log = laptop.directory / "chromium.log"
        person = stack.enter_context(
            browsing.Person(laptop, servers, wanted, log, mptcp=False, nice=0)
        )
        if way.library is not None:
            person.visit(timeout_s=_VISIT_S)
        laptop.attach(*accesses)  # from the place's beginning, whatever took long until here
        put_on_time(laptop)
        time.sleep(_WARM_S)
        before = carried(laptop)
        (seen,) = person.browse(zero_at_s=time.monotonic(), limit_s=_LIMIT_S).watched
        after = carried(laptop)
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for each in laptop.directory.glob("**/*.log"):
                shutil.copy(each, keep / f"{name}-{each.name}")
    chooses = planned.fixed is None
    size_bytes = seen.received_bytes if chooses else planned.media.size_bytes(planned.fixed or 0)
    return {
        "way": name,
        "start_s": seen.start_s,
        "stalls": seen.stalls,
        "stall_s": seen.stall_s,
        "censored": seen.censored,
        "problem": seen.problem,
        "remarks": seen.remarks,
        "wifi_mb": (after[WLAN] - before[WLAN]) / 1e6,
        "lte_mb": (after[LTE] - before[LTE]) / 1e6,
        "bitrate_bps": 8 * size_bytes / _PLAY_S,
        "chosen_kbps": [each.bitrate_bps // 1000 for each in seen.segments],
    }


def _least_mb(
    accesses: tuple[Access, Access], rate_bps: float, delay_s: float, piece_s: float = 0.0
) -> float | None:
    rates = []
    for each in accesses:
        bins = [float(bits) for bits in each.down.bins(1.0)]
        first, last = int(_WARM_S), int(_WARM_S + _PLAY_S) + 10
        rates.append([bins[n % len(bins)] for n in range(first, last)])
    store_bytes = _AHEAD_S * rate_bps / 8
    playback = Playback(rate_bps, _PLAY_S, delay_s, store_bytes, piece_s)
    found = least_metered_bytes(rates[0], rates[1], playback)
    return None if found is None else found / 1e6


@click.command()
@click.option("--places", "directory", required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--way", "ways", type=click.Choice(tuple(_WAYS)), multiple=True, default=tuple(_OURS))
@click.option(
    "--rate",
    "rates_bps",
    type=click.IntRange(min=50_000),
    multiple=True,
    default=(_RATE_BPS,),
    help="Bits per second; the player chooses among several.",
)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the programs' logs.")
@click.argument("place")
def main(
    directory: Path,
    ways: tuple[str, ...],
    rates_bps: tuple[int, ...],
    keep: Path | None,
    place: str,
) -> None:
    """Print a line of JSON for each way."""
    networks = load(directory)[place].networks
    wifi, lte = (
        Access(kind, networks[str(kind)].up, networks[str(kind)].down, networks[str(kind)].rtt_s)
        for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR)
    )
    for way in ways:
        try:
            found = watched((wifi, lte), way, keep, tuple(sorted(set(rates_bps))))
        except EmulationError as error:
            raise click.ClickException(str(error)) from error
        rate_bps, start_s = found["bitrate_bps"], found["start_s"]
        least = {
            "least_lte_mb": _least_mb((wifi, lte), rate_bps, _DELAY_S),
            "least_lte_as_begun_mb": _least_mb((wifi, lte), rate_bps, start_s),
            "least_lte_in_segments_mb": _least_mb((wifi, lte), rate_bps, start_s, _VIDEO.segment_s),
        }
        click.echo(json.dumps({"place": place, **found, **least}))


if __name__ == "__main__":
    main()
