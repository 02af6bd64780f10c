"""Real programs whose Wi-Fi dies under way, on an emulated laptop whose daemon closes what is stuck."""

import subprocess
import threading
import time
from contextlib import ExitStack

import pytest

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import WLAN, Access
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.daemon import RescueDaemon, put_on_time
from emu.testbed.programs.servers import Servers
from emu.workloads.tools import PackageArchive, ShellServer

pytestmark = pytest.mark.usefixtures("registry")

WIFI = Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(24e6), 0.020)
LTE = Access(NetworkKind.CELLULAR, Trace.constant(5e6), Trace.constant(12e6), 0.050)
USER = 65534
SIZE = 1_500_000
URL = f"http://{SERVER}/bytes/{SIZE}"
DIES_AFTER_S = 0.8
SILENT_S = 15.0
LIMIT_S = 45


def test_programs_try_again_elsewhere_ssh_is_left_alone_and_all_is_told(tmp_path):
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(WIFI, LTE, source_rules=False))
        servers = stack.enter_context(Servers(laptop))
        shells = stack.enter_context(ShellServer(laptop, USER))
        archive = PackageArchive(
            servers.directory / "www", laptop.directory / "apt", USER, SIZE, retries=3
        )
        put_on_time(laptop)
        servers.make_size(SIZE)
        daemon = RescueDaemon(laptop, unmetered=True, steering='close_stuck = "after 3s"\n')
        stack.callback(daemon.stop)
        daemon.start()
        daemon.until_both_live()
        archive.update(laptop.client)
        daemon.until_both_live()
        daemon.wait_for(lambda client: client.status().default.network == WLAN, 60.0, 0.2)

        def run(*words):
            process = laptop.client.popen(
                *words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            return process.wait(2 * LIMIT_S) == 0

        curl = ("curl", "-sSf", "-m", f"{LIMIT_S}", URL, "-o")
        programs = {
            "curl": lambda: run(*curl, str(tmp_path / "once")),
            "curl again": lambda: run(
                *curl, str(tmp_path / "again"), "--retry", "3", "--retry-all-errors"
            ),
            "wget": lambda: run("wget", "-q", "-O", "/dev/null", URL),
            "apt": lambda: archive.fetch(laptop.client).whole,
            "ssh": lambda: shells.typing(laptop.client).whole,
        }
        done = {}

        def fare(name, program):
            began_s = time.monotonic()
            try:
                whole = program()
            except EmulationError:  # Nothing came at all.
                whole = False
            done[name] = whole, time.monotonic() - began_s

        with Silence(laptop, WLAN).when_told() as dies:
            threads = [threading.Thread(target=fare, args=each) for each in programs.items()]
            for thread in threads:
                thread.start()
            time.sleep(DIES_AFTER_S)
            dies()
            ends_s = time.monotonic() + SILENT_S
            for thread in threads:
                thread.join(max(0.0, ends_s - time.monotonic()))
        for thread in threads:
            thread.join()

        for name in ("curl again", "wget", "apt"):
            whole, took_s = done[name]
            assert whole, done
            assert took_s < 14.0, done
        assert not done["curl"][0], "it was told not to try again"
        assert done["ssh"][0]
        closed = daemon.logged("closed")
        assert closed
        assert all(f"{SERVER}:80" in entry["flow"] for entry in closed)
        explained = daemon.cedos("explain", closed[0]["flow"])
        assert "the connection was closed, so that its program connects again" in " ".join(
            explained.stdout.split()
        )
        (told,) = daemon.client.status().closed
        assert told.startswith(
            f"{len(closed)} connections on wlan0 were closed after 3 s of silence"
        )
        assert told in " ".join(daemon.cedos("status").stdout.split())
