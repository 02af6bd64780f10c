"""Where new connections go: the default, programs, destinations and hints."""

from dataclasses import replace
from typing import Any

import pytest

from cedos.model import (
    Context,
    Direction,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)

pytestmark = pytest.mark.anyio

Stage = Any
ONLY_WLAN = Strategy(StrategyKind.SINGLE, ("wlan0",))


async def test_new_connections_go_where_a_small_transfer_is_quickest(stage: Stage) -> None:
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    await stage.reconsider()
    assert stage.asked() == []  # nothing changed, nothing is done or recorded
    assert [each.number for each in stage.decisions] == [5]
    stage.model.rtt_s["wifi"] = 0.5
    await stage.reconsider()
    assert stage.asked() == [("default", "lte0")]
    assert stage.director.default.decision is stage.decisions[-1]


async def test_a_program_goes_where_its_transfers_are_quickest(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    large = Transfer(SizeEstimate(10**7, 10**7, 10**7, "hint"), server_name="curl")
    context = Context(11.0, {"wlan0": {}, "lte0": {}})
    assert await stage.director.programs.add(0xCE000001, large, context) == "lte0"
    assert stage.asked() == [("mark", 0xCE000001, "lte0")]
    assert stage.decisions[-1].transfer == large
    await stage.reconsider()
    assert stage.asked() == []
    stage.model.rate_bps["cellular"] = 1e5
    await stage.reconsider()
    assert stage.asked() == [("mark", 0xCE000001, "wlan0")]
    await stage.director.programs.remove(0xCE000001)
    assert stage.asked() == [("mark", 0xCE000001, None)]
    await stage.director.programs.remove(0xCE000001)
    await stage.reconsider()
    assert stage.asked() == []


async def test_a_small_advantage_does_not_move_the_default(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    bits = 8 * 3000
    stage.model.rtt_s["cellular"] = 0.02 + bits / 1e6 / 2 - bits / 20e6 / 2 - 0.002
    await stage.reconsider()
    assert stage.asked() == []
    assert "lte0 would be better, but too little for a change" in stage.director.default.reason


async def test_why_the_default_stands_is_told_by_what_is_known_now(stage: Stage) -> None:
    """Not by what was known when it was decided, which may be days ago."""
    await stage.reconsider()
    first = stage.director.default.reason
    assert first == stage.decisions[-1].reason
    stage.model.rtt_s["cellular"] = 2.5
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")], "nothing else was done"
    assert stage.director.default.reason != first
    assert "faster than lte0 (5.00 s)" in stage.director.default.reason


async def test_a_dead_network_loses_the_default_at_once(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    await stage.reconsider(alive=("lte0",))
    assert stage.asked() == [("default", "lte0")]


async def test_a_destination_of_large_transfers_gets_its_own_rule_and_loses_it(
    stage: Stage,
) -> None:
    stage.connection()
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    # One transfer is known: a second one like it must not go where 3 KB would be best.
    stage.sizes.learn(stage.server, 80, Direction.DOWN, 4_000_000)
    await stage.reconsider()
    assert stage.asked() == [("destination", f"{stage.server}/32", 80, "lte0")]
    await stage.reconsider(at_s=10_000.0)  # nobody has gone there for hours
    assert stage.asked() == [("destination", f"{stage.server}/32", 80, None)]


async def test_a_rule_that_was_refused_is_tried_again(stage: Stage) -> None:
    for _ in range(3):
        stage.sizes.learn(stage.server, 80, Direction.DOWN, 4_000_000)
    stage.connection()
    stage.steer.refuse = True
    await stage.reconsider()
    stage.steer.refuse = False
    await stage.reconsider()
    assert ("destination", f"{stage.server}/32", 80, "lte0") in stage.asked()


async def test_a_hint_gives_its_destination_a_rule_at_once(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    size = SizeEstimate(9_000_000, 9_000_000, 9_000_000, "hint")
    context = Context(11.0, {})
    network = await stage.director.destinations.hinted(
        "203.0.113.0/24", 443, size, Direction.DOWN, 60.0, context
    )
    assert network == "lte0"
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, "lte0")]
    await stage.reconsider(at_s=61.0)
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, None)]


async def test_a_hint_that_is_taken_back_leaves_no_rule(stage: Stage) -> None:
    await stage.reconsider()
    size = SizeEstimate(9_000_000, 9_000_000, 9_000_000, "hint")
    context = Context(11.0, {})
    await stage.director.destinations.hinted(
        "203.0.113.0/24", 443, size, Direction.DOWN, 1e9, context
    )
    stage.asked()
    await stage.director.destinations.hint_ended("203.0.113.0/24", 443, context)
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, None)]


async def test_without_any_network_nothing_is_steered(stage: Stage) -> None:
    stage.director.networks_changed([replace(stage.wlan, up=False), replace(stage.lte, up=False)])
    await stage.reconsider()
    assert stage.asked() == []
    assert stage.decisions[-1].choice.kind is StrategyKind.DEFER
    stage.director.networks_changed([stage.wlan, replace(stage.lte, up=False)])
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    assert stage.director.default.decision is not None
    assert stage.director.default.decision.choice == ONLY_WLAN
