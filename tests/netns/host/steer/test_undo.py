"""Whatever happens to steering, the host is as it was before, byte for byte."""

import asyncio
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kit.steered import steered, steering_of

from cedos.errors import AlreadyRunningError
from cedos.host.steer import journal_records
from cedos.host.steer.journal import FILE_NAME
from cedos.host.steer.steering import Steering, restore
from cedos.host.steer.undo import Undone
from cedos.model import NetworkKind

CHILD = """
import asyncio, pickle, sys
from pathlib import Path
from cedos.host.steer.steering import Steering

async def main():
    networks = pickle.loads(bytes.fromhex(sys.argv[2]))
    async with Steering(Path(sys.argv[1]), tcp=True) as steering:
        await steering.networks_changed(networks)
        steering.set_default("lte0")
        steering.set_destination("198.51.100.7", 443, "wlan0", protocol="tcp")
        steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
        print("steering", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def killed_daemon(host):
    """A process that steers, and is killed with -9 while it does."""
    import pickle

    child = host.client.popen(
        *(sys.executable, "-c", CHILD, str(host.directory)),
        pickle.dumps(host.networks()).hex(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        # The log comes first.
        assert any(line.strip() == "steering" for line in child.stdout)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("ends", ["killed", "in order", "followed"])
def test_an_interface_that_is_renamed_is_left_as_it_was(host, ends):
    """Rename it while cedos steers: its sysctl stayed changed after the end and after a restore."""
    before = host.state()

    def rename(name, to):
        host.client.ip("link", "set", name, "name", to)

    async def steer():
        async with steering_of(host) as steering:
            wlan0, lte0 = host.networks()
            rename("wlan0", "wi+fi.7")
            if ends == "followed":
                await steering.networks_changed([replace(wlan0, interface="wi+fi.7"), lte0])

    if ends == "killed":
        killed_daemon(host)
        rename("wlan0", "wi+fi.7")
        with host.client.entered():
            assert not restore(host.directory).left
    else:
        host.run(steer)
    rename("wi+fi.7", "wlan0")
    assert host.state() == before


def test_elsewhere_nothing_is_undone_and_the_journal_stays(host):
    """Restore elsewhere: the journal was removed, and the sysctls' values of before were lost."""
    before = host.state()
    killed_daemon(host)
    with host.server.entered():
        undone = restore(host.directory)
    assert not undone.done
    assert ["another network namespace" in each for each in undone.left] == [True]
    with host.client.entered():
        assert not restore(host.directory).left
    assert host.state() == before


def test_a_daemon_elsewhere_keeps_the_way_back_of_this_namespace(host):
    """A daemon elsewhere put the journal aside, and the sysctls' values of before were lost here."""
    before = host.state()
    killed_daemon(host)

    async def elsewhere():
        async with Steering(host.directory, filter_flows=False):
            pass

    with host.server.entered():
        asyncio.run(elsewhere())
    with host.client.entered():
        assert not restore(host.directory).left
    assert host.state() == before
    assert not (host.directory / FILE_NAME).exists()


@steered()
async def test_a_wall_that_comes_and_goes_does_not_fill_the_journal(host, steering):
    sizes = set()
    for names in [["lte0"], []] * 3:
        await steering.barring.bar(names)
        sizes.add((host.directory / FILE_NAME).stat().st_size)
    assert len(sizes) == 1


def test_a_later_namespace_is_another_place():
    """The kernel gives the inode of a namespace that ended to the next one."""
    code = "from cedos.host.steer.journal_records import current_place; print(current_place())"
    asked = ["unshare", "--net", sys.executable, "-c", code]
    places = {subprocess.check_output(asked, text=True) for _ in range(3)}
    assert len(places) == 3


def test_a_restarted_host_has_nothing_of_an_earlier_daemon(host, monkeypatch):
    """Set a sysctl to the same by another program: it was taken for ours."""
    killed_daemon(host)
    journal = host.directory / FILE_NAME
    kept = journal.read_bytes()
    with host.client.entered():
        assert not restore(host.directory).left
    journal.write_bytes(kept)
    host.client.sysctl("net.netfilter.nf_conntrack_acct", 1)
    place = journal_records.Place("another start", 4026531840)
    monkeypatch.setattr(journal_records, "current_place", lambda: place)
    with host.client.entered():
        assert restore(host.directory) == Undone()
    assert host.client.sysctl("net.netfilter.nf_conntrack_acct") == "1"
    assert not journal.exists()


def test_a_dry_restore_only_tells(host):
    killed_daemon(host)
    left = host.state()
    with host.client.entered():
        told = restore(host.directory, dry_run=True)
        assert host.state() == left
        assert restore(host.directory) == told


