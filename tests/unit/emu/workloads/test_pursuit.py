"""Pursuits as scripts: who is begun, who is cancelled, who wins."""

import math
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.workloads.pursuit import Cancel, Chosen, Pursuit, Start

BOTH = frozenset({"wifi", "cellular"})


def always(*ways: str, again: float | None = None):
    return lambda now, usable, silent: Chosen(frozenset(ways), again)


def test_the_first_answer_wins_and_the_other_is_cancelled() -> None:
    pursuit = Pursuit(5.0, always("wifi", "cellular"))
    assert pursuit.begin(BOTH) == [Start("cellular"), Start("wifi")]
    assert pursuit.answered("wifi", 5.1) == [Cancel("cellular")]
    assert (pursuit.done_s, pursuit.winner, pursuit.running) == (5.1, "wifi", {})
    assert pursuit.answered("cellular", 5.2) == []
    assert (pursuit.done_s, pursuit.winner) == (5.1, "wifi")


def test_silence_begins_the_other_and_keeps_the_first() -> None:
    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        late = silent.get("wifi", 0.0) > 0.3
        return Chosen(frozenset({"cellular"} if late else {"wifi"}), 0.2)

    pursuit = Pursuit(0.0, choose)
    assert pursuit.begin(BOTH) == [Start("wifi")]
    assert pursuit.woken(0.1, BOTH) == []
    assert pursuit.woken(0.2, BOTH) == []
    assert pursuit.wake_at_s == 0.4
    assert pursuit.woken(0.4, BOTH) == [Start("cellular")]
    assert pursuit.running == {"wifi": 0.0, "cellular": 0.4}
    assert pursuit.answered("cellular", 0.5) == [Cancel("wifi")]
    assert pursuit.wake_at_s == math.inf
    assert pursuit.decisions == 3


def test_when_to_think_again_is_asked_after_all_was_begun() -> None:
    asked: list[str] = []

    def again() -> float:
        asked.append("again")
        return 0.3

    pursuit = Pursuit(1.0, lambda now, usable, silent: Chosen(frozenset({"wifi"}), again))
    assert pursuit.begin(BOTH) == [Start("wifi")]
    assert not asked
    assert pursuit.wake_at_s == pursuit.wake_at_s == 1.3
    assert asked == ["again"]


def test_what_is_lost_is_begun_elsewhere() -> None:
    order = ["wifi", "cellular"]

    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        return Chosen(frozenset(next(([n] for n in order if n in usable), [])))

    pursuit = Pursuit(0.0, choose)
    pursuit.begin(BOTH)
    assert pursuit.lost("wifi", 3.0, BOTH - {"wifi"}) == [Start("cellular")]
    assert pursuit.lost("wifi", 3.1, BOTH - {"wifi"}) == []


def test_without_any_network_it_waits_for_one() -> None:
    pursuit = Pursuit(0.0, always("wifi"))
    assert pursuit.begin(frozenset()) == []
    assert pursuit.appeared(9.0, frozenset({"wifi"})) == [Start("wifi")]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_happens_each_way_runs_once_at_a_time_and_one_wins(data: st.DataObject) -> None:
    ways = ["a", "b", "c"]
    subsets = st.frozensets(st.sampled_from(ways))

    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        assert all(seconds >= 0 for seconds in silent.values())
        return Chosen(data.draw(subsets), data.draw(st.none() | st.floats(0.01, 2)))

    pursuit, now, running, cancelled = Pursuit(0.0, choose), 0.0, set(), set()
    commands = pursuit.begin(data.draw(subsets))
    for _ in range(data.draw(st.integers(0, 15))):
        for command in commands:
            if isinstance(command, Start):
                assert command.way not in running
                assert pursuit.done_s is None
                running.add(command.way)
            else:
                running.discard(command.way)
                cancelled.add(command.way)
        assert running == set(pursuit.running)
        now += data.draw(st.floats(0, 1))
        usable = data.draw(subsets)
        event = data.draw(st.sampled_from(["answered", "lost", "appeared", "woken"]))
        way = data.draw(st.sampled_from(ways))
        if event == "answered":
            commands = pursuit.answered(way, now)
            running.discard(way)
        elif event == "lost":
            commands = pursuit.lost(way, now, usable)
            running.discard(way)
        else:
            commands = getattr(pursuit, event)(now, usable)
    assert pursuit.winner not in cancelled or pursuit.winner is None
