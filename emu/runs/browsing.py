"""Pages and videos of a run, in a real browser as a person would open them, and their records."""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError
from emu.runs.scenario import Scenario
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers
from emu.testbed.services import Started
from emu.testbed.wiring import SERVER_ADDRESSES
from emu.workloads.web import corpus, pages, video
from emu.workloads.web.browser import Browser, Tab
from emu.workloads.web.pages import PlannedPage, Visit, Visits
from emu.workloads.web.video import PLAYER, PlannedVideo, Watched, watch

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class BrowsingPlan:
    corpus: corpus.Corpus
    pages: Sequence[PlannedPage]
    videos: Sequence[PlannedVideo]

    def __bool__(self) -> bool:
        return bool(self.pages or self.videos)


@dataclass(frozen=True, slots=True)
class Browsed:
    visits: Sequence[Visit] = ()
    watched: Sequence[Watched] = ()

    def tables(self, zero_at_s: float) -> dict[str, Rows]:
        """Return rows of `pages`, `videos` and their details; seconds count from the run's zero."""
        return {
            "pages": [_page_row(each, zero_at_s) for each in self.visits],
            "objects": [row for each in self.visits for row in _object_rows(each)],
            "videos": [_video_row(each, zero_at_s) for each in self.watched],
            "segments": [row for each in self.watched for row in _segment_rows(each)],
        }


def plan(scenario: Scenario, seed: int) -> BrowsingPlan:
    """Draw the scenario's sites and visits, and make its videos, which are kept for later runs.

    Sites are drawn by the scenario's own seed, so that all repeats visit the same ones, in another order.
    EmulationError: ffmpeg is missing or failed.
    """
    # Each kind of page has sites of its own, numbered on.
    sites = tuple(
        site
        for number, kind in enumerate(scenario.page)
        for site in corpus.generate(
            sites=kind.sites,
            seed=scenario.seed,
            first=1 + sum(k.sites for k in scenario.page[:number]),
        ).sites
    )
    everything = corpus.Corpus(sites)
    # Visit each kind's pages in an order of this repeat.
    visits: list[PlannedPage] = []
    first = 0
    for kind in scenario.page:
        visits += pages.schedule(
            kind.name,
            everything.pages[first : first + kind.sites],
            every_s=kind.every_s,
            tls=True,
            duration_s=scenario.duration_s,
            seed=seed,
            number=len(visits),
        )
        first += kind.sites
    # A fixed bit rate is told to the player by its index.
    videos = []
    for number, wanted in enumerate(scenario.video):
        made = video.make(wanted.bitrates_bps, duration_s=wanted.play_s, segment_s=wanted.segment_s)
        fixed = (
            None if wanted.bitrate_bps is None else wanted.bitrates_bps.index(wanted.bitrate_bps)
        )
        videos.append(
            PlannedVideo(
                number,
                wanted.name,
                wanted.at_s,
                made,
                made.segments,
                fixed,
                wanted.buffer_s,
                tls=True,
            )
        )
    return BrowsingPlan(everything, sorted(visits, key=lambda each: each.at_s), videos)


def serve(wanted: BrowsingPlan, laptop: Laptop, gateway: str = "") -> Servers:
    """Return the servers of a plan's pages and videos.

    `gateway`: nothing is at this address, since what is there would go there direct.
    """
    folder = laptop.directory / "sites"
    folder.mkdir(mode=0o755)
    sites = ""
    addresses = corpus.addresses(wanted.corpus)
    if wanted.pages:
        corpus.write(wanted.corpus, folder)
        sites += corpus.nginx_servers(wanted.corpus, folder, tls=True, http2=True)
    if wanted.videos:
        player = laptop.directory / "player"
        shutil.copytree(PLAYER, player)
        sites += video.nginx_servers(
            [each.media for each in wanted.videos], player, tls=True, http2=True
        )
        addresses[video.HOST] = SERVER_ADDRESSES[-1]
    addresses = {host: SERVER if at == gateway else at for host, at in addresses.items()}
    return Servers(laptop, tls=True, sites=sites, addresses=addresses)


class Person(Started):
    """A browser whose tabs wait for their turn, as a `with` block; begin it before the run's zero."""

    def __init__(
        self,
        laptop: Laptop,
        servers: Servers,
        wanted: BrowsingPlan,
        log: Path,
        *,
        mptcp: bool,
        nice: int,
    ) -> None:
        self._wanted = wanted
        self._browser = Browser(
            laptop, log, certificate=servers.certificate, mptcp=mptcp, nice=nice
        )

    def _start(self) -> None:
        self._browser.__enter__()
        self._visits = Visits(self._browser, self._wanted.pages)
        self._tabs = [self._browser.open_tab() for _ in self._wanted.videos]

    def close(self) -> None:
        self._browser.close()

    def browse(self, *, zero_at_s: float, limit_s: float) -> Browsed:
        """Carry the plan out. EmulationError: the browser or one of its tabs crashed."""
        watched: dict[int, Watched] = {}
        failures: list[EmulationError] = []

        def follow(planned: PlannedVideo, tab: Tab) -> None:
            try:
                watched[planned.number] = watch(tab, planned, zero_at_s=zero_at_s, limit_s=limit_s)
            except EmulationError as error:
                failures.append(error)
            tab.close()

        threads = [
            threading.Thread(target=follow, args=each, name="video", daemon=True)
            for each in zip(self._wanted.videos, self._tabs, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            visits = self._visits.run(zero_at_s=zero_at_s, limit_s=limit_s)
        finally:
            for thread in threads:
                thread.join()
        if failures:
            raise failures[0]
        return Browsed(visits, [watched[each.number] for each in self._wanted.videos])


def _fields(of: object, names: str) -> dict[str, Any]:
    return {name: getattr(of, name) for name in names.split()}


def _page_row(visit: Visit, zero_at_s: float) -> dict[str, Any]:
    planned, loaded = visit.planned, visit.loaded
    return {
        **_fields(planned, "number name"),
        "url": planned.page.document.url(tls=planned.tls),
        "planned_s": planned.at_s,
        "started_s": loaded.started_at_s - zero_at_s,
        "objects": len(planned.page.objects),
        "size_bytes": planned.page.size_bytes,
        **_fields(loaded, "load_s transfer_s censored missing received_bytes problem"),
    }


def _object_rows(visit: Visit) -> Rows:
    names = "url started_s ended_s status received_bytes protocol problem"
    page = {"page": visit.planned.number}
    return [page | _fields(each, names) for each in visit.loaded.objects]


def _video_row(watched: Watched, zero_at_s: float) -> dict[str, Any]:
    names = (
        "start_s stalls stall_s watched_s transfer_s bitrate_bps received_bytes censored problem"
    )
    return {
        **_fields(watched.planned, "number name"),
        "planned_s": watched.planned.at_s,
        "started_s": watched.started_at_s - zero_at_s,
        "segments": len(watched.segments),
        **_fields(watched, names),
    }


def _segment_rows(watched: Watched) -> Rows:
    names = "number bitrate_bps started_s ended_s size_bytes"
    video = {"video": watched.planned.number}
    return [video | _fields(each, names) for each in watched.segments]
