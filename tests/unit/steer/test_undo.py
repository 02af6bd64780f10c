"""Undoing: from any instant of a run, by a journal cut anywhere, the kernel is as it was before."""

import asyncio
import copy
import errno
from pathlib import Path

import pytest
from doubles.steer_kernel import MemoryKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.errors import PrivilegeError, SteeringError
from cedos.kernel.policy_routing import SeenRoute
from cedos.steer.journal.journal import FILE_NAME, Journal
from cedos.steer.journal.records import FILTER, ROUTING, sysctl_record
from cedos.steer.restore import restore
from cedos.steer.steering import Steering
from cedos.steer.undo import undo_all


class Instants(MemoryKernel):
    """Keeps what it and the journal held before each single change."""

    def __init__(self) -> None:
        super().__init__()
        self.instants: list[tuple[MemoryKernel, bytes]] = []
        self.journal = Path("/nonexistent")

    def _changed(self, what: str) -> None:
        super()._changed(what)
        self.keep()

    def keep(self) -> None:
        as_it_is = MemoryKernel()
        for name in ("others", "own", "all_routes", "all_links", "sysctls", "filter"):
            setattr(as_it_is, name, copy.deepcopy(getattr(self, name)))
        data = self.journal.read_bytes() if self.journal.exists() else b""
        self.instants.append((as_it_is, data))


async def steer(world, kernel, directory: Path) -> None:
    """A run that uses everything that can be undone."""
    async with Steering(directory, kernel=kernel) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        await steering.set_default("lte0")
        await steering.set_destination("198.51.100.0/24", 443, "wlan0", protocol="tcp")
        await steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
        steering.barring.bar(["lte0"])
        await steering.networks_changed([world.wlan0, world.down(world.lte0)])
        await steering.set_default("wlan0")
        await steering.paths_measured({"wlan0": (80e6, 0.05)})
        steering.barring.bar([])
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
        assert restore(directory, kernel=kernel) == []


@settings(max_examples=60)
@given(data=st.data())
def test_undoing_twice_or_what_was_never_done_is_fine(make_world, data):
    world = make_world()
    before = world.picture()
    everything = [
        ROUTING,
        FILTER,
        {"undo": "connections"},
        sysctl_record("net.mptcp.path_manager", "kernel", "userspace"),
        sysctl_record("net.ipv4.tcp_rmem", "4096\t131072\t6291456", "4096\t131072\t500000"),
        sysctl_record("no.such.thing", "1", "2"),
        {"undo": "something newer"},
        {"undo": "sysctl"},
    ]
    records = data.draw(st.lists(st.sampled_from(everything), max_size=10))
    undo_all(world.kernel, records)
    undo_all(world.kernel, records)
    assert world.picture() == before


def test_only_what_bears_our_mark_goes(world):
    strange = SeenRoute(4, 7_300_003, world.kernel.all_routes[0].destination, 3, 0, 3, None, b"")
    elsewhere = SeenRoute(4, 100, world.kernel.all_routes[0].destination, 3, 0, 206, None, b"")
    world.kernel.all_routes += [strange, elsewhere]
    undo_all(world.kernel, [ROUTING])
    assert strange in world.kernel.all_routes
    assert elsewhere in world.kernel.all_routes


def test_a_sysctl_with_several_values_is_set_back_once(world):
    key, own = "net.ipv4.tcp_rmem", "4096\t131072\t6291456"
    records = [sysctl_record(key, own, "4096\t131072\t200000")]
    records.append(sysctl_record(key, own, "4096\t131072\t400000"))
    for value in ("4096 131072 200000", "4096\t131072\t400000"):
        world.kernel.sysctls[key] = value
        assert undo_all(world.kernel, records) == [f"set back: {key} = {own}"]
        assert world.kernel.sysctls[key] == own
    world.kernel.sysctls[key] = "1 2 3"
    (said,) = undo_all(world.kernel, records)
    assert "left alone" in said
    assert world.kernel.sysctls[key] == "1 2 3"


def test_what_the_kernel_refuses_stays_in_the_journal(world, tmp_path):
    journal = Journal(tmp_path)
    journal.append(sysctl_record("net.mptcp.path_manager", "kernel", "userspace"))
    journal.close()
    world.kernel.sysctls["net.mptcp.path_manager"] = "userspace"
    for code, error in ((errno.ENOMEM, SteeringError), (errno.EPERM, PrivilegeError)):
        world.kernel.refuses = code
        with pytest.raises(error):
            restore(tmp_path, kernel=world.kernel)
        assert (tmp_path / FILE_NAME).exists()
    world.kernel.refuses = 0
    assert restore(tmp_path, dry_run=True, kernel=world.kernel)
    assert world.kernel.sysctls["net.mptcp.path_manager"] == "userspace"
    restore(tmp_path, kernel=world.kernel)
    assert world.kernel.sysctls["net.mptcp.path_manager"] == "kernel"