def test_a_sysctl_that_somebody_else_changed_since_is_left_alone(host):
    killed_daemon(host)
    host.client.sysctl("net.ipv4.tcp_rmem", "4096 100000 200000")
    with host.client.entered():
        told = restore(host.directory)
    assert any("left alone: net.ipv4.tcp_rmem" in line for line in told.done)
    assert host.client.sysctl("net.ipv4.tcp_rmem").split() == ["4096", "100000", "200000"]


def test_restore_leaves_a_living_daemons_work_alone(host):
    async def body():
        async with Steering(host.directory):
            with pytest.raises(AlreadyRunningError):
                restore(host.directory)
            with pytest.raises(AlreadyRunningError):
                async with Steering(host.directory):
                    pass

    host.run(body)


def test_the_end_undoes_everything(host):
    before = host.state()

    async def body():
        async with steering_of(host, default="lte0") as steering:
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            assert ":CEDOS_OUT" in host.client.run("iptables-save").stdout
            await steering.close()
            await steering.close()

    host.run(body)
    assert host.state() == before
    assert not (host.directory / FILE_NAME).exists()


def test_an_error_undoes_everything_too(host):
    before = host.state()

    async def body():
        async with steering_of(host):
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        host.run(body)
    assert host.state() == before


def test_a_dry_run_changes_nothing_and_says_what_it_would_do(host):
    before = host.state()

    async def body():
        async with Steering(host.directory / "none", dry_run=True) as steering:
            await steering.networks_changed(host.networks())
            steering.set_default("lte0")
            steering.set_default("wlan0")
            steering.set_destination("198.51.100.7", None, "lte0")
            await steering.networks_changed(host.networks())
            assert host.state() == before
            assert host.seen_tcp(4) == host.address("wlan0", 4)
            plan = "\n".join(steering.planned)
            named = Path("/proc/sys/net/mptcp/path_manager").exists()  # Linux 6.15
            takes = "path_manager = userspace" if named else "pm_type = 1"
            assert f"set sysctl net.mptcp.{takes}" in plan
            assert "add -4 rule pref 32130 from all to 198.51.100.7/32" not in plan
            assert "to 198.51.100.7/32 iif lo lookup" in plan
            # Each thing is said once.
            assert plan.count("add -4 rule pref 32017") == 1

    host.run(body)
    assert host.state() == before
    assert not (host.directory / "none").exists()


@steered()
async def test_flows_are_counted_while_steering(host, steering):
    host.seen_tcp(4)
    assert "198.51.100.1" in host.client.run("conntrack", "-L").stdout
    assert host.client.sysctl("net.netfilter.nf_conntrack_acct") == "1"


def test_on_a_full_disk_only_what_bears_our_mark_is_changed(host):
    """A user who fills the disk kept the daemon from starting, and was under no budget and no rule."""
    before = host.state()
    manager = host.client.sysctl("net.mptcp.path_manager")
    full = host.directory / "full"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(full)], check=True)
    try:
        (full / "filler").write_bytes(b"x" * 4096)

        async def body():
            async with Steering(full) as steering:
                await steering.networks_changed(host.networks())
                await steering.barring.bar(["lte0"])
                assert "lookup 73000" in host.client.ip("rule")
                assert "CEDOS_BAR_OUT" in host.client.run("iptables-save").stdout
                assert host.client.sysctl("net.mptcp.path_manager") == manager

        host.run(body)
        assert host.state() == before
    finally:
        subprocess.run(["umount", str(full)], check=True)


def test_the_receive_window_is_bounded_and_follows_what_is_measured(host):
    async def body():
        host.client.sysctl("net.ipv4.tcp_rmem", "4096 131072 33554432")
        async with steering_of(host) as steering:
            steering.paths_measured({"wlan0": (20e6, 0.02)})
            assert rmem(host) == 33554432  # lte0 is not known
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            bounded = rmem(host)
            assert bounded < 4_000_000
            steering.paths_measured({"wlan0": (200e6, 0.02), "lte0": (10e6, 0.06)})
            assert rmem(host) > bounded
            wire = [replace(network, kind=NetworkKind.ETHERNET) for network in host.networks()]
            await steering.networks_changed(wire)
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            assert rmem(host) == 33554432
            await steering.networks_changed(host.networks())
            # As quick as it was before: a quiet minute says nothing.
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            assert bounded < rmem(host) < 4_000_000
        assert rmem(host) == 33554432

    host.run(body)


def rmem(host):
    return int(host.client.sysctl("net.ipv4.tcp_rmem").split()[-1])
