"""`cedos-pod` on a walk beside the daemon: both killed, both suspended, all episodes are here in time."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from kit.nginx import nginx
from kit.waiting import wait_until

from cedos.commands.transfers import lines
from cedos.model import NetworkKind
from emu.places.places import default_directory, load
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import Servers

EPISODE_BYTES = 4_000_000
MOST_METERED = 300_000
"""What is on its way, or begun before rates are known."""

WIFI = Access(NetworkKind.WIFI, Trace.constant(12e6), Trace.constant(12e6), 0.020)
LTE = Access(NetworkKind.CELLULAR, Trace.constant(16e6), Trace.constant(16e6), 0.060)
CONFIG = (
    f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
    "dns = false\n[providers]\nhost = false\n"
)


class Listener:
    """A feed on a local nginx, its episodes on the emulated server's; the daemon and the program."""

    def __init__(self, laptop, folder, episode_bytes):
        self.laptop, self.folder, self.episode_bytes = laptop, folder, episode_bytes
        (folder / "www").mkdir()
        items = "".join(
            f"<item><title>{title}</title><guid>{title}</guid><enclosure length="
            f'"{episode_bytes}" url="http://{SERVER}/bytes/{episode_bytes}?{title}"/></item>'
            for title in ("One", "Two", "Three")
        )
        (folder / "www" / "feed.xml").write_text(
            f"<rss><channel><title>News</title>{items}</channel></rss>"
        )
        server = f"server {{ listen 127.0.0.1:8080; root {folder}/www; }}"
        self.nginx = nginx(folder / "nginx", server, where=laptop.client)
        self.daemon = Daemon(laptop.client, folder / "daemon", CONFIG)
        self.environment = self.daemon.environment | {
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_STATE_HOME": str(folder / "state"),
            "HOME": str(folder),
        }
        self.programs = []

    def up(self):
        self.daemon.start()
        self.daemon.wait_for(lambda client: bool(client.status().networks), 20.0)

    def pod(self, *arguments):
        program = self.laptop.client.popen(
            *(str(Path(sys.executable).with_name("cedos-pod")), *arguments),
            env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.programs.append(program)
        return program

    def subscribe(self, within_s):
        """Want all episodes by the first full minute that is so far away."""
        by = f"{datetime.now() + timedelta(seconds=within_s + 60):%H:%M}"
        file = self.folder / "config" / "cedos" / "podcasts.toml"
        file.parent.mkdir(parents=True)
        url = "http://127.0.0.1:8080/feed.xml"
        file.write_text(f'[podcasts.news]\nurl = "{url}"\nby = "{by}"\n')

    def episodes(self):
        file = self.folder / "state" / "cedos" / "podcasts.json"
        return json.loads(file.read_text())["episodes"]

    def in_time(self):
        return [0.0 < each["came_unix_s"] <= each["by_unix_s"] for each in self.episodes()]

    def explained(self):
        """As `cedos transfers` says it."""
        return "\n".join(lines(self.daemon.client.transfers(), datetime.now(), os.getuid()))

    def until(self, what, wanted_s=20.0, **having):
        """The table, once `what` is said in it; `running`: of programs that run, or do not."""
        ends_s = time.monotonic() + wanted_s
        while True:
            table = self.daemon.client.transfers()
            running = {each.running for each in table}
            if table and what in self.explained() and running == {having.get("running", True)}:
                return table
            assert time.monotonic() < ends_s, self.explained()
            time.sleep(0.2)

    def every_step_explained(self, *, running):
        """Each row says what it does or waits for, and why; none is left that came meanwhile."""
        wait_until(
            lambda: all(each.running is running for each in self.daemon.client.transfers()),
            describe=self.explained,
        )
        here = {
            f"{each['podcast']}: {each['title']}"
            for each in self.episodes()
            if each["state"] == "here"
        }
        left = {each.name for each in self.daemon.client.transfers()}
        text = self.explained()
        assert not left & here or running, text
        said = [line for line in text.splitlines() if line.startswith("    ")]
        assert len(said) >= len(left), text
        for name in left:
            _, _, why = text.partition(name)
            assert re.search(
                r"\n    (over|waiting for|its program does not run|late|.*; tried again )", why
            ), text

    def have(self):
        files = (self.folder / "Podcasts").glob("news/*")
        return sum(each.stat().st_size for each in files if not each.name.endswith(".json"))

    def until_here(self, n_bytes):
        wait_until(lambda: self.have() >= n_bytes, 30.0)

    def suspended(self, *pids, for_s):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(for_s)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    def close(self):
        for process in self.programs:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.daemon.stop()
        self.nginx.terminate()
        self.nginx.wait(20)


@pytest.fixture
def walk(tmp_path, registry):
    with Laptop(WIFI, LTE) as laptop, Servers(laptop):
        listener = Listener(laptop, tmp_path, EPISODE_BYTES)
        try:
            yield listener
        finally:
            listener.close()


def test_episodes_come_though_both_programs_are_killed_and_suspended(walk):
    walk.up()
    walk.subscribe(3600)
    program = walk.pod()
    walk.until_here(EPISODE_BYTES // 2)
    (first, *others) = walk.until("over wlan0")
    assert first.name.startswith("news: ")
    assert {each.size_bytes for each in (first, *others)} == {EPISODE_BYTES}
    program.kill()
    program.communicate()
    walk.daemon.kill()
    walk.up()
    walk.laptop.detach(NetworkKind.WIFI)  # out of the door
    kept = walk.have()
    left = walk.until("its program does not run", running=False)
    assert all(each.deadline_unix_s == first.deadline_unix_s for each in left)
    program = walk.pod()
    waits = walk.until("waiting for Wi-Fi, ")
    assert all(each.turn.networks == () for each in waits)
    time.sleep(1.0)
    assert walk.have() - kept < MOST_METERED
    walk.suspended(program.pid, walk.daemon.process.pid, for_s=2.0)
    walk.laptop.attach(WIFI)
    said, _ = program.communicate(timeout=60)
    assert program.returncode == 0, said
    assert "waiting for Wi-Fi" in said
    episodes = walk.episodes()
    assert walk.in_time() == [True] * 3
    assert all(Path(each["file"]).stat().st_size == EPISODE_BYTES for each in episodes)
    used = walk.daemon.client.usage(0.0).networks
    assert sum(each.metered_bytes for each in used) < MOST_METERED
    wait_until(lambda: walk.daemon.client.transfers() == [])


@pytest.mark.long
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(("place", "megabytes"), [("sbu7-1", 40), ("p14", 5)])
def test_a_real_walk_and_a_train(tmp_path, place, megabytes):
    """Whatever is done to the programs on the way, everything is here by its minute."""
    places = load(default_directory(None))
    if place not in places:
        pytest.skip("the real places are not beside the repository")
    of = places[place].networks
    accesses = [
        Access(NetworkKind(kind), up=of[kind].up, down=of[kind].down, rtt_s=of[kind].rtt_s)
        for kind in ("wifi", "cellular")
    ]
    with Laptop(*accesses) as laptop, Servers(laptop):
        walk = Listener(laptop, tmp_path, megabytes * 1_000_000)
        try:
            walk.up()
            walk.subscribe(60)
            program = walk.pod()
            time.sleep(8.0)
            walk.every_step_explained(running=True)
            program.kill()
            program.communicate()
            walk.daemon.kill()
            walk.up()
            walk.every_step_explained(running=False)
            program = walk.pod()
            time.sleep(8.0)
            walk.suspended(program.pid, walk.daemon.process.pid, for_s=8.0)
            walk.every_step_explained(running=True)
            said, _ = program.communicate(timeout=150)
            assert program.returncode == 0, said
            assert walk.in_time() == [True] * 3, said
            assert walk.daemon.client.transfers() == []
        finally:
            walk.close()
