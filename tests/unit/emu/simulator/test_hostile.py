"""Hostile cases, a few of them: what must never happen does not, and the checks see it where it does."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit import hostile_cases as hostile
from kit.hostile_cases import Case

from cedos.budget_kinds import Resource
from cedos.controller.budgets.hard_budgets import HardBudgets
from cedos.controller.controller import Controller
from cedos.controller.decisions import moves
from cedos.model import Budget, Direction, NetworkKind
from emu import ROOT, policies
from emu.places import places
from emu.places.traces import Trace
from emu.simulator.connection import Transfer
from emu.simulator.gateway import SimulatedGateway
from emu.testbed.access import Access
from emu.workloads.mixed import PlannedTransfer

PLACES = places.load(ROOT / "traces")
GOOD = Trace.constant(10e6)
DIES = Trace(np.arange(1, 3000, 1), 60_000)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10**6))
@example(7)
def test_no_hostile_case_has_a_fault_and_each_comes_out_the_same_twice(number):
    case = hostile.draw(number, PLACES)
    found = hostile.check(case)
    assert found.faults == ()
    assert found.transfers == len(case.plan)
    assert hostile.check(hostile.draw(number, PLACES)) == found


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("gateway", [False, True])
def test_a_thousand_hostile_cases(gateway):
    """The known cases with a fault are explained in docs/decisions/simulator.md."""
    there = places.load(places.default_directory())
    known = {97, 779} if gateway else set()
    faults = {
        number: faults
        for number in range(1000)
        if (faults := hostile.check(hostile.draw(number, there, gateway=gateway)).faults)
    }
    assert faults.keys() <= known, faults


def made(wifi, *, predictors="shipped", mptcp=True, supply=0.0, gateway=False):
    """Six large downloads, of which three begin just before Wi-Fi is known to have died."""
    daemon = policies.simulated("cedos").daemon
    assert daemon is not None
    return Case(
        number=1,
        accesses={
            kind: Access(kind, up=trace, down=trace, rtt_s=0.03)
            for kind, trace in ((NetworkKind.WIFI, wifi), (NetworkKind.CELLULAR, GOOD))
        },
        plan=[
            PlannedTransfer(number, "x", at_s, "198.51.100.2", Direction.DOWN, 3_000_000, mptcp)
            for number, at_s in enumerate((1.0, 1.1, 1.2, 3.05, 3.1, 3.15))
        ],
        changes=(),
        config=daemon,
        predictors=predictors,
        budget=Budget("data", Resource.DATA, supply, "2026-12-01", networks=("lte0",), hard=True)
        if supply
        else None,
        gateway=gateway,
    )


def kinds(case):
    return [kind for kind, _ in hostile.check(case).faults]


def test_an_exception_is_a_fault(monkeypatch):
    assert kinds(made(GOOD)) == []
    monkeypatch.setattr(Controller, "_on_close", None)
    assert kinds(made(GOOD)) == ["exception"]


def test_a_first_packet_that_is_left_on_a_dead_network_is_a_fault(monkeypatch):
    assert kinds(made(DIES, mptcp=False)) == []
    monkeypatch.setattr(Transfer, "rescue", lambda transfer, network: None)
    assert kinds(made(DIES, mptcp=False)) == ["stranded"]


def test_a_program_to_whom_the_proxy_brings_nothing_is_a_fault(monkeypatch):
    assert kinds(made(DIES, gateway=True)) == []
    monkeypatch.setattr(SimulatedGateway, "_opened", lambda *opened: None)
    assert kinds(made(DIES, gateway=True)) == ["stranded"]


def test_an_exception_in_a_session_is_a_fault(monkeypatch):
    monkeypatch.setattr(SimulatedGateway, "_opened", None)
    assert kinds(made(DIES, gateway=True)) == ["exception"]


def test_a_budget_that_bars_nothing_is_exceeded(monkeypatch):
    assert kinds(made(DIES, supply=1e6)) == []
    monkeypatch.setattr(HardBudgets, "on_counted", lambda self, *counted: False)
    assert kinds(made(DIES, supply=1e6)) == ["overspent"]


def test_moving_to_and_fro_is_a_fault(monkeypatch):
    assert kinds(made(GOOD, predictors="fickle")) == []
    monkeypatch.setattr(moves, "_MOST_OFTEN", 10**6)
    monkeypatch.setattr(moves.Moves, "_margin", lambda self, flow, now_s: 0.0)
    monkeypatch.setattr(moves.Moves, "_is_lost", lambda self, strategy, context: False)
    assert kinds(made(GOOD, predictors="fickle")) == ["flaps"]
