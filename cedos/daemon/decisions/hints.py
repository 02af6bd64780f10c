"""Keep the hints of programs on their transfers: the owner, and how long a hint counts."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cedos.api.programs import HintAccepted, HintRequest, program_mark, program_text
from cedos.daemon.decisions.director import Director
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.errors import NotFoundError, PrivilegeError
from cedos.model import Context, SizeEstimate, Transfer
from cedos.profiler.flow import HintMatch, TransferHint
from cedos.profiler.profiler import Profiler

LIFETIME_S: Final = 86_400.0
"""The validity of a hint that names none: a forgotten hint must expire."""
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
        flows: LivingFlows,
        director: Director,
        context: Callable[[], Context],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profiler = profiler
        self._flows = flows
        self._director = director
        self._context = context
        self._clock = clock
        self._taken: dict[int, _Taken] = {}
        self._last_program = 0

    @property
    def in_force(self) -> Mapping[int, int]:
        """Return the hints in force: number -> user."""
        return {number: taken.uid for number, taken in self._taken.items()}

    async def take(self, hint: HintRequest, uid: int) -> HintAccepted:
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
            self._flows.on_size(event)
        async with self._director.turn:
            leads = hint.destination is not None and hint.size_bytes is not None
            self._taken[number] = _Taken(
                uid,
                until_s,
                mark if hint.program is not None else None,
                (hint.destination, hint.port) if hint.destination is not None and leads else None,
            )
            network = await self._lead(hint, mark, until_s)
            for each in self._superfluous(uid):
                await self._end(each)
        return HintAccepted(number=number, network=network, mark=mark)

    async def withdraw(self, number: int, uid: int) -> None:
        """End a hint. NotFoundError: there is none; PrivilegeError: it is another user's."""
        taken = self._taken.get(number)
        if taken is None:
            raise NotFoundError(f"there is no hint {number}")
        if uid not in (taken.uid, _ROOT):
            raise PrivilegeError(f"hint {number} is of another user")
        async with self._director.turn:
            await self._end(number)

    async def run(self) -> None:
        """End hints whose time is over, until it is cancelled."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            await self.expire()

    async def expire(self) -> None:
        now_s = self._clock()
        over = [number for number, taken in self._taken.items() if taken.until_s <= now_s]
        if over:
            async with self._director.turn:
                for number in over:
                    await self._end(number)

    async def _lead(self, hint: HintRequest, mark: int | None, until_s: float) -> str | None:
        """Add the rules of a hint; return the network that it gets, if known."""
        network = None
        size_bytes = hint.size_bytes
        if hint.destination is not None and size_bytes is not None:
            network = await self._director.destinations.hinted(
                hint.destination,
                hint.port,
                SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"),
                hint.direction,
                until_s,
                self._context(),
            )
        if hint.program is not None and mark is not None:
            size_bytes = size_bytes or self._director.decider.choices.default_size_bytes
            transfer = Transfer(
                SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"),
                hint.direction,
                hint.label,
                hint.deadline_s,
                server_name=program_text(hint.program),
            )
            network = await self._director.programs.add(mark, transfer, self._context())
        return network

    async def _end(self, number: int) -> None:
        self._profiler.unhint(number)
        taken = self._taken.pop(number, None)
        if taken is None:
            return
        if taken.mark is not None:
            await self._director.programs.remove(taken.mark)
        # A newer hint about the same destination stays in force.
        others = {each.destination for each in self._taken.values()}
        if taken.destination is not None and taken.destination not in others:
            await self._director.destinations.hint_ended(*taken.destination, self._context())

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
