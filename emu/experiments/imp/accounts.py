"""What a trial used up: bytes by network and joules by the radios' states, packet by packet."""

from itertools import groupby

from cedos.selector.energy.radio import Radio
from cedos.selector.energy.radio_watch import RadioWatch
from emu.lab.simulation.network import Exchange

_BIN_S = 0.1


class Account:
    """Counts one network. Exchanges are told whole, and counted as far as time has come.

    Args:
        origin_s: instant 0 of the trial, in seconds of the replay.
    """

    def __init__(self, radio: Radio, origin_s: float) -> None:
        self.radio = radio
        self.watch = RadioWatch(radio, sampled_s=_BIN_S)
        self.bytes = 0
        self._origin_s = origin_s
        # (time, up, down) of what has not passed yet, the last first.
        self._ahead: list[tuple[float, int, int]] = []

    def begins(self, exchange: Exchange) -> None:
        """One more exchange is under way; the one before it is over or was cut."""
        until_s = exchange.ended_at_s
        packets = [(at_s, size, 0) for at_s, size in exchange.up if at_s <= until_s]
        packets += [(at_s, 0, size) for at_s, size in exchange.down if at_s <= until_s]
        packets.sort()
        bins = []
        for _, group in groupby(packets, key=lambda packet: int(packet[0] / _BIN_S)):
            members = list(group)
            at_s = members[-1][0] - self._origin_s
            up, down = sum(each[1] for each in members), sum(each[2] for each in members)
            bins.append((at_s, up, down))
        self._ahead = bins[::-1]

    def cut(self, now_s: float) -> None:
        """What is under way ends here."""
        self.count(now_s)
        self._ahead = []

    def count(self, now_s: float) -> None:
        """Takes what has passed by now."""
        while self._ahead and self._ahead[-1][0] <= now_s:
            at_s, up, down = self._ahead.pop()
            self.bytes += up + down
            self.watch.carried(at_s, up, down)

    def energy_j(self, now_s: float) -> float:
        self.count(now_s)
        return self.watch.energy_j(now_s)

    def committed_j(self, now_s: float) -> float:
        """Joules until now, with those of the tail that is still to come whatever is done."""
        idle_s = self.watch.idle_s(now_s)
        ahead_j = 0.0
        if idle_s is not None and idle_s < self.radio.tail_s:
            ahead_j = self.radio.tail_j - self.radio.added_tail_j(idle_s)
        return self.energy_j(now_s) + ahead_j
