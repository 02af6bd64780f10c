"""Nothing is led to a network that is barred, and everything says why."""

from typing import Any

import pytest

from cedos.model import Context, SizeEstimate, Strategy, StrategyKind, Transfer

pytestmark = pytest.mark.anyio

Stage = Any
WHY = "programs are kept off wlan0, as the hard budget is spent"
ONLY_LTE = Strategy(StrategyKind.SINGLE, ("lte0",))


async def test_new_connections_and_living_ones_leave_and_come_back(stage: Stage) -> None:
    await stage.reconsider()
    stage.connection(movable=True)
    stage.told(10_000)
    assert ("default", "wlan0") in stage.asked()
    stage.director.decider.bar({"wlan0": WHY})
    await stage.reconsider(11.0)
    assert stage.asked() == [("default", "lte0"), ("connection", 7, ONLY_LTE)]
    assert all(decision.reason.endswith(WHY) for decision in stage.decisions[-2:])
    assert [network.up for network in stage.director.networks] == [True, True]
    stage.director.decider.bar({})
    await stage.reconsider(12.0)
    assert ("default", "wlan0") in stage.asked()
    assert WHY not in stage.decisions[-1].reason


async def test_with_no_other_way_nothing_is_chosen_at_all(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    stage.director.networks_changed([stage.wlan])
    stage.director.decider.bar({"wlan0": WHY})
    await stage.reconsider(11.0)
    assert stage.asked() == []
    assert stage.decisions[-1].reason == f"No network works: {WHY[0].lower()}{WHY[1:]}"
    guess = Transfer(SizeEstimate(3000, 3000, 3000, "hint"))
    decision = stage.director.decider.choose(guess, Context(11.0, {}), redundant=True)
    assert decision.choice.kind is StrategyKind.DEFER
    made = len(stage.decisions)
    await stage.reconsider(12.0)
    assert len(stage.decisions) == made  # the same answer is no news
