"""Hints of programs on their transfers: how long each counts, and where it leads their connections."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from cedos.controller.commands import FollowHint, ForgetHint, Place, SetMark
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.destinations import SteeredDestinations
from cedos.controller.events import HintGiven
from cedos.controller.hint import HintRequest, program_mark, program_text
from cedos.controller.outbox import LedConnections, Outbox
from cedos.errors import NotFoundError, PrivilegeError
from cedos.model import LAST_RULED_PORT, Context, Decision, SizeEstimate, Transfer

# The validity of a hint that names none: a forgotten hint must expire.
LIFETIME_S: Final = 86_400.0
MOST, MOST_OF_A_USER = 256, 64
_ROOT: Final = 0


@dataclass(slots=True)
class _MarkedProgram:
    """A program with a hint: its transfer, and the decision."""

    transfer: Transfer
    decision: Decision | None = None


class Programs:
    """The programs with hints about their transfers (`cedos exec`): their connections bear a mark."""

    def __init__(self, outbox: Outbox, decider: Decider) -> None:
        self._outbox = outbox
        self._decider = decider
        self._known: dict[int, _MarkedProgram] = {}
        self.led: LedConnections[int] = LedConnections()

    def add(self, mark: int, transfer: Transfer, context: Context) -> None:
        """Lead the connections of a new program, which bear `mark`."""
        self._known[mark] = _MarkedProgram(transfer)
        self.reconsider(mark, context)

    def remove(self, mark: int) -> None:
        """Lead the connections of an ended program like all others."""
        self._known.pop(mark, None)
        self._lead(mark, None)

    def decision(self, mark: int | None) -> Decision | None:
        """Return the decision that connections with this mark follow; None: they follow the default."""
        known = None if mark is None else self._known.get(mark)
        return None if known is None else known.decision

    @property
    def marks(self) -> Collection[int]:
        """Return the marks of all programs, and of ended ones whose rule may still be there."""
        return dict.fromkeys((*self._known, *self.led.withdrawn))

    def reconsider(self, mark: int, context: Context) -> None:
        """Decide on a program again, or withdraw the rule of one that has ended."""
        wanted = None
        if (known := self._known.get(mark)) is not None:
            known.decision, _ = self._decider.renew(known.transfer, context, known.decision)
            wanted = next(iter(known.decision.choice.networks), None)
        self._lead(mark, wanted)

    def _lead(self, mark: int, wanted: str | None) -> None:
        if self.led.change({mark: wanted}):
            self._outbox.give(SetMark(mark, wanted))


@dataclass(frozen=True, slots=True)
class GivenHint:
    """A hint in force.

    Attributes:
        mark: of the sockets that it is about; None: it does not matter.
        place: the destination that it leads; None: none.
    """

    uid: int
    hint: HintRequest
    until_s: float
    mark: int | None
    place: Place | None


class Hints:
    """Hints in force. A user's oldest makes room for a newer one; of all, that of who has the most.

    Attributes:
        last: the number of the newest one; 0: there was none.
    """

    def __init__(
        self,
        outbox: Outbox,
        decider: Decider,
        destinations: SteeredDestinations,
        programs: Programs,
    ) -> None:
        self._outbox = outbox
        self._decider = decider
        self._destinations = destinations
        self._programs = programs
        self._known: dict[int, GivenHint] = {}
        self._last_program = 0
        self.last = 0

    @property
    def in_force(self) -> Mapping[int, GivenHint]:
        """Return the hints in force by their numbers."""
        return self._known

    def next_timer_s(self) -> float | None:
        """Return when the first hint is over."""
        return min((each.until_s for each in self._known.values()), default=None)

    def check(self, number: int, uid: int) -> None:
        """Raise if a user may not take a hint back.

        Raises:
            NotFoundError: there is none.
            PrivilegeError: it is another user's.
        """
        known = self._known.get(number)
        if known is None:
            raise NotFoundError(f"there is no hint {number}")
        if uid not in (known.uid, _ROOT):
            raise PrivilegeError(f"hint {number} is of another user")

    def network_of(self, number: int) -> str | None:
        """Return where the connections of a hint go; None: it leads none, or no network is up."""
        known = self._known[number]
        if known.hint.program is not None and known.mark is not None:
            return self._programs.led.get(known.mark)
        return None if known.place is None else self._destinations.network_of(*known.place)

    def on_given(self, event: HintGiven, context: Context, now_s: float) -> None:
        """Take a program's hint, which gets the next number."""
        hint, place = event.hint, None
        mark = hint.mark if hint.program is None else self._free_mark(now_s)
        until_s = now_s + (LIFETIME_S if hint.lifetime_s is None else hint.lifetime_s)
        ruled = hint.port is None or hint.port <= LAST_RULED_PORT
        if hint.destination is not None and hint.size_bytes is not None and ruled:
            place = (str(ip_network(hint.destination, strict=False)), hint.port)
        self.last += 1
        self._known[self.last] = GivenHint(event.uid, hint, until_s, mark, place)
        self._outbox.give(FollowHint(self.last, hint, mark))
        if place is not None:
            name = f"{place[0]}:{place[1] or '*'}"
            transfer = Transfer(self._size(hint), hint.direction, server_name=name)
            self._destinations.on_hint(place, transfer, until_s, context)
        if hint.program is not None and mark is not None:
            transfer = Transfer(
                self._size(hint),
                hint.direction,
                hint.label,
                hint.deadline_s,
                server_name=program_text(hint.program),
            )
            self._programs.add(mark, transfer, context)
        for number in self._superfluous(event.uid):
            self.end(number)

    def on_timer(self, now_s: float) -> None:
        """End the hints whose time is over."""
        for number in [n for n, each in self._known.items() if each.until_s <= now_s]:
            self.end(number)

    def end(self, number: int) -> None:
        """End a hint, if it is in force."""
        ended = self._known.pop(number, None)
        if ended is None:
            return
        self._outbox.give(ForgetHint(number))
        if ended.hint.program is not None and ended.mark is not None:
            self._programs.remove(ended.mark)
        # A newer hint about the same destination stays in force.
        if ended.place is not None and ended.place not in {
            each.place for each in self._known.values()
        }:
            self._destinations.on_hint_ended(ended.place)

    def _size(self, hint: HintRequest) -> SizeEstimate:
        size_bytes = hint.size_bytes or self._decider.choices.default_size_bytes
        return SizeEstimate(size_bytes, size_bytes, size_bytes, "hint")

    def _superfluous(self, uid: int) -> list[int]:
        numbers = [number for number, each in self._known.items() if each.uid == uid]
        if len(numbers) > MOST_OF_A_USER:
            return numbers[:1]
        if len(self._known) <= MOST:
            return []
        most_eager, _ = Counter(each.uid for each in self._known.values()).most_common(1)[0]
        return [next(n for n, each in self._known.items() if each.uid == most_eager)]

    def _free_mark(self, now_s: float) -> int:
        """Return a mark that no program bears, also hardly one that an earlier daemon marked."""
        self._last_program = max(self._last_program, int(now_s * 1000))
        there = {each.mark for each in self._known.values() if each.hint.program is not None}
        while True:
            self._last_program += 1
            mark = program_mark(self._last_program)
            if mark not in there:
                return mark
