"""Sysctls that are held at a value."""

import errno

import pytest
from kit.steer_kernel import MemoryKernel

from cedos.host.steer.journal_records import (
    FILTER,
    MPTCP_CLOSE_TIMEOUT,
    OWN_SOURCES,
    RETRANSMISSION,
    TCP_IDLE_RESTART,
    TCP_RETRIES,
    TCP_RMEM,
    TCP_RTO_MAX,
    SysctlRecord,
    own_sources,
)
from cedos.host.steer.repairs import HeldSysctls
from cedos.host.steer.steering import Steering


class Held:
    def __init__(self):
        self.kernel = MemoryKernel()
        self.kernel.sysctls = {MPTCP_CLOSE_TIMEOUT: "1", TCP_RMEM: "4096 131072 6291456"}
        self.journal = []
        self.now_s = 0.0
        self.sysctls = HeldSysctls(self.kernel, self.journal.append, lambda: self.now_s)
        self.sysctls.note(SysctlRecord(MPTCP_CLOSE_TIMEOUT, "60", "1"))


@pytest.fixture
def held():
    return Held()


def test_what_somebody_sets_is_put_back(held):
    assert held.sysctls.repair() == []
    held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
    assert held.sysctls.repair() == []
    assert held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] == "1"
    assert held.journal == [SysctlRecord(MPTCP_CLOSE_TIMEOUT, "60", "1")]


def test_what_is_held_is_journaled_once(held):
    """An interface that comes again has its sysctls anew."""
    held.sysctls.note(SysctlRecord(MPTCP_CLOSE_TIMEOUT, "60", "1"))
    assert len(held.journal) == 1


def test_what_is_marked_is_not_journaled_and_ends_with_its_interface(held):
    """An interface has another name by now: the next one of its name is another interface."""
    key = own_sources("wlan0")
    held.sysctls.note(SysctlRecord(key, "0", OWN_SOURCES))
    assert len(held.journal) == 1
    held.kernel.sysctls[key] = "0"
    assert held.sysctls.repair() == []
    assert held.kernel.sysctls.pop(key) == OWN_SOURCES
    assert held.sysctls.repair() == []
    held.kernel.sysctls[key] = "0"
    assert held.sysctls.repair() == []
    assert held.kernel.sysctls[key] == "0"


def test_somebody_who_goes_on_is_told_of_and_forgotten_later(held):
    for _ in range(3):
        held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
        problems = held.sysctls.repair()
        held.now_s += 1.0
    (problem,) = problems
    assert f"another program keeps setting {MPTCP_CLOSE_TIMEOUT}" in problem
    held.now_s += 60.0
    assert held.sysctls.repair() == []


def test_what_is_given_ever_new_values_is_not_held_nor_is_what_is_no_sysctl(held):
    held.sysctls.note(SysctlRecord(TCP_RMEM, "4096 131072 6291456", "4096 131072 500000"))
    held.sysctls.note(FILTER)
    assert held.sysctls.repair() == []
    assert held.kernel.sysctls[TCP_RMEM] == "4096 131072 6291456"
    assert len(held.journal) == 3


def test_what_cannot_be_put_back_is_told(held):
    held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
    held.kernel.refuses = errno.EROFS
    (problem,) = held.sysctls.repair()
    assert f"{MPTCP_CLOSE_TIMEOUT} cannot be put back to 1" in problem


USUAL = {key: usual for key, (usual, _) in RETRANSMISSION.items()}
OURS = {key: ours for key, (_, ours) in RETRANSMISSION.items()}


def now(world):
    return {key: world.kernel.read_sysctl(key) for key in RETRANSMISSION}


async def test_it_is_bounded_while_steering_and_the_bound_is_set_last(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel, tcp=True):
        assert now(world) == OURS
        changed = [line for line in world.kernel.log if any(key in line for key in OURS)]
        assert TCP_RTO_MAX in changed[-1]
    assert now(world) == USUAL


async def test_windows_outlast_idle_times_while_steering(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel, tcp=True):
        assert world.kernel.read_sysctl(TCP_IDLE_RESTART) == "0"
    assert world.kernel.read_sysctl(TCP_IDLE_RESTART) == "1"


@pytest.mark.parametrize("key", RETRANSMISSION)
async def test_what_the_user_has_set_is_left_alone(world, tmp_path, key):
    world.kernel.sysctls[key] = "7000"
    async with Steering(tmp_path, kernel=world.kernel, tcp=True):
        assert now(world) == USUAL | {key: "7000"}
    assert now(world) == USUAL | {key: "7000"}


async def test_a_refusal_is_a_problem_and_no_reason_to_end(world, tmp_path):
    write = world.kernel.write_sysctl

    def refuse(key, value):
        if key == TCP_RTO_MAX:
            raise PermissionError(errno.EROFS, "Read-only file system")
        write(key, value)

    world.kernel.write_sysctl = refuse
    async with Steering(tmp_path, kernel=world.kernel, tcp=True) as steering:
        (problem,) = steering.problems
        assert "Read-only" in problem
    assert world.kernel.sysctls[TCP_RETRIES] == USUAL[TCP_RETRIES]
