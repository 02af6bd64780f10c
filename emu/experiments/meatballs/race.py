"""A task raced over one or several ways: the first answer wins, the others are cancelled.

Events in, commands out; the time is an argument. The same code races requests over real sockets and
in a simulation, offloaded computations as well as exchanges (dissertation, 4.3.4 and 4.4.3).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cedos.selector.decision.living import AGAIN_S, tipping_point


@dataclass(frozen=True, slots=True)
class Chosen:
    """A decision on a task: the ways to begin, and when to reevaluate.

    Attributes:
        ways: names; one that is under way stays, whether named or not. None at all: wait.
        reevaluate_after_s: seconds from now after which the choice is to be made again if nothing has
            happened; None: never. A function is asked only when everything has been begun: what is
            begun must not wait for it.
    """

    ways: frozenset[str]
    reevaluate_after_s: float | Callable[[], float | None] | None = None


Choose = Callable[[float, frozenset[str], Mapping[str, float]], Chosen]
"""(now, usable ways, those under way with the seconds without an answer) -> what to do."""


@dataclass(frozen=True, slots=True)
class Start:
    way: str


@dataclass(frozen=True, slots=True)
class Cancel:
    way: str


Command = Start | Cancel


@dataclass(slots=True)
class Race:
    """A task from its beginning to its answer.

    Attributes:
        began_s: when the person began to wait.
        choose: decides; see `Choose`.
        running: what is under way, and since when.
        done_s: when the first answer was there; None: not yet.
        starts: every way begun and when, in order.
    """

    began_s: float
    choose: Choose
    running: dict[str, float] = field(default_factory=dict)
    done_s: float | None = None
    winner: str | None = None
    starts: list[tuple[str, float]] = field(default_factory=list)
    decisions: int = 0
    _decided_s: float = 0.0
    _again: float | Callable[[], float | None] | None = None

    @property
    def wake_at_s(self) -> float:
        """Return when to call `wake`; infinite: not at all."""
        if callable(self._again):
            self._again = self._again()
        return math.inf if self._again is None else self._decided_s + self._again

    def begin(self, usable: frozenset[str]) -> list[Command]:
        return self._decide(self.began_s, usable)

    def on_answer(self, way: str, now_s: float) -> list[Command]:
        """Return the answer came in this way; a late one, after another's, changes nothing."""
        self.running.pop(way, None)
        if self.done_s is not None:
            return []
        self.done_s, self.winner = now_s, way
        self._again = None
        cancelled: list[Command] = [Cancel(other) for other in self.running]
        self.running.clear()
        return cancelled

    def on_loss(self, way: str, now_s: float, usable: frozenset[str]) -> list[Command]:
        """Note that a way will not answer: its network has gone, say."""
        if self.running.pop(way, None) is None or self.done_s is not None:
            return []
        return self._decide(now_s, usable)

    def on_attach(self, now_s: float, usable: frozenset[str]) -> list[Command]:
        return [] if self.done_s is not None else self._decide(now_s, usable)

    def wake(self, now_s: float, usable: frozenset[str]) -> list[Command]:
        """Reevaluate: `wake_at_s` has passed without an answer, and the silence is new information."""
        if self.done_s is not None or now_s < self.wake_at_s:
            return []
        return self._decide(now_s, usable)

    def _decide(self, now_s: float, usable: frozenset[str]) -> list[Command]:
        silent = {way: now_s - since_s for way, since_s in self.running.items()}
        chosen = self.choose(now_s, usable, silent)
        self.decisions += 1
        self._decided_s, self._again = now_s, chosen.reevaluate_after_s
        begun: list[Command] = []
        for way in sorted((chosen.ways & usable) - self.running.keys()):
            self.running[way] = now_s
            self.starts.append((way, now_s))
            begun.append(Start(way))
        return begun


Best = Callable[[Sequence[str], float, Mapping[str, float]], tuple[frozenset[str], float]]
"""(ways, instant, seconds of silence by way) -> the ways to use, and the expected seconds left."""


def choose_and_reevaluate(
    best: Best,
    now_s: float,
    usable: frozenset[str],
    silent: Mapping[str, float],
    *,
    reevaluates: bool,
    within_s: float,
    granularity_s: float,
) -> Chosen:
    """Choose what costs least from now on, and when to reevaluate after silence.

    `usable`: the ways that can be begun now.
    `silent`: what is under way, each with how long it has been silent.
    `reevaluates`: whether the policy reevaluates at all.
    `within_s`: a silence that has not tipped the choice by then never does.
    `granularity_s`: how exactly the tipping point is looked for.
    """
    if not usable - silent.keys() or (silent and not reevaluates):
        return Chosen(frozenset())
    names = sorted(usable | silent.keys())
    chosen, expected_s = best(names, now_s, silent)
    if not reevaluates or chosen >= usable:
        return Chosen(chosen)
    if silent:
        return Chosen(chosen, AGAIN_S)

    def later(wait_s: float) -> frozenset[str]:
        return chosen | best(names, now_s + wait_s, dict.fromkeys(chosen, wait_s))[0]

    def reevaluate_after_s() -> float:
        tips_s = tipping_point(later, granularity_s, within_s, granularity_s)
        return 2.0 * expected_s if tips_s is None else tips_s

    return Chosen(chosen, reevaluate_after_s)
