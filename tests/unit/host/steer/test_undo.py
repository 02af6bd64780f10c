"""Undoing: from any instant of a run, by a journal cut anywhere, the kernel is as it was before."""

import asyncio
import copy
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.steer_kernel import MemoryKernel

from cedos.errors import PrivilegeError
from cedos.host.steer.journal import FILE_NAME, Journal
from cedos.host.steer.journal_records import (
    CONNECTIONS,
    CONNTRACK_ACCOUNTING,
    FILTER,
    MPTCP_CLOSE_TIMEOUT,
    ROUTING,
    TCP_RMEM,
    JournalReading,
    SysctlRecord,
    host_record,
)
from cedos.host.steer.steering import Steering
from cedos.host.steer.undo import Undone, restore, undo_all
from cedos.kernel.policy_routing import SeenRoute
from cedos.kernel.sysctl import MPTCP_PATH_MANAGER


class Instants(MemoryKernel):
    """Keeps what it and the journal held before each single change."""

    def __init__(self):
        super().__init__()
        self.instants = []
        self.journal = Path("/nonexistent")

    def _changed(self, what):
        super()._changed(what)
        self.keep()

    def keep(self):
        as_it_is = MemoryKernel()
        for name in ("others", "own", "all_routes", "all_links", "sysctls", "filter", "walled"):
            setattr(as_it_is, name, copy.deepcopy(getattr(self, name)))
        data = self.journal.read_bytes() if self.journal.exists() else b""
        self.instants.append((as_it_is, data))


async def steer(world, kernel, directory):
    """A run that uses everything that can be undone."""
    async with Steering(directory, kernel=kernel) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        steering.set_default("lte0")
        steering.set_destination("198.51.100.0/24", 443, "wlan0", protocol="tcp")
        steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
        await steering.barring.bar(["lte0"])
        await steering.networks_changed([world.wlan0, world.down(world.lte0)])
        steering.set_default("wlan0")
        steering.paths_measured({"wlan0": (80e6, 0.05)})
        await steering.barring.bar([])
        kernel.keep()


def test_a_kill_at_any_instant_is_undone(make_world, tmp_path):
    world = make_world(Instants())
    before = world.picture()
    world.kernel.journal = tmp_path / FILE_NAME
    asyncio.run(steer(world, world.kernel, tmp_path))
    assert world.picture() == before
    assert not (tmp_path / FILE_NAME).exists()
    instants = world.kernel.instants
    assert len(instants) > 30
    for number, (kernel, data) in enumerate(instants):
        directory = tmp_path / str(number)
        directory.mkdir()
        (directory / FILE_NAME).write_bytes(data + b'{"undo":"rou')
        restore(directory, kernel=kernel)
        assert make_world.picture_of(kernel) == before
        assert restore(directory, kernel=kernel) == Undone()


@given(data=st.data())
def test_undoing_twice_or_what_was_never_done_is_fine(make_world, data):
    world = make_world()
    before = world.picture()
    everything = [
        ROUTING,
        FILTER,
        CONNECTIONS,
        SysctlRecord("net.mptcp.path_manager", "kernel", "userspace"),
        SysctlRecord("net.ipv4.tcp_rmem", "4096\t131072\t6291456", "4096\t131072\t500000"),
        SysctlRecord("net.mptcp.pm_type", "0", "1"),  # which this kernel has not
        host_record(world.kernel),
    ]
    records = data.draw(st.lists(st.sampled_from(everything), max_size=10))
    for damaged in (False, True):
        assert not undo_all(world.kernel, JournalReading(records, (), damaged)).left
    assert world.picture() == before


def test_only_what_bears_our_mark_goes(world):
    strange = SeenRoute(4, 7_300_003, world.kernel.all_routes[0].destination, 3, 0, 3, None, b"")
    elsewhere = SeenRoute(4, 100, world.kernel.all_routes[0].destination, 3, 0, 206, None, b"")
    world.kernel.all_routes += [strange, elsewhere]
    undo_all(world.kernel, JournalReading([ROUTING]))
    assert strange in world.kernel.all_routes
    assert elsewhere in world.kernel.all_routes


def test_what_the_kernel_refuses_stays_in_the_journal(world, tmp_path):
    journal = Journal(tmp_path)
    journal.append(host_record(world.kernel))
    journal.append(SysctlRecord("net.mptcp.path_manager", "kernel", "userspace"))
    journal.close()
    world.kernel.sysctls["net.mptcp.path_manager"] = "userspace"
    world.kernel.refuses = errno.EPERM
    with pytest.raises(PrivilegeError):
        restore(tmp_path, kernel=world.kernel)
    world.kernel.refuses = errno.ENOMEM
    assert restore(tmp_path, kernel=world.kernel).left == (
        f"sysctl net.mptcp.path_manager: {os.strerror(errno.ENOMEM)}",
    )
    assert (tmp_path / FILE_NAME).exists()
    world.kernel.refuses = 0
    assert restore(tmp_path, dry_run=True, kernel=world.kernel).done
    assert world.kernel.sysctls["net.mptcp.path_manager"] == "userspace"
    restore(tmp_path, kernel=world.kernel)
    assert world.kernel.sysctls["net.mptcp.path_manager"] == "kernel"
    assert not (tmp_path / FILE_NAME).exists()


