"""Crowds of interfaces, flaps, full and read-only disks, no descriptors, wrong clocks: all is right."""

import os
import resource
import signal
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kit.namespaces import small_disk
from kit.waiting import wait_until

from cedos.budget_kinds import Resource
from cedos.errors import DaemonUnreachableError
from cedos.model import Budget, Every

INTERFACES, ROUTES, FLAPS = 500, 5_000, 200
MOST_MB = 150
UNTIL = "2099-12-01T00:00:00"
HARD = f"""
[budgets.data]
data = "100 kB"
every = "month"
until = "{UNTIL}"
hard = true
"""


def batch(namespace, lines):
    command = namespace.command("ip", "-force", "-batch", "-")
    subprocess.run(command, input="\n".join(lines), text=True, check=True, capture_output=True)


def memory_mb(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def rules(laptop):
    return sorted(laptop.ip("rule").splitlines() + laptop.ip("-6", "rule").splitlines())


def answers(cedos, pid):
    try:
        return bool(cedos.client.status().pid == pid)
    except DaemonUnreachableError:
        return False


def test_the_status_tells_of_a_full_table_of_connections(tethered, install, tmp_path, monkeypatch):
    """Tell of the table that a user fills in a minute by 4,000 connections a second."""
    cedos = install(tethered.laptop)
    count = tmp_path / "count"
    count.write_text("0\n")
    script = 'mount --bind "$1" /proc/sys/net/netfilter/nf_conntrack_count; shift; exec "$@"'
    usual = cedos._command
    monkeypatch.setattr(
        cedos,
        "_command",
        lambda *words: ("unshare", "-m", "sh", "-ec", script, "sh", str(count), *usual(*words)),
    )

    def told():
        return [each for each in cedos.client.status().problems if "table of connections" in each]

    with cedos.up():
        assert not told()
        count.write_text("999999999\n")
        (problem,) = told()
        assert "999999999 of " in problem


def test_a_crowd_of_interfaces_and_routes_and_a_network_that_flaps(tethered, install):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = rules(laptop)
    with cedos.up() as process:
        batch(laptop, [f"link add e{n}a type veth peer name e{n}b" for n in range(INTERFACES // 2)])
        batch(
            laptop,
            [f"route add 10.{n // 250}.{n % 250}.0/24 via 192.168.44.1" for n in range(ROUTES)],
        )
        default = "route add default via 192.168.43.1 dev wlan0 metric 43"
        batch(laptop, ["link set wlan0 down", "link set wlan0 up", default] * FLAPS)

        def right():
            began_s = time.monotonic()
            status = cedos.client.status()
            assert time.monotonic() - began_s < 2.0
            up = {network.name for network in status.networks if network.up}
            return status.default.network == "wlan0" and {"wlan0", "lte0"} <= up

        wait_until(right)
        way = laptop.ip("route", "get", "198.51.100.1").split()
        assert way[way.index("dev") + 1] == "wlan0"
        way = laptop.ip("route", "get", "10.3.7.9").split()
        assert way[way.index("dev") + 1] == "lte0"
        print(f"{memory_mb(process):.0f} MB")
        assert memory_mb(process) < MOST_MB
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log[-3000:]
    assert "Traceback" not in log
    assert rules(laptop) == before


def test_a_disk_that_takes_nothing(tethered, install, tmp_path):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = rules(laptop)
    with small_disk(tmp_path / "state") as state, cedos.up() as process:
        with suppress(OSError), (state / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        done = cedos.run("budget", "set", "data", "1GB", "--until", "2099-12-01")
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert "No space left on device" in done.stderr
        done = cedos.run("rule", "add", "--host", "192.0.2.1", "--never", "lte0")
        assert done.returncode == 0
        assert "your rules hold until the daemon ends" in done.stderr
        problems = cedos.client.status().problems
        assert any("your rules hold until the daemon ends" in each for each in problems)
        # Steering goes on as far as it can be undone: what cannot be written down is not begun.
        laptop.ip("link", "set", "wlan0", "down")
        wait_until(lambda: cedos.client.status().default.network == "lte0")
        assert process.poll() is None
        (state / "filler").unlink()
        laptop.ip("link", "set", "wlan0", "up")
        laptop.ip("route", "add", "default", "via", "192.168.43.1", "metric", "43")
        wait_until(lambda: cedos.client.status().default.network == "wlan0")
        cedos.client.set_budget(Budget("data", Resource.DATA, 1e9, UNTIL, every=Every.MONTH))
        assert memory_mb(process) < MOST_MB
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log[-3000:]
        assert "192.0.2.1" in (state / "rules.json").read_text()
    assert "Traceback" not in log
    assert rules(laptop) == before


def test_no_descriptor_is_left(tethered, install):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = rules(laptop)
    with cedos.up() as process:
        cedos.client.status()
        there = sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (there + 8, hard))
        crowd = []
        for _ in range(50):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(1)
            try:
                one.connect(str(cedos.socket))
            except OSError:
                one.close()
                break
            crowd.append(one)
        time.sleep(3)
        for one in crowd:
            one.close()
        wait_until(lambda: answers(cedos, process.pid))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (hard, hard))
        laptop.ip("link", "set", "wlan0", "down")
        wait_until(lambda: cedos.client.status().default.network == "lte0")
        assert memory_mb(process) < MOST_MB
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log[-3000:]
    assert "Traceback" not in log, log[-3000:]
    assert log.count("no file descriptor is left") <= 1
    laptop.ip("link", "set", "wlan0", "up")
    assert rules(laptop) == before


def test_the_privileged_part_ends_alone(tethered, install):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = rules(laptop)
    with cedos.up() as process:
        wait_until(lambda: cedos.client.status().default.network)
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        _, log = process.communicate(timeout=60)
        assert process.returncode not in (0, 2, 3, 5), log[-3000:]  # which no unit tries again
    assert "the privileged part" in log
    assert "Traceback" not in log, log[-3000:]
    assert cedos.run("restore").returncode == 0
    assert rules(laptop) == before


# Of this process alone: everything else here needs the host's clock.
ITS_CLOCK = """
import os, time
_real = time.time
def _told():
    with open(os.environ["CLOCK_AHEAD"]) as file:
        return _real() + float(file.read() or 0)
time.time = _told
"""


def ended(process):
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log[-3000:]
    assert "Traceback" not in log, log[-3000:]
    return log


def test_a_clock_in_2184_and_400_days_back(tethered, install, tmp_path, monkeypatch):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = laptop.ip("rule")
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(ITS_CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))
    far = (datetime(2184, 1, 1, tzinfo=UTC) - datetime.now(UTC)).total_seconds()
    with cedos.up() as process:
        cedos.client.set_budget(Budget("data", Resource.DATA, 1e9, UNTIL, every=Every.MONTH))
        for shift_s in (far, -timedelta(days=400).total_seconds(), 0.0):
            beside = tmp_path / "next"
            beside.write_text(str(shift_s))
            beside.replace(ahead)
            time.sleep(1.5)  # a beat of the budgets
            assert cedos.client.budgets()[0].spent < 1e6
            state, other = ("down", "lte0") if shift_s > 0 else ("up", "wlan0")
            laptop.ip("link", "set", "wlan0", state)
            if state == "up":
                laptop.ip("route", "replace", "default", "via", "192.168.43.1", "metric", "43")
            wait_until(lambda network=other: cedos.client.status().default.network == network)
            assert memory_mb(process) < MOST_MB
        log = ended(process)
    assert log.count("the clock was set") == 3
    assert laptop.ip("rule") == before


@contextmanager
def disk(folder, image):
    """A file system that turns read-only at an error; yields the file that brings one about."""
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    options = "loop,errors=remount-ro"
    done = subprocess.run(["mount", "-o", options, image, folder], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip("this machine has no loop devices")
    try:
        number = folder.stat().st_dev
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
        yield Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "read-only"])
def test_a_disk_that_takes_nothing_from_the_start_opens_no_hard_budget(
    tethered, install, tmp_path, is_full
):
    cedos, laptop = install(tethered.laptop, HARD), tethered.laptop
    before = laptop.ip("rule")
    with small_disk(tmp_path / "state"):
        with cedos.up() as process:
            ended(process)
        if is_full:
            filler = (tmp_path / "state" / "filler").open("wb", buffering=0)
            with suppress(OSError), filler:
                while True:
                    filler.write(bytes(4096))
        else:
            subprocess.run(["mount", "-o", "remount,ro", tmp_path / "state"], check=True)
        with cedos.up() as process:
            with laptop.entered():
                sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with sending:
                sending.bind(("192.168.44.2", 0))

                def spent():
                    with suppress(OSError):
                        sending.sendto(bytes(1000), (tethered.metered, 9))
                    return cedos.client.budgets()[0].barred == ("lte0",)

                wait_until(spent)
            assert any("journal takes nothing" in each for each in cedos.client.status().problems)
            process.kill()
            process.wait()
        assert "undone: deleted: the chains CEDOS_*" in cedos.run("restore").stdout
    assert laptop.ip("rule") == before


def test_a_disk_that_turns_read_only(tethered, install, tmp_path):
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = laptop.ip("rule")
    with disk(tmp_path / "state", tmp_path / "image") as error, cedos.up() as process:
        wait_until(lambda: cedos.client.status().default.network == "wlan0")
        error.write_text("1")
        done = cedos.run("budget", "set", "data", "1GB", "--until", "2099-12-01")
        assert done.returncode != 0
        assert "Read-only file system" in done.stderr, done.stderr
        # What is to be undone cannot be written down: what stands already goes on being used.
        laptop.ip("link", "set", "wlan0", "down")
        wait_until(lambda: cedos.client.status().default.network == "lte0")
        wait_until(lambda: any("cannot be kept" in each for each in cedos.client.status().problems))
        assert memory_mb(process) < MOST_MB
        log = ended(process)
    assert "the journal stays, though all is undone" in log
    assert laptop.ip("rule") == before
