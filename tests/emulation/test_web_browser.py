"""A real browser over two phones: a page to its last byte, a video to its end, and nothing left."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.runs.browsing import Person, plan, serve
from emu.runs.scenario import PageLoad, Scenario, VideoLoad
from emu.testbed.phones import Access, Laptop, use_kernel_path_manager
from emu.workloads.web.browser import Browser

SMALL = 3  # of its first site: a page of 29 objects, 1.1 MB
FAST = Trace.constant(48e6)
SCENARIO = Scenario(
    page=(PageLoad("pages", sites=1, every_s=8.0),),
    video=(
        VideoLoad("video", at_s=0.2, play_s=2.0, segment_s=1.0, bitrates_bps=(300_000, 900_000),
                  buffer_s=2.0),
    ),
    duration_s=4.0, limit_s=40.0, seed=SMALL,
)  # fmt: skip


@pytest.fixture(scope="module")
def laptop():
    accesses = [
        Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.010),
        Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.030),
    ]
    with Laptop(*accesses, source_rules=True) as laptop:
        yield laptop


def subflows(laptop):
    """Return how many subflows the client asked for, first ones and joining ones."""
    with laptop.client.entered():
        lines = Path("/proc/thread-self/net/netstat").read_text().splitlines()
    names, values = (line.split()[1:] for line in lines if line.startswith("MPTcpExt"))
    counters = dict(zip(names, map(int, values), strict=True))
    return {"first": counters["MPCapableSYNTX"], "joined": counters["MPJoinSynAckRx"]}


@pytest.fixture(scope="module")
def browsed(laptop, tmp_path_factory):
    cache = tmp_path_factory.mktemp("media")
    # nginx's worker is nobody; what pytest makes is its user's alone.
    for directory in (cache, *cache.parents):
        if directory.stat().st_mode & 0o777 == 0o700:
            directory.chmod(0o755)
    os.environ["CEDOS_EMU_CACHE_DIR"] = str(cache)
    try:
        wanted = plan(SCENARIO, SCENARIO.seed)
    finally:
        del os.environ["CEDOS_EMU_CACHE_DIR"]
    use_kernel_path_manager(laptop)
    with serve(wanted, laptop) as servers:
        log = laptop.directory / "chromium.log"
        with Person(laptop, servers, wanted, log, mptcp=True, nice=0) as person:
            yield person.browse(zero_at_s=time.monotonic(), limit_s=SCENARIO.limit_s)


def test_a_page_comes_whole_over_https_and_mptcp(laptop, browsed):
    (visit,) = browsed.visits
    loaded, page = visit.loaded, visit.planned.page
    assert (loaded.missing, loaded.problem, loaded.censored) == (0, None, False)
    assert 0 < loaded.load_s < SCENARIO.limit_s
    asked = {each.url for each in loaded.objects}
    assert asked == {each.url(tls=True) for each in page.objects}
    assert {each.protocol for each in loaded.objects} == {"h2"}
    # Headers come on top.
    assert page.size_bytes < loaded.received_bytes < page.size_bytes * 1.05 + 500 * len(asked)
    # Two 48 Mbit/s networks carry no more.
    assert loaded.transfer_s > page.size_bytes * 8 / 96e6
    assert subflows(laptop)["first"] > 0
    assert subflows(laptop)["joined"] > 0


def test_a_video_plays_to_its_end(browsed):
    (watched,) = browsed.watched
    assert (watched.problem, watched.censored) == (None, False)
    assert [each.number for each in watched.segments] == [1, 2]
    assert 0 < watched.start_s < watched.watched_s
    assert watched.watched_s >= 2.0
    sizes = [each.size_bytes for each in watched.segments]
    media = watched.planned.media
    rates = [media.bitrates_bps.index(each.bitrate_bps) for each in watched.segments]
    names = [f"{rate}-{number}.m4s" for number, rate in enumerate(rates, 1)]
    assert sizes == [(media.folder / name).stat().st_size for name in names]


def test_records_are_rows_of_the_run_s_tables(browsed):
    tables = browsed.tables(0.0)
    assert [len(tables[name]) for name in ("pages", "videos", "segments")] == [1, 1, 2]
    assert len(tables["objects"]) == tables["pages"][0]["objects"]
    json.dumps(tables)


def command_lines():
    """Yield the command lines of all processes of this machine; those of zombies are empty."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def test_a_browser_that_is_killed_is_an_error_and_leaves_nothing(laptop, tmp_path):
    with Browser(laptop, tmp_path / "chromium.log") as browser:
        os.killpg(browser._process.pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match="has ended"):
            browser.open_tab()
    deadline_s = time.monotonic() + 5
    while any(str(browser.directory) in line for line in command_lines()):
        assert time.monotonic() < deadline_s, "it still runs"
    assert str(browser.directory) not in Path("/proc/self/mounts").read_text()
    assert not list(browser.directory.iterdir())
