"""When what was received is acknowledged: with data that goes anyway, else after a delay or enough bytes.

An acknowledgement of its own costs both ends a packet, and one with every message costs them a frame
each. In between: with the data of every few milliseconds, and alone only where none goes.
"""

from typing import Final

from cedos.session.protocol.receiving.receiver import Receiver

_ALONG_S: Final = 0.005
"""Data takes an acknowledgement along, if none went for so long."""


class DelayedAcks:
    """`due` now, or (`along`) with the next data; else `at` some time, None where nothing is owed.

    At the latest after `enough_bytes`, or `delay_s` after the first that was not acknowledged.
    """

    __slots__ = ("_delay_s", "_enough_bytes", "_receiver", "_sent_s", "along", "at", "due")

    def __init__(self, receiver: Receiver, enough_bytes: int, delay_s: float) -> None:
        self.due = self.along = False
        self.at: float | None = None
        self._receiver = receiver
        self._enough_bytes = enough_bytes
        self._delay_s = delay_s
        self._sent_s = float("-inf")

    def received(self, now: float) -> None:
        receiver = self._receiver
        if not receiver.owes_acknowledgement:
            return
        if receiver.unacknowledged_bytes >= self._enough_bytes:
            self.due = True
        elif self.at is None:
            self.at = now + self._delay_s
        self.along = now - self._sent_s >= _ALONG_S

    def sent(self, now: float) -> None:
        self.due = self.along = False
        self.at = None
        self._sent_s = now

    def at_once(self) -> None:
        self.due |= self._receiver.owes_acknowledgement

    def tick(self, now: float) -> None:
        if self.at is not None and self.at <= now:
            self.at = None
            self.due = self._receiver.owes_acknowledgement
