"""A walk out of the door with a gateway: nothing that is under way breaks."""

import json
import threading
import time
from contextlib import ExitStack

import pytest
from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu import ROOT
from emu.places.places import load
from emu.runs import browsing
from emu.runs.browsing import Person
from emu.runs.scenario import PageLoad, Scenario, VideoLoad
from emu.testbed.access import Access
from emu.testbed.phones import Laptop
from emu.testbed.programs.daemon import put_on_time, through_gateway
from emu.testbed.programs.gateway import GATEWAY
from emu.workloads.tools import CloneServer, ShellServer
from emu.workloads.web import video

USER = 65534
PLACE = "walk-away-s7"
LONGEST_WAIT_S = 2.0


def scenario(pages, lasts_s):
    return Scenario(
        page=(PageLoad("pages", sites=pages, every_s=lasts_s / pages),),
        video=(VideoLoad("video", play_s=20.0, bitrate_bps=700_000),),
        duration_s=lasts_s,
        limit_s=lasts_s + 20.0,
        seed=11,
    )


@pytest.mark.timeout(290)
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("pages", "cloned_bytes", "begins_s", "lasts_s"),
    [
        # Wi-Fi is gone about eleven seconds later, at 38 s of the trace.
        pytest.param(5, 25_000_000, 27.0, 16.0, id="short"),
        pytest.param(10, 200_000_000, 12.0, 40.0, id="whole", marks=pytest.mark.long),
    ],
)
def test_a_video_pages_ssh_and_a_clone_on_a_walk_from_wifi_to_lte(
    pages, cloned_bytes, begins_s, lasts_s
):
    """Debian's programs, told of nothing; the kernel leads their connections to the gateway."""
    wanted = browsing.plan(scenario(pages, lasts_s), seed=11)
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*walk(begins_s), source_rules=False))
        servers = stack.enter_context(browsing.serve(wanted, laptop, GATEWAY))
        clones = stack.enter_context(CloneServer(laptop, USER, cloned_bytes))
        shell = stack.enter_context(ShellServer(laptop, USER))
        put_on_time(laptop)
        daemon = stack.enter_context(through_gateway(laptop, str(USER)))
        log = laptop.directory / "chromium.log"
        person = stack.enter_context(Person(laptop, servers, wanted, log, mptcp=False, nice=0))
        laptop.attach(*walk(begins_s))  # from its beginning, whatever took long until here
        put_on_time(laptop)
        found = {}

        def beside(name, work):
            thread = threading.Thread(target=lambda: found.update({name: work()}), name=name)
            thread.start()
            return thread

        threads = [
            beside("clone", lambda: clones.clone(laptop.client, limit_s=200.0)),
            beside("ssh", lambda: shell.typing(laptop.client, words=int(lasts_s / 0.05))),
        ]
        browsed = person.browse(zero_at_s=time.monotonic(), limit_s=lasts_s + 20.0)
        for thread in threads:
            thread.join()
        explained = daemon.cedos("explain", video.HOST, "--json").stdout
        # The proxy reports to the daemon once a second, so a clone's last bytes come later than its end.
        used = wait_until(lambda: whole_clone(daemon, cloned_bytes), limit_s=10.0, every_s=1.0)
        for command in (("status",), ("explain", video.HOST), ("usage",)):
            done = daemon.cedos(*command)
            print(done.stdout, done.stderr)
        print(told(browsed, found))
        judge(wanted, browsed, found)
        assert json.loads(explained)["gateway"] == GATEWAY
        judge_usage(used)


def walk(begins_s):
    networks = load(ROOT / "traces")[PLACE].networks
    wifi, lte = (
        Access(kind, each.up, each.down, each.rtt_s).rotated(begins_s)
        for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR)
        for each in (networks[str(kind)],)
    )
    return wifi, lte


def told(browsed, found):
    loads = [f"{each.loaded.load_s:.1f}" for each in browsed.visits]
    (video,) = browsed.watched
    return (
        f"pages {' '.join(loads)} s; video: first picture {video.start_s:.1f} s, {video.stalls} stalls,"
        f" {video.stall_s:.1f} s; {found}"
    )


def judge(wanted, browsed, found):
    assert len(browsed.visits) == len(wanted.pages)
    for visit in browsed.visits:
        assert not visit.loaded.problem, visit.loaded
        assert not visit.loaded.censored, visit.loaded
        assert not visit.loaded.missing, visit.loaded
    (video,) = browsed.watched
    assert video.problem is None, video
    assert not video.censored, video
    for each in found.values():
        assert each.whole, found
        assert each.stall_s < LONGEST_WAIT_S, found


def carried_through(used):
    """Return the bytes by network of each server that was reached through the gateway."""
    return {
        each["server"]: each["bytes_by_network"]
        for each in used["servers"]
        if each["gateway"] == GATEWAY
    }


def whole_clone(daemon, cloned_bytes):
    """Return the usage once it has all bytes of the clone."""
    used = json.loads(daemon.cedos("usage", "--json").stdout)
    sizes = [sum(each.values()) for each in carried_through(used).values()]
    return used if max(sizes, default=0) >= cloned_bytes else None


def judge_usage(used):
    """Check that connections through the gateway have the names of their servers, and their networks."""
    through = carried_through(used)
    # The ten with most metered bytes are listed. A video that played over Wi-Fi is not among them.
    assert sum(name.endswith(".example") for name in through) >= 5, used
    largest = max(through.values(), key=lambda each: sum(each.values()))
    assert set(largest) == {"wlan0", "lte0"}, used
    itself = [each for each in used["servers"] if each["server"] == GATEWAY]
    rest = sum(sum(each["bytes_by_network"].values()) for each in itself)
    assert rest < 0.1 * sum(sum(each.values()) for each in through.values()), used
