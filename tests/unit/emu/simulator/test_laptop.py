"""The daemon in the simulator: the shipped controller, on links that fail under its transfers."""

import pytest

from cedos.budget_kinds import Resource
from cedos.controller.commands import BarNetworks, MoveConnection, RescueFlow
from cedos.controller.controller import Controller
from cedos.model import Budget, Direction, NetworkKind
from emu.places.traces import Trace
from emu.policies import simulated
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import Clock, Network
from emu.testbed.access import Access
from emu.workloads.mixed import PlannedTransfer

WIFI, CELLULAR = NetworkKind.WIFI, NetworkKind.CELLULAR
HOST = "198.51.100.2"


class Laptop:
    """A laptop with two networks of given rates, and the commands of its controller."""

    def __init__(self, monkeypatch, wifi_bps=20e6, lte_bps=10e6, budget=None):
        self.clock = Clock()
        self.given = []
        commands = Controller.commands

        def noted(controller):
            taken = commands(controller)
            self.given += taken
            return taken

        monkeypatch.setattr(Controller, "commands", noted)
        rates = {WIFI: (wifi_bps, 0.02), CELLULAR: (lte_bps, 0.06)}
        self.networks = {
            kind: Network(
                self.clock, Access(kind, Trace.constant(rate_bps), Trace.constant(rate_bps), rtt_s)
            )
            for kind, (rate_bps, rtt_s) in rates.items()
        }
        config = simulated("cedos").daemon
        assert config is not None
        self.daemon = SimulatedLaptop(self.clock, self.networks, config, budget=budget)
        self._number = 0

    def begin(self, size_bytes, *, mptcp=False, down=True):
        direction = Direction.DOWN if down else Direction.UP
        self._number += 1
        return self.daemon.begin(
            PlannedTransfer(
                self._number, "x", self.clock.now_s, HOST, direction, size_bytes, mptcp=mptcp
            )
        )

    def of(self, kind):
        return [each for each in self.given if isinstance(each, kind)]


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("mptcp", [True, False])
def test_on_good_wi_fi_transfers_go_there_and_end(monkeypatch, *, down, mptcp):
    laptop = Laptop(monkeypatch)
    laptop.clock.run(5.0)
    began_s = laptop.clock.now_s
    transfer = laptop.begin(1_000_000, mptcp=mptcp, down=down)
    laptop.clock.run(15.0)
    assert transfer.ended_s is not None
    assert transfer.ended_s - began_s < 1.2  # 0.4 s at 20 Mbit/s, and its slow start
    assert transfer.first.kind is WIFI


def test_a_living_mptcp_download_moves_off_a_network_that_dies(monkeypatch):
    laptop = Laptop(monkeypatch)
    laptop.clock.run(5.0)
    transfer = laptop.begin(8_000_000, mptcp=True)
    laptop.clock.after(1.0, laptop.networks[WIFI].fail)
    laptop.clock.run(40.0)
    assert laptop.of(MoveConnection)
    assert transfer.ended_s < 20.0  # 6 MB are left after 1 s: 5 s by LTE, and the time to notice


def test_a_first_packet_into_a_dead_network_is_rescued(monkeypatch):
    laptop = Laptop(monkeypatch)
    laptop.clock.run(5.0)
    laptop.networks[WIFI].fail()
    began_s = laptop.clock.now_s
    transfer = laptop.begin(10_000)
    laptop.clock.run(began_s + 10.0)
    assert laptop.of(RescueFlow)
    assert transfer.ended_s is not None
    assert transfer.ended_s - began_s < 1.5
    assert set(laptop.daemon.controller.rescuer.living) == set()  # it ended with its flow


def test_a_budget_has_its_price_and_keeps_transfers_off_the_metered_network(monkeypatch):
    """On Wi-Fi of 2 Mbit/s; LTE has ten times as much."""
    carried = {}
    for supply in (1e12, 4e6):
        data = Budget("data", Resource.DATA, supply, "2026-12-01T00:00:00", networks=("lte0",))
        laptop = Laptop(monkeypatch, 2e6, 20e6, data)
        for number in range(20):
            laptop.clock.run(5.0 + 10.0 * number)
            laptop.begin(1_000_000)
        laptop.clock.run(220.0)
        controller, lte = laptop.daemon.controller, laptop.networks[CELLULAR]
        carried[supply] = lte.down.delivered_bytes + lte.up.delivered_bytes
        assert controller.budgets.keepers["data"].spent == pytest.approx(carried[supply], rel=0.01)
        assert controller.decider.objective.name == "budgets"
        assert not laptop.of(BarNetworks), "it is not hard"
    assert carried[1e12] > 20e6
    assert carried[4e6] < 4e6


def test_a_daemon_that_is_told_nothing_more_commands_nothing_and_transfers_go_on(monkeypatch):
    laptop = Laptop(monkeypatch)
    laptop.clock.run(5.0)
    transfer = laptop.begin(1_000_000)
    laptop.daemon.close()
    commanded, sent_bytes = len(laptop.given), laptop.networks[CELLULAR].up.delivered_bytes
    laptop.clock.run(15.0)
    assert transfer.ended_s is not None
    assert len(laptop.given) == commanded
    assert laptop.networks[CELLULAR].up.delivered_bytes == sent_bytes  # no ping either
