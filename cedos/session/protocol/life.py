"""How a session lives and ends: keep-alive, closing, failing.

Only what came in a record, authenticated, ends a session; a lost path never does by itself. Without a
path it waits for `keep_alive_s` (DTP, 3.2) and expires without telling anyone, as in D2TP (III-B).
"""

from enum import Enum

from cedos.errors import ProtocolError, SessionError
from cedos.session.protocol.frames import packing
from cedos.session.protocol.frames.frames import Close, KeepAlive, Sync


class SessionState(Enum):
    OPEN = "open"
    CLOSING = "closing"  # we have sent Close
    FINISHED = "finished"  # both have, and both know
    FAILED = "failed"


class KeepAliveTerms:
    """What both ends agreed on: each proposes, the other one may lower it. The smaller one counts."""

    __slots__ = ("_agreed", "_limit_s", "_serial", "proposed", "theirs")

    def __init__(self, seconds: int, limit_s: int) -> None:
        self._limit_s = limit_s
        self._agreed: list[int | None] = [seconds, None, None]  # from the set-up, ours, theirs
        self._serial = 0
        self.proposed: KeepAlive | None = None  # ours, until it is answered
        self.theirs: KeepAlive | None = None  # our answer to theirs, to be sent again on a new path

    @property
    def seconds(self) -> int:
        later = [each for each in self._agreed[1:] if each is not None]
        return min(later) if later else self._agreed[0] or 0

    def propose(self, seconds: int) -> None:
        """It counts once the peer has answered."""
        if not 0 <= seconds <= packing.MAX_KEEP_ALIVE_S:
            raise SessionError(
                f"a keep-alive of {seconds} s; allowed are 0 to {packing.MAX_KEEP_ALIVE_S}"
            )
        self._serial += 1
        self.proposed = KeepAlive(False, self._serial, seconds)

    def receive(self, frame: KeepAlive) -> bool:
        """A proposal or an answer; whether what is agreed has changed."""
        before = self.seconds
        if not frame.agreed:
            seconds = min(frame.seconds, self._limit_s)
            self.theirs = KeepAlive(True, frame.serial, seconds)
            self._agreed[2] = seconds
        elif self.proposed is not None and frame.serial == self.proposed.serial:
            if frame.seconds > self.proposed.seconds:
                raise ProtocolError(
                    f"a keep-alive of {frame.seconds} s in answer to {self.proposed.seconds} s proposed"
                )
            self._agreed[1] = frame.seconds
            self.proposed = None
        return self.seconds != before


class CloseHandshake:
    """Close says what there is in all, Closed that all of it has come."""

    __slots__ = ("answered", "asked", "confirmed", "theirs")

    def __init__(self) -> None:
        self.asked = False  # we have closed
        self.confirmed = False  # the peer has everything
        self.theirs: Close | None = None
        self.answered = False  # everything of the peer's is here, and we said so

    def receive(self, frame: Close) -> None:
        if self.theirs is not None and frame != self.theirs:
            raise ProtocolError(f"a session closed at {self.theirs} closes at {frame}")
        self.theirs = frame

    def check(self, stream_top: int, irob_top: int) -> None:
        theirs = self.theirs
        if theirs and (stream_top > theirs.stream_end + 1 or irob_top > theirs.irob_end):
            raise ProtocolError("the peer sends more than it said there would be when it closed")

    def complete(self, stream_floor: int, irob_floor: int) -> bool:
        theirs = self.theirs
        return (
            theirs is not None
            and stream_floor > theirs.stream_end
            and irob_floor >= theirs.irob_end
        )


def lost_state(theirs: Sync, ours: Sync, known: Sync, sent: tuple[int, int]) -> str | None:
    """Who has lost what the other one relies on, from the first Sync on a path after none was up.

    `ours` are this end's positions now, `known` when the path was dialled; `sent` is behind the last byte
    and the last IROB that this end has sent.
    """
    if theirs.stream_received < known.stream_kept or theirs.irobs_received < known.irobs_kept:
        return "the peer has lost what it had acknowledged"
    if (
        theirs.stream_kept > ours.stream_received
        or theirs.irobs_kept > ours.irobs_received
        or theirs.stream_received > sent[0]
        or theirs.irobs_received > sent[1]
    ):
        return "this end has lost what it had sent or acknowledged"
    return None
