"""A server's processor, shared equally by all who compute there: other people's work, and ours.

Others come by a Poisson process whose rate is such that, without us, a given number of them are there
on average (an M/G/1 queue with processor sharing: N = rho / (1 - rho)).
"""

import random
from collections.abc import Callable, Sequence

Work = Callable[[random.Random], float]
"""Draws the seconds that a task of somebody else's takes on the idle processor."""


def utilisation(concurrent: float) -> float:
    """The share of the time for which a processor is busy that so many share on average."""
    return concurrent / (1.0 + concurrent)


def arrivals(
    duration_s: float,
    concurrent: tuple[float, float],
    mean_work_s: float,
    work: Work,
    seed: int,
    warm_up_s: float = 120.0,
) -> Sequence[tuple[float, float]]:
    """When others come, and their work in seconds, from before the trial's beginning to its end.

    `duration_s`: of the trial, from 0.
    `concurrent`: how many are there on average, at the beginning and at the end.
    `mean_work_s`: what `work` draws on average.
    `warm_up_s`: the load has been there for so long when the trial begins.
    """
    rng = random.Random(f"load:{seed}")
    found, at_s = [], -warm_up_s
    first, last = concurrent
    highest = utilisation(max(first, last)) / mean_work_s
    while highest > 0:
        at_s += rng.expovariate(highest)
        if at_s >= duration_s:
            break
        share = min(max(at_s / duration_s, 0.0), 1.0)
        rate = utilisation(first + share * (last - first)) / mean_work_s
        # Thinned: the rate changes, the highest one does not.
        if rng.random() * highest < rate:
            found.append((at_s, work(rng)))
    return found


class SharedProcessor:
    """When a task of ours would be done that comes at some instant, with everybody else there.

    Our own tasks do not meet each other: they come one after the other.

    Args:
        others: instants and work, in order of time.
    """

    def __init__(self, others: Sequence[tuple[float, float]]) -> None:
        self._others = others

    def concurrent(self, at_s: float) -> int:
        return len(self._until(at_s)[0])

    def finished_s(self, at_s: float, work_s: float) -> float:
        """When a task that comes at `at_s` with so much work is done."""
        left, next_index = self._until(at_s)
        now_s, ours = at_s, work_s
        while True:
            sharing = len(left) + 1
            least = min([ours, *left])
            due_s = now_s + least * sharing
            comes_s = (
                self._others[next_index][0] if next_index < len(self._others) else float("inf")
            )
            if due_s <= comes_s:
                if ours <= least:
                    return due_s
                ours -= least
                left = [each - least for each in left if each - least > 1e-12]
                now_s = due_s
            else:
                done = (comes_s - now_s) / sharing
                ours -= done
                left = [each - done for each in left] + [self._others[next_index][1]]
                now_s = comes_s
                next_index += 1

    def _until(self, at_s: float) -> tuple[list[float], int]:
        """The others' work that is left at an instant, and who comes next."""
        left: list[float] = []
        now_s = at_s
        for index, (comes_s, work_s) in enumerate(self._others):
            if comes_s > at_s:
                return _served(left, at_s - now_s) if left else left, index
            if left:
                left = _served(left, comes_s - now_s)
            left.append(work_s)
            now_s = comes_s
        return _served(left, at_s - now_s) if left else left, len(self._others)


def _served(left: list[float], for_s: float) -> list[float]:
    """What is left of some work after the processor was shared among it for a while."""
    ascending = sorted(left)
    served = 0.0
    while ascending:
        sharing = len(ascending)
        step_s = (ascending[0] - served) * sharing
        if step_s > for_s:
            served += for_s / sharing
            break
        for_s -= step_s
        served = ascending.pop(0)
    return [each - served for each in ascending]
