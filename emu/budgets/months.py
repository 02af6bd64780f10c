"""Months with a data plan, simulated with the product's own keeper; the clock is an argument."""

import random
from calendar import monthrange
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cedos.selector.budget import PROHIBITIVE, Budget, Every, Resource
from cedos.selector.budget_controller import MakeController, Option
from cedos.selector.budget_demand import increments
from cedos.selector.budget_keeper import Keeper
from cedos.selector.budget_odyssey import Odyssey
from cedos.selector.budget_pacer import Pacer
from emu.budgets.habits import DAY_S, Choice, draw, month

CONTROLLERS: dict[str, MakeController] = {"odyssey": Odyssey, "pacer": Pacer}
_STEP_S = 600.0
"""Without a choice the supply is looked at so often; Odyssey's seconds in between are summed up."""

WASTED = 0.05
"""More than this share of a supply left over is much."""

_FIRST_MONTH = (2026, 1)
_LIVES = 4
"""Months that one person lives through, habits going on; the first one knows nothing of them."""


@dataclass(frozen=True, slots=True)
class World:
    """One month: its choices, its plan, and what a plan could buy at most.

    Attributes:
        begins_s: seconds since the epoch.
        days: its length.
        choices: in their order.
        supply: bytes.
        forced: bytes that are used without a choice.
        asked: bytes that would save time.
        best_s: the seconds that could be bought by one who knows the future (fractional knapsack).
    """

    begins_s: float
    days: int
    choices: Sequence[Choice]
    supply: float
    forced: float
    asked: float
    best_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """A month as a controller got through it: bytes spent and declined, seconds bought.

    `declined_late` is what was declined in the last quarter of the month, of `declined`.
    """

    world: World
    spent: float
    declined: float
    declined_late: float
    bought_s: float
    path: Sequence[tuple[float, float, float]]
    """Day by day: seconds since the month began, bytes spent, price in seconds per byte."""

    @property
    def met(self) -> bool:
        """Whether the plan was not exceeded."""
        return self.spent <= self.world.supply

    @property
    def wanted(self) -> bool:
        """Whether what was declined would have used up what is left over."""
        return self.declined >= self.world.supply - self.spent

    @property
    def wasted(self) -> bool:
        """Whether much was left over though what was declined in the last quarter would have used it."""
        left = self.world.supply - self.spent
        return left > WASTED * self.world.supply and self.declined_late >= left

    @property
    def spent_share(self) -> float:
        """The share of the supply that was spent."""
        return self.spent / self.world.supply


def lives(seed: int, count: int) -> Iterator[list[World]]:
    """The months of `count` people, each a life of `_LIVES` months."""
    for person in range(count):
        dice = random.Random(f"{seed}/{person}")
        habits = draw(dice)
        worlds = []
        for number in range(_LIVES):
            year, of_year = _FIRST_MONTH[0], _FIRST_MONTH[1] + number
            days = monthrange(year, of_year)[1]
            choices, habits = month(habits, days, dice)
            begins_s = datetime(year, of_year, 1, tzinfo=UTC).timestamp()
            worlds.append(_world(begins_s, days, choices, dice))
        yield worlds


def _world(begins_s: float, days: int, choices: list[Choice], dice: random.Random) -> World:
    """A month with a plan that fits the person somehow.

    What happens without a choice takes a tenth to a half of the plan; and at no instant does it take
    more, from then on, than nine tenths of what an even spending would have left, as otherwise nobody
    who does not know the future could meet the budget and use it.
    """
    forced = sum(each.size_bytes for each in choices if each.free_s is None)
    supply = forced / dice.uniform(0.1, 0.5)
    to_come = 0.0
    for each in reversed(choices):
        if each.free_s is None:
            to_come += each.size_bytes
            left_share = 1.0 - each.at_s / (days * DAY_S)
            # The last hours are covered by the insurance that every controller keeps back.
            supply = max(supply, to_come / (0.9 * left_share + 0.005))
    steps = [step for each in choices for step in increments(_options(each, each.size_bytes))]
    steps.sort(reverse=True)
    room, best_s = supply - forced, 0.0
    for step in steps:
        taken = min(step.amount, room)
        best_s += taken * step.s_per_unit
        room -= taken
    asked = sum(step.amount for step in steps)
    return World(begins_s, days, choices, supply, forced, asked, best_s)


def _options(choice: Choice, size_bytes: float) -> list[Option]:
    metered = Option(choice.metered_s, size_bytes)
    return [metered] if choice.free_s is None else [Option(choice.free_s, 0.0), metered]


def live(worlds: Sequence[World], make: MakeController) -> list[Outcome]:
    """One person's months under one controller, one after the other."""
    keeper: Keeper | None = None
    found = []
    for world in worlds:
        ends = datetime.fromtimestamp(world.begins_s + world.days * DAY_S, UTC)
        until = ends.replace(tzinfo=None).isoformat()
        plan = Budget("data", Resource.DATA, world.supply, until, every=Every.MONTH)
        if keeper is None:
            keeper = Keeper(plan, make, world.begins_s, UTC)
        else:
            keeper.roll(world.begins_s)
            keeper.changed(plan, world.begins_s)
        found.append(_month(world, keeper))
    return found


def _month(world: World, keeper: Keeper) -> Outcome:
    spent = declined = declined_late = bought_s = 0.0
    late_s = 0.75 * world.days * DAY_S
    looked_s, day, path = 0.0, 0.0, []
    keeper.observe(world.begins_s, 0.0)
    for choice in world.choices:
        while looked_s + _STEP_S < choice.at_s:
            looked_s += _STEP_S
            keeper.observe(world.begins_s + looked_s, spent)
            if looked_s >= day:
                day += DAY_S
                path.append((looked_s, spent, keeper.quote(world.begins_s + looked_s).rate))
        now_s = world.begins_s + choice.at_s
        looked_s = choice.at_s
        keeper.observe(now_s, spent)
        if not choice.steered:
            spent += choice.size_bytes
            continue
        options = _options(choice, choice.expected_bytes)
        chosen = options[0]
        if len(options) > 1:
            quote = keeper.quote(now_s)
            chosen = min(
                options,
                key=lambda each: (
                    each.cost_s + each.amount * quote.rate_for(each.amount, each.cost_s)
                ),
            )
        keeper.offered(now_s, options, chosen)
        metered = chosen.amount > 0.0
        if metered:
            spent += choice.size_bytes
        if choice.free_s is not None and choice.metered_s < choice.free_s:
            declined += 0.0 if metered else choice.size_bytes
            declined_late += 0.0 if metered or choice.at_s < late_s else choice.size_bytes
        if choice.free_s is not None and metered:
            bought_s += choice.free_s - choice.metered_s
    keeper.observe(world.begins_s + world.days * DAY_S - 1.0, spent)
    path.append((world.days * DAY_S, spent, min(keeper.quote(now_s).rate, PROHIBITIVE)))
    return Outcome(world, spent, declined, declined_late, bought_s, path)


def simulate(
    seed: int, months: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, list[Outcome]]:
    """At least so many months under each controller, on the same months."""
    found: dict[str, list[Outcome]] = {name: [] for name in CONTROLLERS}
    count = -(-months // _LIVES)
    for number, worlds in enumerate(lives(seed, count)):
        if number % 10 == 0:
            progress(f"person {number + 1} of {count}")
        for name, make in CONTROLLERS.items():
            found[name].extend(live(worlds, make))
    return found
