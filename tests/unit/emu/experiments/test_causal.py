"""The best policy that does not know the future, where it can be told by hand; the frontier."""

from random import Random

import pytest

from cedos.selector.deadlines.chance import ChanceScheduler
from emu.experiments.cedos import frontier
from emu.experiments.cedos.causal import CausalOptimum, Chain, drawn
from emu.experiments.cedos.clairvoyant import most_wifi_bytes
from emu.experiments.cedos.compare import tally
from emu.experiments.cedos.world import Wanted, World

MB = 1e6
STEADY = Chain.of([8e6])
TOSSED = Chain.of([0.0, 8e6, 8e6, 0.0])  # as often as not, whatever was before


def test_a_chain_is_its_traces() -> None:
    assert TOSSED.rates.tolist() == [0.0, 8e6]
    assert TOSSED.moves.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert [TOSSED.level(each) for each in (0.0, 8e6)] == [0, 1]
    seconds = [float(each * 1e5) for each in (0, 3, 9, 4, 0, 7, 12, 1)]
    chain = Chain.of(seconds)
    assert chain.moves.sum(axis=1) == pytest.approx(1.0)
    for each in seconds:
        assert chain.rates[chain.level(each)] == pytest.approx(each, rel=0.4)
    long = chain.draw(Random(1), 20_000)
    assert sum(long) / len(long) == pytest.approx(sum(seconds) / len(seconds), rel=0.03)


@pytest.mark.parametrize(
    ("miss", "wifi", "by_wifi", "met"),
    [
        # 2 MB in two seconds, none over Wi-Fi now: who waits needs both networks in the next one.
        (10.0, [0.0, 8e6], 1.0, True),  # a miss is dear: it begins
        (10.0, [0.0, 0.0], 0.0, True),
        (1.5, [0.0, 8e6], 1.0, True),  # it waits, and has luck
        (1.5, [0.0, 0.0], 0.0, False),  # it waits, and has none
        (10.0, [8e6, 8e6], 2.0, True),  # half is there: the rest can still wait
    ],
)
def test_decisions_that_can_be_made_by_hand(
    miss: float, wifi: list[float], by_wifi: float, met: bool
) -> None:
    best = CausalOptimum(TOSSED, STEADY, 2 * MB, 5, miss * MB)
    world = World(wifi, [8e6, 8e6], [Wanted(0, 2 * MB, 2.0)])
    assert best.play(world) == (pytest.approx(by_wifi * MB, rel=0.01), met)


def test_it_is_below_the_clairvoyant_and_above_ours() -> None:
    random = Random(3)
    wifi = Chain.of([0.0] * 30 + [random.uniform(1e6, 9e6) for _ in range(40)])
    cellular = Chain.of([random.uniform(2e6, 4e6) for _ in range(60)])
    worlds = [drawn(random, wifi, cellular) for _ in range(15)]
    sizes = [world.flows[0].size_bytes for world in worlds]
    best = CausalOptimum(wifi, cellular, max(sizes), 599, 30.0 * sum(sizes) / len(sizes))
    played = [best.play(world) for world in worlds]
    assert all(met for _, met in played)
    by_wifi = sum(each for each, _ in played)
    assert by_wifi <= sum(map(most_wifi_bytes, worlds))
    ours = tally(worlds, [ChanceScheduler()], one_host=False)
    assert by_wifi > ours.wifi_bytes["chance"]


def test_the_frontier_has_what_is_shipped_and_more_risk_is_more_wifi() -> None:
    shipped = ChanceScheduler()
    every = {each.name: each for each in frontier.schedulers()}
    assert (every["0.01/0.001"].target, every["0.01/0.001"].near_target) == (
        shipped.target,
        shipped.near_target,
    )
    random = Random(4)
    wifi = Chain.of([0.0] * 40 + [random.uniform(1e6, 9e6) for _ in range(40)])
    worlds = [drawn(random, wifi, STEADY) for _ in range(8)]
    found = tally(worlds, [every["0.002/0.0002"], every["0.05/0.005"]], one_host=False)
    assert found.wifi_bytes["0.05/0.005"] > found.wifi_bytes["0.002/0.0002"]
