"""Exchanges over replayed networks, in virtual time."""

from collections.abc import Mapping, Sequence

from emu.experiments.meatballs.client import Client, Policy, Record
from emu.experiments.meatballs.driver import Agenda, Side, VirtualClock, play
from emu.experiments.meatballs.exchanges.requests import Request
from emu.experiments.meatballs.simulated_network import SimulatedNetwork
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import ReplayedNetwork


def simulate(
    requests: Sequence[Request],
    networks: Mapping[str, ReplayedNetwork],
    policy: Policy[Request],
    usage: Usage,
    *,
    start_s: float = 0.0,
    duration_s: float,
) -> list[Record]:
    """One trial; ways are named like the networks, `usage` is filled, the rest as `driver.play`."""
    agenda = Agenda()
    simulated = {
        name: SimulatedNetwork(agenda, name, network, usage, start_s)
        for name, network in networks.items()
    }
    sides = [Side(SimulatedExchanges(simulated, policy), requests)]
    clock = VirtualClock()
    return play(clock, agenda, sides, networks, start_s=start_s, duration_s=duration_s)[0]


class SimulatedExchanges:
    def __init__(self, networks: Mapping[str, SimulatedNetwork], policy: Policy[Request]) -> None:
        self._networks = networks
        self.client = Client(policy, self)

    def connect(self, way: str, now_s: float) -> None:
        self._networks[way].connect(
            now_s, lambda at_s: self.client.connected(way, at_s - now_s, at_s)
        )

    def disconnect(self, way: str, now_s: float) -> None:
        """Exchanges end by themselves where their network does."""

    def start(self, task: Request, way: str, now_s: float) -> None:
        self._networks[way].start(
            task.number,
            task.up_bytes,
            task.down_bytes,
            now_s,
            lambda at_s, _: self.client.answered(task.number, way, at_s),
        )

    def cancel(self, task: Request, way: str, now_s: float) -> None:
        self._networks[way].cancel(task.number, now_s)
