"""A network without its clock: when would these bytes have been there?

A trace's delivery opportunities are used as Mahimahi uses them: a packet waits for the next one
that is free, outages included. TCP is a window that begins with ten packets and grows by one for
each that is acknowledged; without losses it keeps growing, since the link's queue is what limits
it. Simulated, and labelled so where it is shown; it was held against live emulation
(`notebooks/meatballs.ipynb`).
"""

import math
import statistics
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cedos.errors import PlaceError
from cedos.model import NetworkKind
from emu.places.places import Place
from emu.places.stats import OUTAGE_BPS, rates_bps, runs
from emu.places.traces import Trace
from emu.testbed.access import Access

# The dissertation's "several seconds"; the number is ours.
DETECTION_S = 3.0


@dataclass(frozen=True, slots=True)
class Contact:
    """A time with coverage: from when, to when, and when the host notices the end (seconds).

    `noticed_s` is infinite where nothing is lost.
    """

    begin_s: float
    end_s: float
    noticed_s: float


class Coverage:
    """The contacts of one trace, which repeats for ever.

    Args:
        down: opportunities towards the client.
        detection_s: how long after the end of coverage the host notices it, in seconds.
    """

    def __init__(self, down: Trace, detection_s: float = DETECTION_S) -> None:
        if not (math.isfinite(detection_s) and detection_s >= 0):
            raise ValueError(f"a loss cannot be noticed after {detection_s} s")
        self.period_s = down.period_s
        rates = rates_bps(down, max(1, math.ceil(self.period_s)))
        bare = runs(rates < OUTAGE_BPS)
        self._all = not bare
        self._never = len(bare) == 1 and bare[0][1] >= len(rates)
        self.bare: Sequence[tuple[float, float]] = [
            (float(first), min(float(first + length), self.period_s)) for first, length in bare
        ]
        self.contacts: Sequence[Contact] = self._between(detection_s)
        self._begins = [contact.begin_s for contact in self.contacts]

    def _between(self, detection_s: float) -> list[Contact]:
        """Contacts of the first period as the host sees them: short gaps are no end."""
        # Without a change of coverage there is no contact to tell apart.
        if self._all or self._never:
            return []
        gaps = list(self.bare)
        wrapped_s = 0.0
        if len(gaps) > 1 and gaps[0][0] == 0.0 and gaps[-1][1] >= self.period_s:
            # The gap at the end goes on in the next period.
            wrapped_s = gaps[0][1]
            gaps = [*gaps[1:-1], (gaps[-1][0], self.period_s + wrapped_s)]
        # Only gaps that last longer than the host needs to notice end a contact.
        lost = [(begin_s, end_s) for begin_s, end_s in gaps if end_s - begin_s > detection_s]
        found = []
        for index, (begin_s, _) in enumerate(lost):
            # A contact begins where the loss before it ended, for the first one in the period before.
            since_s = lost[index - 1][1] - (self.period_s if index == 0 else 0.0)
            found.append(Contact(since_s, begin_s, begin_s + detection_s))
        return found

    def contact_at(self, at_s: float) -> Contact | None:
        """Return the contact that the host believes to be in; None where it knows that there is none."""
        if self._never:
            return None
        if not self.contacts:
            return Contact(-math.inf, math.inf, math.inf)
        periods, within_s = divmod(at_s, self.period_s)
        # A contact may reach into the period from the one before, or begin in the next one.
        for shift in (0.0, 1.0, -1.0):
            index = bisect_right(self._begins, within_s + shift * self.period_s) - 1
            if index < 0:
                continue
            contact = self.contacts[index]
            back_s = (periods - shift) * self.period_s
            if contact.begin_s + back_s <= at_s < contact.noticed_s + back_s:
                return Contact(
                    contact.begin_s + back_s, contact.end_s + back_s, contact.noticed_s + back_s
                )
        return None

    def next_change_s(self, at_s: float) -> float:
        """Return the next instant after `at_s` at which the host's belief changes; infinite: never."""
        contact = self.contact_at(at_s)
        if contact is not None:
            return contact.noticed_s
        if not self.contacts:
            return math.inf
        periods = math.floor(at_s / self.period_s)
        return min(
            contact.begin_s + shift * self.period_s
            for contact in self.contacts
            for shift in (periods - 1, periods, periods + 1, periods + 2)
            if contact.begin_s + shift * self.period_s > at_s
        )


PAYLOAD_BYTES = 1448
# The bytes of IPv4, TCP and its timestamps, and so of a bare acknowledgement.
HEADER_BYTES = 52