@pytest.fixture(scope="module")
def left_behind(make_world, tmp_path_factory):
    """The remains of a killed daemon: the kernel, its state before, and the whole journal."""
    directory = tmp_path_factory.mktemp("left")
    world = make_world(Instants())
    before = world.picture()
    world.kernel.journal = directory / FILE_NAME

    async def run():
        async with Steering(directory, kernel=world.kernel) as steering:
            await steering.networks_changed([world.wlan0, world.lte0])
            steering.set_default("lte0")
            steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
            await steering.barring.bar(["lte0"])
            world.kernel.keep()
            return world.kernel.instants[-1]

    kernel, data = asyncio.run(run())
    return kernel, before, data


@pytest.mark.parametrize("lines", range(9))
def test_a_journal_that_lost_its_end_is_no_loss(make_world, left_behind, tmp_path, lines):
    kernel, before, data = copy.deepcopy(left_behind)
    kept = data.split(b"\n")[: lines + 1]
    (tmp_path / FILE_NAME).write_bytes(b"\n".join(kept) + b"\n")
    undone = restore(tmp_path, kernel=kernel)
    assert make_world.picture_of(kernel) == before
    assert not undone.left
    assert not (tmp_path / FILE_NAME).exists()


@pytest.mark.parametrize(
    "data", [None, b"", b"\0" * 5000, b"\xff\xfe" * 99, b"[" * 100_000 + b"\n"]
)
def test_without_a_journal_what_is_recognisably_ours_goes_and_the_rest_is_named(
    make_world, left_behind, tmp_path, data
):
    kernel, before, _ = copy.deepcopy(left_behind)
    if data is not None:
        (tmp_path / FILE_NAME).write_bytes(data)
    undone = restore(tmp_path, kernel=kernel)
    was, now = dict(before[2]), make_world.picture_of(kernel)
    assert (now[0], now[1], now[3]) == (before[0], before[1], before[3])
    # The path manager may have been another program's all the time: a start on a full disk takes none.
    changed = {key for key in was if was[key] != kernel.sysctls[key]}
    assert changed == {TCP_RMEM, MPTCP_CLOSE_TIMEOUT, CONNTRACK_ACCOUNTING, MPTCP_PATH_MANAGER}
    assert len(undone.left) == 4
    assert all(any(f"sysctl {key} = " in line for line in undone.left) for key in changed)
    assert (data is not None) == (tmp_path / FILE_NAME).exists()


def test_a_clean_host_without_a_journal_has_nothing_to_undo(world, tmp_path):
    world.kernel.sysctls |= {"net.mptcp.close_timeout": "1", "net.mptcp.path_manager": "userspace"}
    before = world.picture()
    assert restore(tmp_path / "none", kernel=world.kernel) == Undone()
    assert restore(tmp_path, kernel=world.kernel) == Undone()
    assert world.picture() == before
    assert not (tmp_path / "none").exists()


def test_a_hostile_record_is_named_and_nothing_of_it_is_done(world, tmp_path):
    (tmp_path / FILE_NAME).write_bytes(
        b'{"undo":"host","before":{}}\n'
        b'{"undo":"sysctl","key":"kernel.core_pattern","before":"|/x","after":"core"}\n'
    )
    world.kernel.sysctls["kernel.core_pattern"] = "core"
    undone = restore(tmp_path, kernel=world.kernel)
    assert world.kernel.sysctls["kernel.core_pattern"] == "core"
    assert "kernel.core_pattern" in undone.left[0]
    assert (tmp_path / FILE_NAME).exists()


async def test_a_start_goes_on_with_what_cannot_be_undone_and_tells_it(world, tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b'{"undo":"something newer"}\n')

    async with Steering(tmp_path, kernel=world.kernel) as steering:
        assert any("something newer" in problem for problem in steering.problems)
    assert (tmp_path / f"{FILE_NAME}.aside-1").read_bytes() == b'{"undo":"something newer"}\n'
    assert not (tmp_path / FILE_NAME).exists()


@given(data=st.data())
def test_whatever_is_done_to_a_journal_the_host_is_exact_or_told(
    make_world, left_behind, fresh, data
):
    kernel, before, whole = copy.deepcopy(left_behind)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(damaged)))
        end = min(len(damaged), begin + data.draw(st.integers(0, 200)))
        damaged[begin:end] = data.draw(
            st.sampled_from([b"", b"\0" * (end - begin), b"\xff{]\n", b"\n"])
        )
    directory = fresh()
    (directory / FILE_NAME).write_bytes(damaged)
    undone = restore(directory, kernel=kernel)
    now = make_world.picture_of(kernel)
    assert (now[0], now[1], now[3]) == (before[0], before[1], before[3])
    was = dict(before[2])
    changed = {key for key in was if was[key] != kernel.sysctls[key]}
    assert all(any(key in line for line in undone.left) for key in changed)
