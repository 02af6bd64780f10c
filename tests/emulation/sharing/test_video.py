"""A person without a network watches a video over three neighbours, one of whom walks away."""

import threading
import time

import pytest
from kit.street import HELPERS, Street, uplinks
from kit.waiting import wait_until

from emu.testbed.neighbours import Neighbourhood
from emu.testbed.programs.gateway import PROXY_PORT, SharingHosts
from emu.testbed.programs.servers import Servers
from emu.workloads.web import video
from emu.workloads.web.browser import Browser
from emu.workloads.web.video import PlannedVideo, watch

# Several of these at once are too much for two cores: they run one after the other.
pytestmark = [pytest.mark.xdist_group("sharing"), pytest.mark.timeout(240)]

# Two neighbours carry the video, one alone does not.
VIDEO_BPS, HELPER_BPS = 1_271_000, 1e6
LENGTH_S, SEGMENT_S, BUFFER_S, LEAVES_S = 14.0, 2.0, 6.0, 6.0
FRAMES = "document.querySelector('video').getVideoPlaybackQuality().totalVideoFrames"


def test_a_video_plays_on_while_a_helper_walks_away(tmp_path):
    # (Not in pytest's folder: another run of pytest closes that to nginx's worker, which is nobody.)
    media = video.make((VIDEO_BPS,), duration_s=LENGTH_S, segment_s=SEGMENT_S)
    there = Neighbourhood(uplinks([HELPER_BPS] * HELPERS))
    sites = video.nginx_servers([media], video.PLAYER, tls=False)
    with there, Servers(there, sites=sites) as _, SharingHosts(there) as hosts:
        street = Street(there, hosts)
        # The README's commands.
        offer = ("--price", "0.50EUR/GB", "--limit", "500MB", "--battery", "40%")
        street.begin([offer] * HELPERS, "--rate", "8Mbit", "--budget", "2EUR", rate="1Mbit")
        # A page that is opened before the proxy has a path stays an error; a person would load it again.
        wait_until(lambda: street.download(1_000).end() == 0)
        proxy = f"socks5://127.0.0.1:{PROXY_PORT}"
        with Browser(there, tmp_path / "chromium.log", mptcp=False, proxy=proxy) as browser:
            tab = browser.open_tab()
            leaving = threading.Timer(LEAVES_S, there.walk_away, (0,))
            leaving.start()
            planned = PlannedVideo(0, "video", 0.0, media, media.segments, 0, BUFFER_S, tls=False)
            watched = watch(tab, planned, zero_at_s=time.monotonic(), limit_s=20.0)
            leaving.join()
            frames = tab.call("Runtime.evaluate", {"expression": FRAMES})["result"]["value"]
        print(
            f"first picture after {watched.start_s:.1f} s, {watched.stalls} stalls of"
            f" {watched.stall_s:.1f} s in all, {frames} frames"
        )
        assert (watched.problem, watched.censored) == (None, False)
        assert watched.watched_s - watched.start_s >= LENGTH_S - 0.5 > LEAVES_S
        assert frames == LENGTH_S * video.FRAMES_PER_S
        assert watched.stall_s < 1.0
        assert street.active() == HELPERS - 1
        # One helper alone would have carried less than this in that time.
        count = media.size_bytes(0)
        assert count > HELPER_BPS / 8 * watched.watched_s
        street.wait_for_receipts(count)
        owed = street.owed_bytes("requestor")
        assert {helper for _, helper in owed} == {f"helper-{number}" for number in range(HELPERS)}
        assert "EUR" in hosts.cedos("requestor", "share", "receipts")
