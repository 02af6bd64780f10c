"""The connection scout: what a path carries and how quickly, from the session's own traffic.

IntNW measures by probes and by the answers to its own messages, and joins both with a flip-flop filter
(dissertation, 2.3.1, 2.3.2). The kernel sees every acknowledgement: its smoothed round trip is used as
it is, its delivery rate through a filter of two gains. With nothing more to send, that is the rate
of a short burst, which may fit into a buffer (measured: 146 Mbit/s on a link of 4). What was acknowledged
over the time in which something was on its way is then a lower bound for what the path carries.
"""

import socket
from typing import Final

from cedos.session import queues
from cedos.session.scheduling import Facts

_LOOK_S: Final = 0.010
_LEAST_BUSY_S: Final = 0.050
_STEADY: Final = 0.125
_AGILE: Final = 0.5
# Beyond this factor a measurement is a change of the path and not noise: the agile gain follows it.
_JUMP: Final = 2.0


class Scout:
    """Keeps one path's facts up to date.

    Args:
        facts: written in place.
    """

    __slots__ = ("_before", "_facts", "_jumps", "_limited", "_looked_s", "_sure", "info")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._looked_s = float("-inf")
        self._jumps = 0
        self._before = (0, 0.0)  # acknowledged bytes and busy seconds when the last rate was taken
        self._limited = self._sure = False
        self.info: queues.TcpInfo | None = None

    def look(self, connection: socket.socket, now: float, *, at_once: bool = False) -> bool:
        """Asks the kernel, if it was not asked just now; whether there is news."""
        if not at_once and now - self._looked_s < _LOOK_S:
            return False
        self._looked_s = now
        self.info = info = queues.tcp_info(connection)
        if info is None:
            return False
        facts = self._facts
        facts.rtt_s = info.rtt_s
        facts.rtt_min_s = info.rtt_min_s
        facts.loss = info.loss
        facts.window_bytes = info.window_bytes
        facts.unsent_bytes = info.unsent_bytes
        facts.measured_at_s = now
        if not info.rate_limited_by_us:
            if info.delivery_rate_bps is not None:
                self.measured(info.delivery_rate_bps, at_least=False)
        elif facts.rate_bps is None:
            facts.rate_bps = info.delivery_rate_bps  # until the first that is worth the name
        self._limited |= info.rate_limited_by_us
        acknowledged, busy_s = self._before
        over_s = info.busy_s - busy_s
        if over_s >= max(_LEAST_BUSY_S, info.rtt_s or 0.0):
            if self._limited:
                rate_bps = 8 * (info.acknowledged_bytes - acknowledged) / over_s
                self.measured(rate_bps, at_least=True)
            self._before, self._limited = (info.acknowledged_bytes, info.busy_s), False
        return True

    def measured(self, rate_bps: float, *, at_least: bool) -> None:
        """One more rate; `at_least`: the path may carry more."""
        known = self._facts.rate_bps
        if not rate_bps:
            return  # nothing got through at all, which says nothing of the rate
        if not self._sure or known is None:
            self._sure, self._facts.rate_bps = True, rate_bps
            return
        if at_least:
            self._facts.rate_bps = max(known, rate_bps)
            return
        jumped = not known / _JUMP < rate_bps < known * _JUMP
        self._jumps = self._jumps + 1 if jumped else 0
        gain = _AGILE if self._jumps > 1 else _STEADY
        self._facts.rate_bps = known + gain * (rate_bps - known)
