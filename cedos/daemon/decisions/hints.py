"""Keep the hints of programs on their transfers: the owner, and how long a hint counts."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cedos.api.programs import HintAccepted, HintRequest, program_mark, program_text
from cedos.controller.events import DestinationHinted, ProgramHinted
from cedos.daemon.driver import ControllerDriver
from cedos.errors import NotFoundError, PrivilegeError
from cedos.host.profiler.flow import HintMatch, TransferHint
from cedos.host.profiler.profiler import Profiler
from cedos.model import SizeEstimate, Transfer

# The validity of a hint that names none: a forgotten hint must expire.
LIFETIME_S: Final = 86_400.0
MOST, MOST_OF_A_USER = 256, 64
_ROOT: Final = 0
_PERIOD_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Taken:
    """A hint in force; of a program its `mark`, of a destination that and its port."""

    uid: int
    until_s: float
    mark: int | None
    destination: tuple[str, int | None] | None


class Hints:
    """Hints in force. A user's oldest makes room for a newer one; of all, that of who has the most."""

    def __init__(
        self,
        profiler: Profiler,
        driver: ControllerDriver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profiler = profiler
        self._driver = driver
        self._clock = clock
        self._taken: dict[int, _Taken] = {}
        self._last_program = 0

    @property
    def in_force(self) -> Mapping[int, int]:
        """Return the hints in force: number -> user."""
        return {number: taken.uid for number, taken in self._taken.items()}

    def take(self, hint: HintRequest, uid: int) -> HintAccepted:
        now_s = self._clock()
        until_s = now_s + (LIFETIME_S if hint.lifetime_s is None else hint.lifetime_s)
        mark = hint.mark if hint.program is None else self._free_mark()
        match = HintMatch(
            destination=hint.destination,
            port=hint.port,
            server_name=hint.server_name,
            local_port=hint.local_port,
            mark=mark,
        )
        number, learned = self._profiler.hint(
            TransferHint(
                match,
                size_bytes=hint.size_bytes,
                direction=hint.direction,
                label=hint.label,
                deadline_s=hint.deadline_s,
                until_s=until_s,
            ),
            now_s,
        )
        for event in learned:
            self._driver.post(event)
        leads = hint.destination is not None and hint.size_bytes is not None
        self._taken[number] = _Taken(
            uid,
            until_s,
            mark if hint.program is not None else None,
            (hint.destination, hint.port) if hint.destination is not None and leads else None,
        )
        network = self._lead(hint, mark, until_s)
        for each in self._superfluous(uid):
            self._end(each)
        return HintAccepted(number=number, network=network, mark=mark)

    def withdraw(self, number: int, uid: int) -> None:
        """End a hint. NotFoundError: there is none; PrivilegeError: it is another user's."""
        taken = self._taken.get(number)
        if taken is None:
            raise NotFoundError(f"there is no hint {number}")
        if uid not in (taken.uid, _ROOT):
            raise PrivilegeError(f"hint {number} is of another user")
        self._end(number)

    async def run(self) -> None:
        """End hints whose time is over, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.expire()

    def expire(self) -> None:
        now_s = self._clock()
        for number in [n for n, taken in self._taken.items() if taken.until_s <= now_s]:
            self._end(number)

    def _lead(self, hint: HintRequest, mark: int | None, until_s: float) -> str | None:
        """Add the rules of a hint; return the network that it gets, if known."""
        network = None
        controller = self._driver.controller
        size_bytes = hint.size_bytes
        if hint.destination is not None and size_bytes is not None:
            size = SizeEstimate(size_bytes, size_bytes, size_bytes, "hint")
            self._driver.post(
                DestinationHinted(hint.destination, hint.port, size, hint.direction, until_s)
            )
            network = controller.destinations.network_of(hint.destination, hint.port)
        if hint.program is not None and mark is not None:
            size_bytes = size_bytes or controller.decider.choices.default_size_bytes
            transfer = Transfer(
                SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"),
                hint.direction,
                hint.label,
                hint.deadline_s,
                server_name=program_text(hint.program),
            )
            self._driver.post(ProgramHinted(mark, transfer))
            network = controller.programs.network_of(mark)
        return network

    def _end(self, number: int) -> None:
        self._profiler.unhint(number)
        taken = self._taken.pop(number, None)
        if taken is None:
            return
        if taken.mark is not None:
            self._driver.post(ProgramHinted(taken.mark, None))
        # A newer hint about the same destination stays in force.
        others = {each.destination for each in self._taken.values()}
        if taken.destination is not None and taken.destination not in others:
            self._driver.post(DestinationHinted(*taken.destination, None))

    def _superfluous(self, uid: int) -> list[int]:
        numbers = [number for number, taken in self._taken.items() if taken.uid == uid]
        if len(numbers) > MOST_OF_A_USER:
            return numbers[:1]
        if len(self._taken) <= MOST:
            return []
        most_eager, _ = Counter(taken.uid for taken in self._taken.values()).most_common(1)[0]
        return [next(n for n, taken in self._taken.items() if taken.uid == most_eager)]

    def _free_mark(self) -> int:
        there = {taken.mark for taken in self._taken.values()}
        while True:
            self._last_program += 1
            mark = program_mark(self._last_program)
            if mark not in there:
                return mark
