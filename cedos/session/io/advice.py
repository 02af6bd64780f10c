"""The daemon's advice: which networks each label of a session may use.

A session knows what its own connections measured. The daemon knows the radios, the budgets and the price
of waiting, and predicts. So the dialling end asks the daemon about each label in use, and lets the label
only onto the chosen networks, in both directions (`Session.allow`). No data waits for an answer: before
the first one, without one, and once the answer is old, the session's own scheduler has all paths.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from cedos.model import Direction, Label, NetworkKind, Strategy, StrategyKind
from cedos.session.protocol.schedulers.interface import LABELS
from cedos.session.protocol.schedulers.plain import DecidedScheduler, permissions
from cedos.session.protocol.session import Session

# The largest size in a question: a daemon refuses absurd sizes.
MOST_TOLD_BYTES: Final = 10**12

# Announcements within this fraction of `valid_s` count as one, which bounds the table.
_PARTS: Final = 8


@dataclass(slots=True)
class _Told:
    at_s: float
    by_rank: dict[Direction, list[int]]


class ToldSizes:
    """The announced sizes by rank; an announcement is valid for `valid_s`."""

    def __init__(self, valid_s: float) -> None:
        self._valid_s = valid_s
        self._parts: deque[_Told] = deque(maxlen=_PARTS)

    def add(self, now: float, rank: int, size_bytes: int, direction: Direction) -> None:
        if not self._parts or now - self._parts[-1].at_s >= self._valid_s / _PARTS:
            self._parts.append(_Told(now, _no_bytes()))
        self._parts[-1].by_rank[direction][rank] += size_bytes

    def bytes_by_rank(self, now: float) -> dict[Direction, list[int]]:
        while self._parts and now - self._parts[0].at_s >= self._valid_s:
            self._parts.popleft()
        found = _no_bytes()
        for part in self._parts:
            for direction, sizes in part.by_rank.items():
                for rank, size in enumerate(sizes):
                    found[direction][rank] = min(found[direction][rank] + size, MOST_TOLD_BYTES)
        return found


def _no_bytes() -> dict[Direction, list[int]]:
    return {direction: [0] * len(LABELS) for direction in Direction}


# The time between two questions about a label in use.
ASK_S: Final = 2.0
# The interval at which the session looks for a new label or a larger amount, s.
_LOOK_S: Final = 0.1
# The lifetime of an answer. A daemon that ended leaves no trace.
VALID_S: Final = 6.0
_LEAST_BYTES: Final = 1_000
# A reader with data for the first time is in no hurry until only the second time is left.
_ENOUGH_S, _LITTLE_S = 1.0, 0.5
# The deadline of a question about data that is in no hurry.
_NO_HURRY_S: Final = 60.0
# An upload larger than this fraction of what is received does not wait with it.
_MOST_BESIDE: Final = 8

_URGENT: Final = 0  # foreground, small


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the daemon; coarse, so that many sessions ask the same one.

    `size_bytes` is rounded up to a power of four times 1000; an announced size is rounded down by an
    eighth at most. `deadline_s` is rounded down to whole seconds. `waited_s`, rounded down to tenths, is
    the time for which data sent over the interface `sent_over` has had no answer. `programs` wait for the
    data, each for parts of it.
    """

    label: Label
    size_bytes: int
    direction: Direction = Direction.UP
    deadline_s: float | None = None
    sent_over: str | None = None
    waited_s: float = 0.0
    programs: int = 1


@dataclass(frozen=True, slots=True)
class KnownNetwork:
    """The daemon's knowledge of an interface's network."""

    kind: NetworkKind
    metered: bool


class Chooser(Protocol):
    """The daemon, as a session sees it: it knows more of this host's networks."""

    async def learn(self) -> None:
        """Make `network` know the host's networks as they are now. Raises nothing."""
        ...

    def network(self, interface: str) -> KnownNetwork | None:
        """Return what is known of an interface; None: the session judges by itself."""
        ...

    def forget(self) -> None:
        """Drop what was chosen: networks have changed."""
        ...

    async def choose(self, question: Question) -> Strategy | None:
        """Return the strategy, its networks as interfaces; None: no decision. Raises nothing."""
        ...

    def last_decision(self, label: Label) -> int | None:
        """Return the number of the decision about a label that is valid now (`cedos explain`)."""
        ...


