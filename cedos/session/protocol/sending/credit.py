"""How many IROBs may be on the way: the peer's memory, reserved so that no order can lock up.

An IROB is delivered whole, so it needs room for all of it before its first byte is sent; and one that
waits for others fills its room until they have come. Reservations therefore leave space for one IROB
of the largest size, which only the IROB with the lowest id without a reservation may use: everything it
can wait for has a reservation already. So it completes, is delivered, and gives its room back.
"""

from heapq import heappop, heappush
from typing import Final

from cedos.session.protocol.schedulers.interface import BACKGROUND_RANKS

IROB_COST: Final = 256
"""Bytes of credit that an IROB takes besides its own: what the peer needs to keep account of it."""

INITIAL_STREAM_BYTES: Final = 262_144
INITIAL_IROB_CREDIT: Final = 655_360
INITIAL_IROB_BYTES: Final = 262_144
"""What every peer accepts before its first Window frame."""

URGENT_BYTES: Final = 65_536
"""What background data leaves to foreground data: of the window, and of replay memory."""


class Credit:
    """Reservations in the order of need; all amounts since the beginning of the session."""

    __slots__ = (
        "_begun",
        "_lowest",
        "_queue",
        "_waiting",
        "credit",
        "irob_bytes",
        "reserved",
        "window_known",
    )

    def __init__(
        self,
        credit: int = INITIAL_IROB_CREDIT,
        irob_bytes: int = INITIAL_IROB_BYTES,
        *,
        reserved: int = 0,
        window_known: bool = False,
    ) -> None:
        self.credit = credit
        self.irob_bytes = irob_bytes
        self.reserved = reserved
        self.window_known = (
            window_known  # whether the peer has said more than what holds for everybody
        )
        self._begun: set[int] = set()  # without a reservation, with or without bytes
        self._lowest: list[int] = []  # the same as a heap; what left `_begun` leaves it late
        self._waiting: dict[int, int] = {}  # id -> what it needs
        self._queue: list[tuple[int, int]] = []  # (rank, id) of the waiting as a heap

    @property
    def room(self) -> int:
        """What a new IROB may cost; the spare is kept for those that were begun before it."""
        room = self.credit - self.reserved
        return room - self.irob_bytes - IROB_COST if self._begun else room

    @property
    def begun(self) -> bool:
        """Whether there is an IROB without a reservation."""
        return bool(self._begun)

    def at_once(self, cost: int, rank: int) -> bool:
        """Reserves for a new IROB that is whole; False if there is no room."""
        if cost > self.room - _left_alone(rank):
            return False
        self.reserved += cost
        return True

    def begin(self, irob: int) -> None:
        """An IROB exists that has nothing to send yet."""
        self._begun.add(irob)
        heappush(self._lowest, irob)

    def want(self, irob: int, rank: int, cost: int) -> None:
        """A begun IROB wants a reservation, or needs another amount now; `ready` gives it."""
        if irob not in self._waiting:
            heappush(self._queue, (rank, irob))
        self._waiting[irob] = cost

    def forget(self, irob: int) -> None:
        self._begun.discard(irob)
        self._waiting.pop(irob, None)

    def back(self, cost: int) -> None:
        self.reserved -= cost

    def ready(self) -> list[tuple[int, int]]:
        """Those that have a reservation now, as (id, cost): the lowest id first, then by label and id."""
        ready: list[tuple[int, int]] = []
        while self._waiting:
            while self._lowest and self._lowest[0] not in self._begun:
                heappop(self._lowest)
            while self._queue[0][1] not in self._waiting:
                heappop(self._queue)
            rank, irob = self._queue[0]
            spare = self.irob_bytes + IROB_COST + _left_alone(rank)
            if self._lowest[0] in self._waiting:
                irob, spare = self._lowest[0], 0
            cost = self._waiting[irob]
            if self.reserved + cost + spare > self.credit:
                break
            self.reserved += cost
            self.forget(irob)
            ready.append((irob, cost))
        return ready


def _left_alone(rank: int) -> int:
    return URGENT_BYTES if rank in BACKGROUND_RANKS else 0
