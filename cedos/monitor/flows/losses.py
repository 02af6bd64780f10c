"""What share of its segments the host had to send again over a network lately. Pure."""

from collections import deque
from dataclasses import replace

from cedos.model import Indicator

WINDOW_S = 10.0
# Fewer segments say nothing: one lost of three is no loss rate of a third.
MIN_SEGMENTS = 20


class Losses:
    """The loss rate over the last seconds in which flows were sending.

    It is the sender's view (`tcp_info`): segments sent again, of all data segments sent. What is lost
    on the way to this host only its peers know, so a host that only downloads has none, and its
    `ping_loss` and probe trains stand in. A value stays, getting older, until there is a newer one.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self._known: Indicator | None = None

    def observe(self, sent: int, lost: int, at_s: float) -> None:
        """Takes how many segments were sent, and how many of them again, since the last call."""
        if sent <= 0 or lost < 0:
            return
        self._seen.append((at_s, sent, min(lost, sent)))
        while self._seen[0][0] <= at_s - WINDOW_S:
            self._seen.popleft()
        total = sum(sent for _, sent, _ in self._seen)
        if total >= MIN_SEGMENTS:
            self._known = Indicator(sum(lost for _, _, lost in self._seen) / total, at_s)

    def slept(self, seconds: float) -> None:
        self._seen.clear()
        if self._known is not None:
            measured_at_s = self._known.measured_at_s - seconds
            self._known = replace(self._known, measured_at_s=measured_at_s)

    def indicators(self) -> dict[str, Indicator]:
        return {} if self._known is None else {"loss": self._known}