class Adviser(NamedTuple):
    """The chooser of networks for each label, and the scheduler that follows it.

    `thrifty`: labels without a decision use metered networks only if there are no others.
    """

    scheduler: DecidedScheduler
    chooser: Chooser
    thrifty: bool = False


@dataclass(frozen=True, slots=True)
class Readers:
    """The programs whose data a session's messages carry.

    `lasts_s` has, by rank, for how many seconds the reader can live on what has arrived; readers of
    other ranks wait. `waiting`: by rank and direction, how many wait for the rest of large data.
    """

    lasts_s: Mapping[int, float] = field(default_factory=dict)
    waiting: Mapping[tuple[int, Direction], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """The progress of a session's transfer, and the `readers` of its messages.

    `expected_bytes` is the whole of the peer's stream (0: unknown), `deadline_at_s` when all of it is
    wanted, `stream_rank` its label's rank.
    """

    received_bytes: int
    expected_bytes: int
    deadline_at_s: float | None
    stream_rank: int
    readers: Readers = field(default_factory=Readers)


class Advice:
    """The questions of one session, while it sends or receives, and their answers on its paths.

    `changed` is called when paths may be used otherwise than before.
    """

    def __init__(
        self,
        core: Session,
        adviser: Adviser,
        progress: Callable[[], TransferProgress],
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._scheduler, self._chooser, self._thrifty = adviser
        self._progress, self._changed = progress, changed
        self._loop = asyncio.get_running_loop()
        # By rank: the chosen strategy, and until when it is valid.
        self._strategies: list[Strategy | None] = [None] * len(LABELS)
        self._until_s = [float("-inf")] * len(LABELS)
        # The counters at the last check, and by rank the size that was asked about last.
        self._received = 0
        self._irobs_bytes = list(core.receiver.irobs_bytes)
        self._asked_bytes = [0] * len(LABELS)
        self._sent_bytes = self._sent_ever()
        self._told = ToldSizes(ASK_S)
        self._soon = False
        # The ranks whose readers have enough data for a while.
        self._unhurried: set[int] = set()
        self._timer: asyncio.Handle | None = None
        # The questions without an answer yet: by rank, and the one about urgent data of a pausing path.
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._resending: asyncio.Task[None] | None = None
        self._checked_at_s = float("-inf")
        self._closed = False
        self._scheduler.on_use(self.note_use)

    def apply(self) -> None:
        """Let labels onto paths as was chosen."""
        now = self._loop.time()
        # 1. The daemon knows better what kind a network is, and whether it is metered.
        for path in self._core.paths:
            known = self._chooser.network(path.facts.network)
            if known is not None:
                path.facts.kind, path.facts.metered = known.kind, known.metered
        # 2. Old answers are forgotten.
        for rank, until_s in enumerate(self._until_s):
            if until_s <= now:
                self._strategies[rank] = None
        # 3. Labels that are sent twice are repeated by the scheduler, and all labels get their masks.
        self._scheduler.repeat(
            sum(
                1 << rank
                for rank, strategy in enumerate(self._strategies)
                if strategy is not None and strategy.kind is StrategyKind.REDUNDANT
            )
        )
        paths = {path.path_id: path for path in self._core.paths}
        moved = [
            self._core.allow(number, mask, now)
            for number, mask in permissions(self._strategies, paths, thrifty=self._thrifty).items()
        ]
        if any(moved):
            self._changed()

    def paths_changed(self) -> None:
        """Let labels onto the paths of now, and ask about them: the choice was made without some."""
        self._asked_bytes = [0] * len(LABELS)
        self.apply()

    def networks_changed(self) -> None:
        """Ask anew: the daemon knows other networks, or other things of them."""
        self._chooser.forget()
        self.paths_changed()

    def note_use(self) -> None:
        """Note that data was sent or received: check soon, and then now and again."""
        if self._timer is None:
            self._check_soon()

    def announce(self, rank: int, size_bytes: int, direction: Direction) -> None:
        """Ask now about an announced size of a label.

        It is valid for `ASK_S`, or until more data is there: the data itself shows then how much
        there is.
        """
        self._told.add(self._loop.time(), rank, size_bytes, direction)
        self._check_soon()

    def _check_soon(self) -> None:
        if self._closed or self._soon:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._soon = True
        self._timer = self._loop.call_soon(self._check)

    def _sent_ever(self) -> int:
        return sum(path.sent_bytes for path in self._core.paths)

    def _look(self) -> None:
        """Check if it is time to, or if a label carried more than was asked about."""
        now = self._loop.time()
        # Did a label receive more than was asked about, or has it begun to hurry?
        counted = zip(self._core.receiver.irobs_bytes, self._irobs_bytes, strict=True)
        came = any(
            rank not in self._asking
            and count - before > (0 if self._strategies[rank] is None else self._asked_bytes[rank])
            for rank, (count, before) in enumerate(counted)
        )
        went = self._sent_ever() - self._sent_bytes > max(self._asked_bytes)
        if self._unhurried and self._note_hurry(self._progress()):
            came = True
        if came or went or now - self._checked_at_s >= ASK_S:
            self._check()
        else:
            self._timer = self._loop.call_later(min(_LOOK_S, ASK_S), self._look)

    def _check(self) -> None:
        """Ask about the labels in use; stop once none is and no answer is valid any more.

        Between regular checks it asks only about what exceeds the last question.
        """
        now, self._soon = self._loop.time(), False
        # 1. Count what each label sent and received since the last check.
        regular = now - self._checked_at_s >= ASK_S
        told = self._told.bytes_by_rank(now)
        # Deferred data still waits, though no new data of its label does.
        queues = self._core.sender.send_queues
        waited = list(
            map(max, self._scheduler.take_waiting(), (queue.waiting_bytes for queue in queues))
        )
        progress = self._progress()
        received = progress.received_bytes - self._received
        irobs_bytes = list(self._core.receiver.irobs_bytes)
        came = [now - before for now, before in zip(irobs_bytes, self._irobs_bytes, strict=True)]
        sent = self._sent_ever() - self._sent_bytes
        # Paths count sent bytes of all labels together. Most likely they belong to the label of which
        # most waited.
        if any(waited):
            most = waited.index(max(waited))
            waited[most] = max(waited[most], sent)
        # 2. Ask about each label in use: regularly, or if it carries more than was asked about. With one
        # path there is no choice to ask for.
        self._note_hurry(progress)
        in_use = _in_use(waited, came, received, progress, told, self._unhurried)
        for rank, size, direction in in_use:
            more = size > self._asked_bytes[rank] or self._strategies[rank] is None
            if rank not in self._asking and (regular or more) and len(self._core.paths) > 1:
                left_s = None
                if progress.deadline_at_s is not None:
                    left_s = max(1.0, (progress.deadline_at_s - now) // 1.0)
                elif direction is Direction.DOWN and rank in self._unhurried:
                    # The answer holds for both directions: a large upload beside it must not wait.
                    goes = max(waited[rank], told[Direction.UP][rank])
                    left_s = _NO_HURRY_S if goes < size // _MOST_BESIDE else None
                waiting = progress.readers.waiting.get((rank, direction), 0)
                programs = max(waiting, 1)
                question = Question(LABELS[rank], size, direction, left_s, programs=programs)
                self._asked_bytes[rank] = max(size, _at_most(told[direction][rank]))
                self._asking[rank] = self._loop.create_task(self._ask(rank, question))
        # 3. Apply what is valid, and check again while anything is in use.
        self.apply()
        idle = not (in_use or any(self._strategies))
        if regular:
            self._checked_at_s, self._sent_bytes = now, self._sent_ever()
            self._received, self._irobs_bytes = progress.received_bytes, irobs_bytes
            for rank in set(range(len(LABELS))) - {rank for rank, *_ in in_use}:
                self._asked_bytes[rank] = 0
        self._timer = None if idle else self._loop.call_later(min(_LOOK_S, ASK_S), self._look)

    def _note_hurry(self, progress: TransferProgress) -> bool:
        """Return whether a label has begun to hurry: it is asked about anew."""
        lasts_s = progress.readers.lasts_s
        hurried = {rank for rank in self._unhurried if lasts_s.get(rank, 0.0) < _LITTLE_S}
        self._unhurried -= hurried
        self._unhurried |= {rank for rank, each in lasts_s.items() if each >= _ENOUGH_S}
        for rank in hurried:
            self._asked_bytes[rank] = 0
        return bool(hurried)

    def path_pauses(self, path_id: int, waited_s: float) -> None:
        """Ask whether urgent data of a path that pauses is sent over another path as well.

        Only small data that a person waits for is sent twice by choice. Other data is sent elsewhere once
        the path counts as silent.
        """
        flight = self._core.in_flight.paths[path_id]
        size = sum(
            piece.size for piece in flight.flight if piece.rank == _URGENT and not piece.done
        )
        if size and len(self._core.paths) > 1 and not self._closed and not self._resending:
            question = Question(
                LABELS[_URGENT],
                _round_size(size),
                sent_over=flight.state.facts.network,
                waited_s=waited_s * 10.0 // 1.0 / 10.0,
            )
            self._resending = self._loop.create_task(self._ask_whether_twice(question))

    async def _ask_whether_twice(self, question: Question) -> None:
        try:
            strategy = await self._chooser.choose(question)
        finally:
            self._resending = None
        if strategy is None or self._closed or set(strategy.networks) <= {question.sent_over}:
            return
        # The first copy is on its way already, so its network is part of the strategy.
        networks = dict.fromkeys((question.sent_over or "", *strategy.networks))
        self._strategies[_URGENT] = Strategy(StrategyKind.REDUNDANT, tuple(networks))
        self._until_s[_URGENT] = self._loop.time() + VALID_S
        self.apply()
        self._changed()

    async def _ask(self, rank: int, question: Question) -> None:
        try:
            strategy = await self._chooser.choose(question)
        finally:
            self._asking.pop(rank, None)
        if strategy is not None and not self._closed:
            self._strategies[rank] = strategy
            self._until_s[rank] = self._loop.time() + VALID_S
            self.apply()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._resending is not None:
            self._resending.cancel()
        for task in list(self._asking.values()):
            task.cancel()


def _in_use(
    waited: list[int],
    came: list[int],
    received: int,
    progress: TransferProgress,
    told: dict[Direction, list[int]],
    unhurried: Collection[int],
) -> list[tuple[int, int, Direction]]:
    """Return the labels in use, the coarse bytes that they are about to carry, and the main direction.

    Data of unknown length is expected to last as long again as it has (the profiler assumes the
    same). An answer on the stream has the label of its question; IROBs have their own. Since the last
    check, by rank: `waited` is what was to be sent or was sent, `came` the bytes of IROBs, `told` the
    announced sizes; `received` is what came on the stream. A transfer that is `unhurried` goes on at
    its reader's pace, so no faster than before.
    """
    # The peer may be about to send as much again, or the rest of a known size.
    coming = max(received, progress.expected_bytes - progress.received_bytes)
    answered = received > sum(waited)
    down, up = told[Direction.DOWN], told[Direction.UP]
    ranks = {
        rank for rank in range(len(LABELS)) if waited[rank] or came[rank] or down[rank] or up[rank]
    }
    if received:
        ranks.add(progress.stream_rank)
    found = []
    # The direction with more bytes is the main one.
    for rank in sorted(ranks):
        comes, goes = came[rank] + (coming if answered else 0), waited[rank]
        if max(comes, down[rank]) > max(goes, up[rank]):
            known = max(comes, down[rank]) if rank in unhurried else down[rank]
            found.append((rank, _coarse(comes, known), Direction.DOWN))
        else:
            found.append((rank, _coarse(goes or received, up[rank]), Direction.UP))
    return found


def _coarse(guess_bytes: int, told_bytes: int) -> int:
    """Return an announced size rounded down by an eighth at most, else a guess rounded up."""
    if guess_bytes > _at_most(told_bytes):
        return _round_size(guess_bytes)
    dropped = max(0, told_bytes.bit_length() - 4)
    return told_bytes >> dropped << dropped


def _at_most(told_bytes: int) -> int:
    """Return the coarse size of such bytes, given what else is known of them."""
    return told_bytes + told_bytes // 8


def _round_size(size_bytes: int) -> int:
    size = _LEAST_BYTES
    while size < size_bytes:
        size *= 4
    return size