# Packets of the initial window (RFC 6928), what Linux uses.
FIRST_WINDOW = 10


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request and its response over one network; instants in seconds of the replay."""

    start_s: float  # when the first packet was sent
    # When the last byte of the response was there; infinite: not before the loss.
    completed_at_s: float
    lost_at_s: float  # when the host noticed that the network was gone, infinite where it stayed
    served_at_s: float  # when the request was complete at the server; infinite: never
    # Per packet sent, when it had passed the link, and its bytes on the wire.
    up: tuple[tuple[float, int], ...]
    down: tuple[tuple[float, int], ...]  # the same for packets received

    @property
    def ended_at_s(self) -> float:
        return min(self.completed_at_s, self.lost_at_s)

    def bytes_until(self, at_s: float = math.inf) -> tuple[int, int]:
        """Return bytes on the wire, up and down, that had passed the link by `at_s`."""
        until_s = min(at_s, self.ended_at_s)
        up, down = (
            sum(size for passed_s, size in way if passed_s <= until_s)
            for way in (self.up, self.down)
        )
        return up, down

    def received_bytes(self, at_s: float = math.inf) -> int:
        """Return bytes of the response, headers not counted, that were there by `at_s`."""
        until_s = min(at_s, self.ended_at_s)
        return sum(size - HEADER_BYTES for passed_s, size in self.down if passed_s <= until_s)


class ReplayedNetwork:
    """A network replayed from its trace's delivery opportunities, without a clock.

    Two transfers at the same time each see the whole rate: pause one for the other.

    Args:
        access: traces and base RTT; the traces repeat for ever.
        detection_s: how late the host notices a loss of coverage, in seconds.
    """

    def __init__(self, access: Access, *, detection_s: float = DETECTION_S) -> None:
        self.access = access
        self.coverage = Coverage(access.down, detection_s)
        self._down = _Opportunities(access.down)
        self._up = self._down if access.up is access.down else _Opportunities(access.up)

    @property
    def kind(self) -> NetworkKind:
        return self.access.kind

    @property
    def rtt_s(self) -> float:
        return self.access.rtt_s

    @cached_property
    def mean_bps(self) -> float:
        return self.access.down.mean_bps

    def up_at(self, at_s: float) -> bool:
        return self.coverage.contact_at(at_s) is not None

    def attached_since_s(self, at_s: float) -> float | None:
        """Return when the contact of this instant began; None: the host knows that there is none."""
        contact = self.coverage.contact_at(at_s)
        return None if contact is None else contact.begin_s

    def next_change_s(self, at_s: float) -> float:
        return self.coverage.next_change_s(at_s)

    def contacts(self) -> tuple[Contact, ...]:
        """Return the contacts of one period, as the host sees them; none where it never changes."""
        return tuple(self.coverage.contacts)

    def exchange(
        self,
        start_s: float,  # when, in seconds of the replay
        up_bytes: int,  # of the request; at least one
        down_bytes: int,  # of the response; at least one
        *,
        # Seconds from the last byte of the request to the first of the response.
        server_s: float = 0.0,
        handshake: bool = False,  # whether the connection is new (one round trip more)
    ) -> Exchange:
        """Send a request and receive its response.

        ValueError: nothing to send or to receive, or no network that the host could use.
        """
        if up_bytes < 1 or down_bytes < 1:
            raise ValueError(f"{up_bytes} bytes up and {down_bytes} down are no exchange")
        contact = self.coverage.contact_at(start_s)
        if contact is None:
            raise ValueError(f"the host is not attached at {start_s:g} s")
        up: list[tuple[float, int]] = []
        down: list[tuple[float, int]] = []
        ready_s = start_s
        limit_s = contact.noticed_s
        if handshake:
            ready_s = self._round(ready_s, HEADER_BYTES, up, down)
        # The request goes up, and reaches the server half a round trip after its last packet.
        sent = self._stream(self._up, ready_s, up_bytes, limit_s)
        up += sent
        served_s = sent[-1][0] + self.rtt_s / 2
        received = self._stream(
            self._down, served_s + server_s + self.rtt_s / 2, down_bytes, limit_s
        )
        down += received
        # Every second packet is acknowledged, in both directions.
        up += [(passed_s, HEADER_BYTES) for passed_s, _ in received[1::2]]
        down += [(passed_s + self.rtt_s, HEADER_BYTES) for passed_s, _ in sent[1:-1:2]]
        completed_s = received[-1][0]
        # What completes only after the host has noticed the loss counts as lost.
        lost = completed_s > limit_s
        return Exchange(
            start_s,
            math.inf if lost else completed_s,
            limit_s if lost else math.inf,
            served_s if served_s <= limit_s else math.inf,
            tuple(up),
            tuple(down),
        )

    def _round(
        self, at_s: float, size: int, up: list[tuple[float, int]], down: list[tuple[float, int]]
    ) -> float:
        sent_s = self._up.next_s(at_s)
        back_s = self._down.next_s(sent_s + self.rtt_s)
        up.append((sent_s, size))
        down.append((back_s, size))
        return back_s

    def _stream(
        self, way: "_Opportunities", ready_s: float, size: int, limit_s: float
    ) -> list[tuple[float, int]]:
        """Return when each packet has passed the link, with its bytes on the wire; at least one packet.

        `ready_s` is when the first window is at the link; a packet past `limit_s` is the last one.
        """
        passed: list[tuple[float, int]] = []
        index, at_s, number = -1, ready_s, 0
        while size > 0:
            if number >= FIRST_WINDOW:
                at_s = passed[(number - FIRST_WINDOW) // 2][0] + self.rtt_s
            index = way.index_after(at_s, index)
            payload = min(size, PAYLOAD_BYTES)
            passed.append((way.at_s(index), payload + HEADER_BYTES))
            if passed[-1][0] > limit_s:
                break
            size -= payload
            number += 1
        return passed


class _Opportunities:
    __slots__ = ("_period_ms", "_times_ms")

    def __init__(self, trace: Trace) -> None:
        # An array of its own: millions of them, looked up one by one, which numpy is slow at.
        self._times_ms = array("q", trace.times_ms.tobytes())
        self._period_ms = trace.period_ms

    def at_s(self, index: int) -> float:
        periods, within = divmod(index, len(self._times_ms))
        return (periods * self._period_ms + self._times_ms[within]) / 1000

    def index_after(self, at_s: float, used: int) -> int:
        """Return the first opportunity at `at_s` or later that comes after the one numbered `used`."""
        if used >= 0 and self.at_s(used + 1) >= at_s:
            return used + 1
        periods, within_ms = divmod(at_s * 1000 - 1e-6, self._period_ms)
        # What lies at the end of a period is found there, not at the instant 0 of the next.
        found = int(periods) * len(self._times_ms) + bisect_left(self._times_ms, within_ms)
        return max(found, used + 1)

    def next_s(self, at_s: float) -> float:
        return self.at_s(self.index_after(at_s, -1))


def described(network: ReplayedNetwork) -> dict[str, Any]:
    """Return how a network is in one period: its coverage, rate and contacts."""
    bare_s = sum(end_s - begin_s for begin_s, end_s in network.coverage.bare)
    lengths_s = [each.end_s - each.begin_s for each in network.contacts()]
    return {
        "coverage": round(1.0 - bare_s / network.coverage.period_s, 4),
        "rtt_s": round(network.rtt_s, 5),
        "mean_mbps": round(network.mean_bps / 1e6, 2),
        "contacts": len(lengths_s),
        "contact_median_s": round(statistics.median(lengths_s), 1) if lengths_s else None,
    }


def joined(places: Sequence[Place]) -> dict[str, Access]:
    """Return both networks of all places, each place from its beginning for `Place.common_s`.

    What was measured at the same time stays at the same time. One base RTT per network, since an
    emulated link has one: the median of the places'.

    Returns:
        `wifi` and `cellular`, for the simulation and the emulator alike.

    Raises:
        PlaceError: no place at all.
    """
    if not places:
        raise PlaceError("a joined place is made of at least one place")
    found = {}
    for name in places[0].networks:
        parts = [place.networks[name] for place in places]
        lengths_ms = [place.common_s * 1000 for place in places]
        down = concatenated([part.down for part in parts], lengths_ms)
        up = down if all(part.up is part.down for part in parts) else None
        if up is None:
            up = concatenated([part.up for part in parts], lengths_ms)
        rtt_s = statistics.median([part.rtt_s for part in parts])
        found[name] = Access(NetworkKind(name), up=up, down=down, rtt_s=rtt_s)
    return found


def concatenated(traces: Sequence[Trace], lengths_ms: Sequence[int]) -> Trace:
    """Return traces one after another, each repeated or cut to its length."""
    times, begin_ms = [], 0
    for trace, length_ms in zip(traces, lengths_ms, strict=True):
        # The last line of a file marks its period: it is no packet of what follows.
        whole = trace.repeated(length_ms / 1000).times_ms
        times.append(whole[whole < length_ms] + begin_ms)
        begin_ms += length_ms
    return Trace(np.concatenate(times), begin_ms)
