"""The clairvoyant optimum of deadlines against a linear program that knows nothing of how it is found."""

from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog

from emu.experiments.cedos.compare import carried, feasible, most_wifi_bytes
from emu.experiments.cedos.world import Wanted, World

SECONDS = 12


def drawn(seed: int) -> World:
    random = Random(seed)
    wifi = [random.choice([0.0, 0.0, 8e6, 24e6]) for _ in range(SECONDS)]
    cellular = [random.choice([0.0, 8e6, 16e6]) for _ in range(SECONDS)]
    flows = []
    for _ in range(random.randint(1, 4)):
        released_s = random.randint(0, SECONDS - 2)
        deadline_s = random.randint(released_s + 1, SECONDS)
        flows.append(Wanted(released_s, random.uniform(1e5, 6e6), float(deadline_s)))
    return World(wifi, cellular, sorted(flows))


def program(world: World) -> float | None:
    """Most bytes over Wi-Fi with all in time, by linear programming; None: not all can be."""
    flows, slots = world.flows, 2 * SECONDS
    count = len(flows) * slots
    wanted = np.zeros((len(flows), count))
    room = np.zeros((slots, count))
    cost = np.zeros(count)
    bounds = []
    for number, flow in enumerate(flows):
        for slot in range(slots):
            at = number * slots + slot
            at_s = slot % SECONDS
            wanted[number, at] = room[slot, at] = 1.0
            cost[at] = -1.0 if slot < SECONDS else 0.0
            open_now = flow.released_s <= at_s and at_s + 1 <= flow.deadline_s
            bounds.append((0.0, None if open_now else 0.0))
    capacity = np.array([*world.wifi, *world.cellular]) / 8e6
    sizes = np.array([flow.size_bytes for flow in flows]) / 1e6
    found = linprog(
        cost, A_ub=room, b_ub=capacity, A_eq=wanted, b_eq=sizes, bounds=bounds, method="highs"
    )
    return None if found.status == 2 else -found.fun * 1e6


@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_linear_programming_finds(seed: int) -> None:
    world = drawn(seed)
    best = program(world)
    if best is None:
        assert len(feasible(world)) < len(world.flows)
    else:
        assert len(feasible(world)) == len(world.flows)
        assert most_wifi_bytes(world) == pytest.approx(best, rel=1e-6, abs=1.0)


def test_what_is_due_within_a_second_gets_its_part_of_it() -> None:
    assert carried([8e6], [Wanted(0, 1e6, 0.25)]) == [pytest.approx(0.25e6)]


def test_cedos_figure_6a_could_have_had_thirty_percent() -> None:
    world = World([0.8e6] * 300, [4.7e6] * 300, [Wanted(0, 100e6, 300.0)])
    assert most_wifi_bytes(world) == pytest.approx(30e6)
    assert feasible(world)
