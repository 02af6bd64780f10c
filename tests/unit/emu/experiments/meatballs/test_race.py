"""Races as scripts: who is begun, who is cancelled, who wins."""

import math
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.experiments.meatballs.race import Cancel, Chosen, Race, Start

BOTH = frozenset({"wifi", "cellular"})


def always(*ways: str, again: float | None = None):
    return lambda now, usable, silent: Chosen(frozenset(ways), again)


def test_the_first_answer_wins_and_the_other_is_cancelled() -> None:
    race = Race(5.0, always("wifi", "cellular"))
    assert race.begin(BOTH) == [Start("cellular"), Start("wifi")]
    assert race.answered("wifi", 5.1) == [Cancel("cellular")]
    assert (race.done_s, race.winner, race.running) == (5.1, "wifi", {})
    assert race.answered("cellular", 5.2) == []
    assert (race.done_s, race.winner) == (5.1, "wifi")


def test_silence_begins_the_other_and_keeps_the_first() -> None:
    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        late = silent.get("wifi", 0.0) > 0.3
        return Chosen(frozenset({"cellular"} if late else {"wifi"}), 0.2)

    race = Race(0.0, choose)
    assert race.begin(BOTH) == [Start("wifi")]
    assert race.wake(0.1, BOTH) == []
    assert race.wake(0.2, BOTH) == []
    assert race.wake_at_s == 0.4
    assert race.wake(0.4, BOTH) == [Start("cellular")]
    assert race.running == {"wifi": 0.0, "cellular": 0.4}
    assert race.answered("cellular", 0.5) == [Cancel("wifi")]
    assert race.wake_at_s == math.inf
    assert race.decisions == 3


def test_when_to_think_again_is_asked_after_all_was_begun() -> None:
    asked: list[str] = []

    def again() -> float:
        asked.append("again")
        return 0.3

    race = Race(1.0, lambda now, usable, silent: Chosen(frozenset({"wifi"}), again))
    assert race.begin(BOTH) == [Start("wifi")]
    assert not asked
    assert race.wake_at_s == race.wake_at_s == 1.3
    assert asked == ["again"]


def test_what_is_lost_is_begun_elsewhere() -> None:
    order = ["wifi", "cellular"]

    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        return Chosen(frozenset(next(([n] for n in order if n in usable), [])))

    race = Race(0.0, choose)
    race.begin(BOTH)
    assert race.lost("wifi", 3.0, BOTH - {"wifi"}) == [Start("cellular")]
    assert race.lost("wifi", 3.1, BOTH - {"wifi"}) == []


def test_without_any_network_it_waits_for_one() -> None:
    race = Race(0.0, always("wifi"))
    assert race.begin(frozenset()) == []
    assert race.attached(9.0, frozenset({"wifi"})) == [Start("wifi")]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_happens_each_way_runs_once_at_a_time_and_one_wins(data: st.DataObject) -> None:
    ways = ["a", "b", "c"]
    subsets = st.frozensets(st.sampled_from(ways))

    def choose(now: float, usable: frozenset[str], silent: Mapping[str, float]) -> Chosen:
        assert all(seconds >= 0 for seconds in silent.values())
        return Chosen(data.draw(subsets), data.draw(st.none() | st.floats(0.01, 2)))

    race, now, running, cancelled = Race(0.0, choose), 0.0, set(), set()
    commands = race.begin(data.draw(subsets))
    for _ in range(data.draw(st.integers(0, 15))):
        for command in commands:
            if isinstance(command, Start):
                assert command.way not in running
                assert race.done_s is None
                running.add(command.way)
            else:
                running.discard(command.way)
                cancelled.add(command.way)
        assert running == set(race.running)
        now += data.draw(st.floats(0, 1))
        usable = data.draw(subsets)
        event = data.draw(st.sampled_from(["answered", "lost", "attached", "wake"]))
        way = data.draw(st.sampled_from(ways))
        if event == "answered":
            commands = race.answered(way, now)
            running.discard(way)
        elif event == "lost":
            commands = race.lost(way, now, usable)
            running.discard(way)
        else:
            commands = getattr(race, event)(now, usable)
    assert race.winner not in cancelled or race.winner is None
