"""Light probes: what a path carries that nothing was sent over (dissertation, 2.3.2).

IntNW's scout measures a network when it is found, and from time to time while no data tells of it. Here
a path that rests is asked twice in a row, by a short Ping and by one with padding, each in a record of
its own. The Pongs come as far apart as the network took to carry the padding, less its first segment,
which travels with the short one. The Pong has no padding: nobody can be made to send much by little.

A probe costs what it measures: it is sent only where there is a choice between paths, one for each path,
and another only once it is less than the stated shares of the session's bytes and of time.
"""

from typing import Final

from cedos.session.protocol.control import Control
from cedos.session.protocol.events import Event, Probed
from cedos.session.protocol.frames import packing
from cedos.session.protocol.frames.frames import Pong
from cedos.session.protocol.life import SessionState
from cedos.session.protocol.schedulers.interface import ALL_RANKS, RECENT_S
from cedos.session.protocol.sending.in_flight import InFlight, PathFlight
from cedos.session.protocol.sending.sender import Sender

PAD_BYTES: Final = 12_000
"""Goes at once on a connection that rests: with its record, ten segments (RFC 6928) of the least size
that IPv6 allows. A network of 96 kbit/s is busy with it for a second, which is as long as anticipatory
scheduling lets background data be."""
FIRST_SEGMENT_BYTES: Final = 1_448
"""Of the padding at most so much arrives with the short Ping; what is counted is the rest."""
REST_S: Final = 1.0
"""A path on which nothing went either way for so long rests; shorter sessions than this need no estimate.
The end that accepted waits twice as long: if both asked at once, answers would wait behind questions."""
OLD_S: Final = 30.0
"""An estimate is asked for again after so long at the earliest."""
LEAST_BYTES_SHARE: Final = 100
"""A further probe, and each one over a metered path, waits until the session has sent so many times the
padding since the last: at most one byte in a hundred."""
LEAST_TIME_SHARE: Final = 1_000
"""And so many times as long as the path takes for one: at most a thousandth of its time."""
LEAST_SPREAD_S: Final = 0.0005
"""Pongs that come closer together may have waited for each other, or for us."""
FIRST_TOKEN: Final = 1 << 63
"""Tokens from here on belong to probes."""


class PathProbe:
    __slots__ = ("answered_s", "asked_s", "heard_bytes", "over", "sent_bytes", "token")

    def __init__(self, token: int, asked_s: float, sent_bytes: int, heard_bytes: int) -> None:
        self.token = token  # the short Ping's; the padded one has the next
        self.asked_s = asked_s
        self.sent_bytes = sent_bytes  # by the session over all its paths until then
        self.heard_bytes = heard_bytes  # over this path until then
        self.answered_s: float | None = None  # when the short Ping was answered
        self.over = False


class PathProber:
    """`events` get a `Probed` for each probe that was answered; without `wanted` there are none."""

    def __init__(
        self,
        in_flight: InFlight,
        sender: Sender,
        control: Control,
        events: list[Event],
        *,
        wanted: bool,
    ) -> None:
        self._in_flight, self._sender, self._control = in_flight, sender, control
        self._events, self._wanted = events, wanted
        self.probes: dict[int, PathProbe] = {}  # the last one over each path, by its id
        self._token = FIRST_TOKEN

    def next_at(self) -> float | None:
        """When the next probe is due, unless something else happens; None: none will be."""
        if not self._wanted or self._in_flight.only is not None or not self._free():
            return None
        sent_bytes, first = self._sent_bytes(), None
        for path in self._in_flight.paths.values():  # asked often: no more is made than needed
            if path.state.in_flight_bytes:
                continue
            at = self._due(path, sent_bytes)
            if at is not None and (first is None or at < first):
                first = at
        return first

    def tick(self, now: float) -> None:
        at = self.next_at()
        if at is None or now < at:
            return
        sent_bytes = self._sent_bytes()
        for path in self._in_flight.paths.values():
            at = self._due(path, sent_bytes)
            if at is not None and at <= now:
                self.probes[path.state.path_id] = PathProbe(
                    self._token, now, sent_bytes, path.heard_bytes
                )
                path.control.append(packing.ping(self._token))
                path.control.append(packing.ping(self._token + 1, PAD_BYTES))
                self._token += 2

    def path_lost(self, path_id: int) -> None:
        self.probes.pop(path_id, None)

    def on_pong(self, path: PathFlight, pong: Pong, now: float) -> None:
        """The second one to a probe tells the rate."""
        probe = self.probes.get(path.state.path_id)
        if probe is None or probe.over:
            return
        if pong.token == probe.token and probe.answered_s is None:
            probe.answered_s = now
        elif pong.token == probe.token + 1 and probe.answered_s is not None:
            probe.over = True
            if path.heard_bytes - probe.heard_bytes > FIRST_SEGMENT_BYTES:
                return  # the answers waited behind something else
            bits, over_s = 8 * (PAD_BYTES - FIRST_SEGMENT_BYTES), now - probe.answered_s
            close = over_s < LEAST_SPREAD_S
            if close:  # it went there within the round trip, that much is certain
                over_s = now - probe.asked_s
            if over_s > 0:
                round_trip_s = probe.answered_s - probe.asked_s
                self._events.append(
                    Probed(path.state.path_id, bits / over_s, round_trip_s, at_least=close)
                )

    def _free(self) -> bool:
        small, large, *_ = self._sender.send_queues
        return (
            not (small.waiting_bytes or large.waiting_bytes)
            and self._control.state is SessionState.OPEN
        )

    def _sent_bytes(self) -> int:
        count = 0
        for state in self._in_flight.states:
            count += state.sent_bytes
        return count

    def _due(self, path: PathFlight, sent_bytes: int) -> float | None:
        state, facts = path.state, path.state.facts
        last = self.probes.get(state.path_id)
        few = sent_bytes - (last.sent_bytes if last else 0) < LEAST_BYTES_SHARE * PAD_BYTES
        if last and few:
            return None
        if state.peer is None or path.owes_statement or path.control or state.in_flight_bytes:
            return None
        metered = facts.metered or state.peer.metered
        forbidden = state.allowed != ALL_RANKS if metered else not state.allowed
        if forbidden or (metered and few) or facts.stalled_at_s is not None:
            return None
        at = max(state.up_at_s, state.last_sent_at_s, path.heard_at_s)
        at += REST_S if path.dialled else 2 * REST_S
        at = max(at, facts.foreground_at_s + RECENT_S)
        takes_s = 8 * PAD_BYTES / facts.rate_bps if facts.rate_bps else 0.0
        pause_s = max(OLD_S, LEAST_TIME_SHARE * takes_s)
        if facts.rate_at_s is not None:
            at = max(at, facts.rate_at_s + pause_s)
        return at if last is None else max(at, last.asked_s + pause_s)
