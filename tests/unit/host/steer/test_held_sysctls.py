"""Sysctls that are held at a value."""

import errno

import pytest
from kit.steer_kernel import MemoryKernel

from cedos.host.steer.journal_records import FILTER, MPTCP_CLOSE_TIMEOUT, TCP_RMEM, SysctlRecord
from cedos.host.steer.repairs import HeldSysctls


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
    assert held.sysctls.repaired() == []
    held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
    assert held.sysctls.repaired() == []
    assert held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] == "1"
    assert held.journal == [SysctlRecord(MPTCP_CLOSE_TIMEOUT, "60", "1")]


def test_somebody_who_goes_on_is_told_of_and_forgotten_later(held):
    for _ in range(3):
        held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
        problems = held.sysctls.repaired()
        held.now_s += 1.0
    (problem,) = problems
    assert f"another program keeps setting {MPTCP_CLOSE_TIMEOUT}" in problem
    held.now_s += 60.0
    assert held.sysctls.repaired() == []


def test_what_is_given_ever_new_values_is_not_held_nor_is_what_is_no_sysctl(held):
    held.sysctls.note(SysctlRecord(TCP_RMEM, "4096 131072 6291456", "4096 131072 500000"))
    held.sysctls.note(FILTER)
    assert held.sysctls.repaired() == []
    assert held.kernel.sysctls[TCP_RMEM] == "4096 131072 6291456"
    assert len(held.journal) == 3


def test_what_cannot_be_put_back_is_told(held):
    held.kernel.sysctls[MPTCP_CLOSE_TIMEOUT] = "60"
    held.kernel.refuses = errno.EROFS
    (problem,) = held.sysctls.repaired()
    assert f"{MPTCP_CLOSE_TIMEOUT} cannot be put back to 1" in problem
