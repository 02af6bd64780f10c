"""Exchanges over one replayed network: when they are answered, and what they carry until then."""

import math
from collections.abc import Callable

from emu.experiments.meatballs.driver import Agenda
from emu.experiments.meatballs.usage import Usage
from emu.lab.simulation.network import HEADER_BYTES, Exchange, ReplayedNetwork


def _at_once(now_s: float) -> float:
    return 0.0


class SimulatedNetwork:
    """Plans an exchange's events; simulated, not emulated (see `emu.lab.simulation.network`).

    Args:
        name: the network's, for `usage`.
        usage: filled with what was carried, at the instants of the trial.
        start_s: the second of the replay at which the trial begins.
    """

    def __init__(
        self, agenda: Agenda, name: str, network: ReplayedNetwork, usage: Usage, start_s: float
    ) -> None:
        self._agenda, self._name, self._network = agenda, name, network
        self._usage, self._start_s = usage, start_s
        self._under_way: dict[int, tuple[Exchange, float]] = {}

    def connect(self, now_s: float, connected: Callable[[float], None]) -> None:
        """One packet each way, what a handshake is on the wire; `connected` is told when it ends."""
        found = self._network.exchange(self._start_s + now_s, 1, 1)
        self._usage.carried(self._name, now_s, HEADER_BYTES, 0)

        def done(at_s: float) -> None:
            self._usage.carried(self._name, at_s, 0, HEADER_BYTES)
            connected(at_s)

        self._agenda.at(found.completed_at_s - self._start_s, done)

    def start(
        self,
        number: int,
        up_bytes: int,
        down_bytes: int,
        now_s: float,
        answered: Callable[[float, float], None],
        serving_s: Callable[[float], float] = _at_once,
    ) -> None:
        """Begins an exchange; one that the network's end cuts off is not answered.

        `answered`: is told when the response is there, and for how long the server worked.
        `serving_s`: how long it works for a request that is complete at an instant.
        """
        begin_s = self._start_s + now_s
        found = self._network.exchange(begin_s, up_bytes, down_bytes)
        server_s = 0.0
        if found.served_at_s < math.inf:
            server_s = serving_s(found.served_at_s - self._start_s)
        if server_s:
            found = self._network.exchange(begin_s, up_bytes, down_bytes, server_s=server_s)
        self._under_way[number] = (found, server_s)

        def sent(at_s: float) -> None:
            # All at once: told when the last packet has passed the link.
            self._usage.carried(self._name, at_s, found.carried(found.served_at_s)[0], 0)

        def ended(at_s: float) -> None:
            if self._under_way.get(number, (None, 0.0))[0] is not found:
                return
            del self._under_way[number]
            up, down = found.carried()
            if found.served_at_s < math.inf:
                up -= found.carried(found.served_at_s)[0]
            self._usage.carried(self._name, at_s, up, down)
            if found.completed_at_s < math.inf:
                answered(at_s, server_s)

        self._agenda.at(found.served_at_s - self._start_s, sent)
        self._agenda.at(found.ended_at_s - self._start_s, ended)

    def cancel(self, number: int, now_s: float) -> None:
        """The server hears of it half a round trip later; what it has answered by then comes."""
        if number not in self._under_way:
            return  # lost at this very instant, and the host is about to notice
        found, server_s = self._under_way[number]
        self._usage.carried(self._name, now_s, HEADER_BYTES, 0)
        heard_s = now_s + self._start_s + self._network.rtt_s / 2
        if found.served_at_s + server_s > heard_s:
            del self._under_way[number]
