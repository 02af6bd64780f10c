"""An estimator of a path's rate and round trip, from the session's own traffic and probes.

IntNW measures by probes and by the answers to its own messages, and joins both with a flip-flop filter
(dissertation, 2.3.1, 2.3.2). The kernel sees every acknowledgement: its smoothed round trip is used as
it is, its delivery rate through a filter of two gains. With nothing more to send, that is the rate
of a short burst, which may fit into a buffer (measured: 146 Mbit/s on a link of 4). What was acknowledged
over the time in which something was on its way is then a lower bound for what the path carries.

A light probe (`probing`) tells of a path that carries nothing. It is one short burst as well, so it
weighs little: it takes the place of guesses only, and the first rate under load takes its own place.
"""

import socket
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final

from cedos.kernel.tcp_info import TcpInfo
from cedos.session.protocol.life import Probed
from cedos.session.protocol.path_watch import PAD_BYTES
from cedos.session.protocol.schedulers.interface import UNKNOWN_RATE_BPS, PathFacts

_POLL_S: Final = 0.010
_LEAST_BUSY_S: Final = 0.050
_STEADY: Final = 0.125
_AGILE: Final = 0.5
# A measurement that differs by this factor is a change of the path, not noise. The agile gain
# follows it.
_JUMP: Final = 2.0
# Lower bounds from fewer bytes tell less than a probe, whose own bytes count too.
_MANY_BYTES: Final = 2 * PAD_BYTES


class _From(IntEnum):
    """The source of the known rate; the higher, the better."""

    NOTHING = 0  # or the kernel's guess from a few packets
    FEW = 1  # a lower bound, from so few bytes that it may be far too low
    PROBE = 2
    TRAFFIC = 3


class PathEstimator:
    """The keeper of one path's facts, which it updates in place."""

    __slots__ = ("_ask", "_before", "_facts", "_from", "_jumps", "_limited", "_polled_s", "info")

    def __init__(self, facts: PathFacts, ask: Callable[[Any], TcpInfo | None]) -> None:
        self._facts, self._ask = facts, ask
        self._polled_s = float("-inf")
        self._jumps = 0
        self._before = (0, 0.0)  # acknowledged bytes and busy seconds when the last rate was taken
        self._limited = False
        self._from = _From.NOTHING
        self.info: TcpInfo | None = None

    def poll(self, connection: socket.socket, now: float, *, at_once: bool = False) -> bool:
        """Ask the kernel, unless it was asked just now; return whether there is news."""
        if not at_once and now - self._polled_s < _POLL_S:
            return False
        self._polled_s = now
        self.info = info = self._ask(connection)
        if info is None:
            return False
        facts = self._facts
        facts.rtt_s = info.rtt_s
        facts.rtt_min_s = info.rtt_min_s
        facts.rtt_variation_s = info.rtt_variation_s
        facts.loss = info.loss
        facts.window_bytes = info.window_bytes
        facts.slow_start = info.slow_start
        facts.unsent_bytes = info.unsent_bytes
        facts.measured_at_s = now
        # The kernel's delivery rate is the path's, unless the program had nothing more to send.
        if not info.rate_limited_by_us:
            if info.delivery_rate_bps is not None:
                self.on_measured(info.delivery_rate_bps, at_least=False)
        elif facts.rate_bps is None and (info.delivery_rate_bps or 0.0) >= UNKNOWN_RATE_BPS:
            facts.rate_bps = info.delivery_rate_bps  # a guess until the first measurement
        self._limited |= info.rate_limited_by_us
        # A lower bound from all traffic: what was acknowledged over the time in which data was on its
        # way.
        acknowledged, busy_s = self._before
        over_s = info.busy_s - busy_s
        if over_s >= max(_LEAST_BUSY_S, info.rtt_s or 0.0):
            if self._limited:
                size = info.acknowledged_bytes - acknowledged
                self.on_measured(8 * size / over_s, at_least=True, few=size < _MANY_BYTES)
            self._before, self._limited = (info.acknowledged_bytes, info.busy_s), False
        return True

    def on_measured(self, rate_bps: float, *, at_least: bool, few: bool = False) -> None:
        """Note a rate of traffic; `at_least`: the path may carry more; `few`: of few bytes."""
        known, source = self._facts.rate_bps, _From.FEW if few else _From.TRAFFIC
        # Nothing got through at all, which says nothing of the rate.
        if not rate_bps:
            return
        # A small bound says less than the guess for an unknown path. Taken for the rate, it held back the
        # first bulk data that had to go there.
        if at_least and self._from is _From.NOTHING and rate_bps < UNKNOWN_RATE_BPS:
            self._facts.rate_bps = None
            return
        # The first measurement counts as it is, a bound only if it is higher, and the first rate under
        # load replaces a probe's.
        if known is None or self._from is _From.NOTHING:
            self._set(rate_bps, source)
        elif at_least:
            if rate_bps >= known:
                self._set(rate_bps, max(self._from, source))
        elif self._from is _From.PROBE:
            self._set(rate_bps, source)
        else:
            self._set(self._filter(known, rate_bps), source)

    def on_probed(self, answer: Probed, now: float) -> None:
        facts, known = self._facts, self._facts.rate_bps
        facts.measured_at_s = now
        if facts.rtt_s is None:
            facts.rtt_s = answer.round_trip_s
        if answer.at_least:
            self.on_measured(answer.rate_bps, at_least=True, few=True)
        elif known is None or self._from is _From.NOTHING:
            self._set(answer.rate_bps, _From.PROBE)
        elif self._from is _From.FEW:
            self._set(max(known, answer.rate_bps), _From.PROBE)
        else:
            self._set(self._filter(known, answer.rate_bps), self._from)
        facts.rate_at_s = now

    def _set(self, rate_bps: float, source: _From) -> None:
        self._facts.rate_bps, self._from = rate_bps, source
        if source > _From.FEW:
            self._facts.rate_at_s = self._polled_s

    def _filter(self, known_bps: float, rate_bps: float) -> float:
        jumped = not known_bps / _JUMP < rate_bps < known_bps * _JUMP
        self._jumps = self._jumps + 1 if jumped else 0
        gain = _AGILE if self._jumps > 1 else _STEADY
        return known_bps + gain * (rate_bps - known_bps)
