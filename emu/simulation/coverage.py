"""When a network carries anything, and what the host believes of it.

A second of less than 0.1 Mbit/s towards the client is without coverage, as in the collections of
places. The host notices that a network is gone only some seconds later (dissertation, 4.5.4), and
not at all where coverage returns before that; it sees at once that a network is there again.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from emu.places.stats import OUTAGE_BPS, rates_bps, runs
from emu.places.traces import Trace

DETECTION_S = 3.0
"""Our figure for the dissertation's "several seconds"."""


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
        if self._all or self._never:
            return []
        gaps = list(self.bare)
        wrapped_s = 0.0
        if len(gaps) > 1 and gaps[0][0] == 0.0 and gaps[-1][1] >= self.period_s:
            # The gap at the end goes on in the next period.
            wrapped_s = gaps[0][1]
            gaps = [*gaps[1:-1], (gaps[-1][0], self.period_s + wrapped_s)]
        lost = [(begin_s, end_s) for begin_s, end_s in gaps if end_s - begin_s > detection_s]
        found = []
        for index, (begin_s, _) in enumerate(lost):
            since_s = lost[index - 1][1] - (self.period_s if index == 0 else 0.0)
            found.append(Contact(since_s, begin_s, begin_s + detection_s))
        return found

    def covered_at(self, at_s: float) -> bool:
        within_s = at_s % self.period_s
        return not any(begin_s <= within_s < end_s for begin_s, end_s in self.bare)

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
