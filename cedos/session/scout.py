"""The connection scout: what a path carries and how quickly, from the session's own traffic.

IntNW measures by probes and by the answers to its own messages, and joins both with a flip-flop filter
(dissertation, 2.3.1, 2.3.2). The kernel sees every acknowledgement: its smoothed round trip is used as
it is, its delivery rate through a filter of two gains, since a rate measured while we had nothing more to
send says only that the path carries at least that.
"""

import socket
from typing import Final

from cedos.session import queues
from cedos.session.scheduling import Facts

_LOOK_S: Final = 0.010
_STEADY: Final = 0.125
_AGILE: Final = 0.5
# Beyond this factor a measurement is a change of the path and not noise: the agile gain follows it.
_JUMP: Final = 2.0


class Scout:
    """Keeps one path's facts up to date.

    Args:
        facts: written in place.
    """

    __slots__ = ("_facts", "_jumps", "_looked_s", "info")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._looked_s = float("-inf")
        self._jumps = 0
        self.info: queues.TcpInfo | None = None

    def look(self, connection: socket.socket, now: float, *, at_once: bool = False) -> None:
        """Asks the kernel, if it was not asked just now."""
        if not at_once and now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        self.info = info = queues.tcp_info(connection)
        if info is None:
            return
        facts = self._facts
        facts.rtt_s = info.rtt_s
        facts.rtt_min_s = info.rtt_min_s
        facts.loss = info.loss
        facts.window_bytes = info.window_bytes
        facts.unsent_bytes = info.unsent_bytes
        facts.measured_at_s = now
        if info.delivery_rate_bps is not None:
            self.measured(info.delivery_rate_bps, at_least=info.rate_limited_by_us)

    def measured(self, rate_bps: float, *, at_least: bool) -> None:
        """One more rate; `at_least`: the path may carry more."""
        known = self._facts.rate_bps
        if known is None or at_least:
            if known is None or rate_bps > known:
                self._facts.rate_bps = rate_bps
            return
        jumped = not known / _JUMP < rate_bps < known * _JUMP
        self._jumps = self._jumps + 1 if jumped else 0
        gain = _AGILE if self._jumps > 1 else _STEADY
        self._facts.rate_bps = known + gain * (rate_bps - known)
