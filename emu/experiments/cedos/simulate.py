"""The product's own schedulers in a simulated world: decided each second, as the daemon does.

A network is known by what was measured while it was used, and by its stays and absences; no scheduler
knows the future. Labelled as simulated wherever it is shown: there are no packets here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from operator import attrgetter
from typing import Final

from cedos.selector.deadlines.chance import DeadlineDemand, accepted_chance, risky
from cedos.selector.deadlines.network_state import (
    ABSENCE,
    STAY_S,
    ForecastSupply,
    NetworkState,
    SustainedRate,
)
from cedos.selector.deadlines.plan import DeadlineFlow, DeadlinePlan, DeadlineScheduler
from cedos.selector.prefetch.outlook import Stretches
from emu.experiments.cedos.world import World

_LONGEST_S = 10**7
_LOOK_S = 60.0
# Seconds to the next wake-up without a network.
_PAUSE_S, _LONGEST_PAUSE_S = 120.0, 3600.0


# Seconds from a host's waking until its networks carry data again.
_WAKING_S: Final = 15.0


def wake_in_s(
    flows: Sequence[DeadlineFlow],  # those that can be in time still
    # The networks as they will be known in so many seconds.
    states_in: Callable[[float], Sequence[NetworkState]],
    now: float,
) -> float | None:
    """Return the seconds until the host must be awake, 0: from now on; None: no need.

    A sleeping host receives nothing, and the Wi-Fi in which it will wake is unknown. So the bytes due are
    held against the metered networks alone, which are present when needed, at rates that grow older
    meanwhile. A host without metered networks counts on those it has.
    """
    order = sorted(flows, key=attrgetter("deadline_at_s"))
    if not order:
        return None

    # Would it be too late for some flow if the host woke in so many seconds?
    def too_late(in_s: float) -> bool:
        usable = [each for each in states_in(in_s) if each.usable]
        paid = [each for each in usable if not each.free]
        demand = DeadlineDemand.of(order, now + in_s)
        target = accepted_chance(demand.within_s(0))
        return risky(demand, [], [(each, 0.0) for each in paid or usable], target)

    if not any(each.usable for each in states_in(0.0)):
        return None
    if too_late(_WAKING_S):
        return 0.0
    # Bisect for the last instant that is not too late, less the time that waking takes.
    low, high = _WAKING_S, order[-1].deadline_at_s - now
    for _ in range(16):
        middle = (low + high) / 2.0
        low, high = (low, middle) if too_late(middle) else (middle, high)
    return max(low - _WAKING_S, 1.0)


@dataclass(slots=True)
class Sleep:
    """A host that sleeps while nothing moves, until an alarm (`wake_in_s`)."""

    locked: bool = False  # awake while anything waits (Android's WakeLock)
    every_s: int = 0  # it is woken so often, too, to look for Wi-Fi; 0: only by the alarm
    alarm: bool = True  # whether there is one
    # `awake_s`, `looks`: what came of it; a look finds nothing and takes no time here.
    awake_s: int = 0
    looks: int = 0
    _up_s: float = -inf
    _pause_s: float = _PAUSE_S

    def for_s(
        self,
        moving: bool,
        waiting: bool,
        ahead: Sequence[DeadlineFlow],
        states_in: Callable[[float], Sequence[NetworkState]],
        now_s: float,
    ) -> int:
        """Return seconds that it sleeps from now on; 0: it is awake."""
        if any(each.up for each in states_in(0.0)):
            self._up_s = now_s
        if moving or (waiting and self.locked):
            self._pause_s = _PAUSE_S
            return 0
        in_s = wake_in_s(ahead, states_in, now_s) if self.alarm else None
        if in_s == 0.0:
            if now_s - self._up_s < _LOOK_S:
                return 0
            in_s, self._pause_s = self._pause_s, min(2.0 * self._pause_s, _LONGEST_PAUSE_S)
        asleep_s = _LONGEST_S if in_s is None else max(int(in_s), 1)
        if waiting and 0 < self.every_s <= asleep_s:
            self.looks += 1
            return self.every_s
        return asleep_s


WIFI, CELLULAR = "wlan0", "lte0"
_PRICE_S = 0.2 / 1e6
_LONGEST_STEP_S = 20


@dataclass(slots=True)
class Carried:
    """The end of a transfer: when it was done (inf: never), and its bytes by network."""

    done_s: float = inf
    wifi_bytes: float = 0.0
    cellular_bytes: float = 0.0
    parts: list[tuple[float, float, float, float]] = field(default_factory=list)
    """From when, for how long, bytes over Wi-Fi, bytes over the cellular network."""


class Host:
    """Knowledge at an instant. Without a `memory` nothing is known of earlier days."""

    def __init__(self) -> None:
        self.rates = {WIFI: SustainedRate(), CELLULAR: SustainedRate()}
        self.last_bps = {WIFI: 0.0, CELLULAR: 0.0}
        self.stretches = Stretches(STAY_S, ABSENCE)
        self.wifi_since_s = -inf

    def measured(self, name: str, rate_bps: float, lasted_s: float, at_s: float) -> None:
        self.rates[name].observe(rate_bps, lasted_s, at_s)
        self.last_bps[name] = rate_bps

    def states(self, now_s: float, wifi_up: bool, cellular_up: bool) -> list[NetworkState]:
        stretch = self.stretches.stretch()
        return [
            NetworkState(
                WIFI,
                wifi_up,
                0.0,
                self.last_bps[WIFI],
                ForecastSupply(self.rates[WIFI], now_s, up=wifi_up, stretch=stretch),
                fresh=now_s - self.wifi_since_s < 1.0,
            ),
            NetworkState(
                CELLULAR,
                cellular_up,
                _PRICE_S,
                self.last_bps[CELLULAR],
                ForecastSupply(self.rates[CELLULAR], now_s),
            ),
        ]


def simulate(
    world: World,
    scheduler: DeadlineScheduler,
    host: Host | None = None,
    *,
    begin_s: float = 0.0,
    keep_parts: bool = False,
    sleep: Sleep | None = None,
) -> list[Carried]:
    """Simulate to the end of the world, which begins at `begin_s`; `host` keeps what it learns.

    `sleep`: the host sleeps where nothing moves, and says when it is woken; else it is always awake.
    """
    host = host or Host()
    offset_s = begin_s + _learn_before(host, world)
    flows = world.flows
    found = [Carried() for _ in flows]
    left = {number: flow.size_bytes for number, flow in enumerate(flows)}
    arriving = sorted(left, key=lambda n: flows[n].released_s, reverse=True)
    living: list[int] = []
    plan = DeadlinePlan()
    at_s, end_s = 0, len(world.wifi)
    wifi_up: bool | None = None
    while at_s < end_s and (arriving or living):
        while arriving and flows[arriving[-1]].released_s <= at_s:
            living.append(arriving.pop())
        is_up = world.wifi[at_s] > 0.0
        if is_up and not wifi_up:
            host.wifi_since_s = float(at_s) + offset_s
        wifi_up = is_up
        now_s = at_s + offset_s
        table = [
            DeadlineFlow(number, left[number], flows[number].deadline_s + offset_s)
            for number in living
        ]
        up = (is_up, world.cellular[at_s] > 0.0)
        plan = scheduler.plan(table, host.states(now_s, *up), now_s, plan)
        if sleep is not None:
            ahead = [each for each in table if each.key not in plan.late]
            states_in = partial(_states_in, host, now_s, up)
            asleep_s = sleep.for_s(bool(plan.served), bool(living), ahead, states_in, now_s)
            if asleep_s:  # a person who begins a transfer wakes it
                until_s = world.flows[arriving[-1]].released_s if arriving else end_s
                at_s = min(at_s + asleep_s, until_s)
                continue
        fresh = is_up and now_s == host.wifi_since_s
        step_s = 1 if living and fresh else _step(world, at_s, plan, living, left, arriving)
        if living:
            step_s = _step_s(host, scheduler, table, plan, now_s, up, step_s)
        _carry(world, host, at_s, step_s, offset_s, plan, living, left, found, keep_parts)
        for number in list(living):
            if left[number] <= 1e-6:
                living.remove(number)
        host.stretches.record(float(step_s), is_up)
        if sleep is not None:
            sleep.awake_s += step_s
        at_s += step_s
    return found


def _states_in(host: Host, now_s: float, up: tuple[bool, bool], in_s: float) -> list[NetworkState]:
    return host.states(now_s + in_s, *up)


def _learn_before(host: Host, world: World) -> float:
    for name, rates in ((WIFI, world.known_wifi), (CELLULAR, world.known_cellular)):
        for number, rate_bps in enumerate(rates):
            host.measured(name, rate_bps, 1.0, float(number))
    return float(max(len(world.known_wifi), len(world.known_cellular)))


def _step(
    world: World,
    at_s: int,
    plan: DeadlinePlan,
    living: Sequence[int],
    left: dict[int, float],
    arriving: Sequence[int],
) -> int:
    """Return seconds until something can change; one while the cellular network carries data."""
    if plan.paid:
        return 1
    most = min(at_s + _LONGEST_STEP_S, len(world.wifi))
    if arriving:
        most = min(most, world.flows[arriving[-1]].released_s)
    if not living:
        most = world.flows[arriving[-1]].released_s if arriving else len(world.wifi)
    else:
        most = min(most, *(max(int(world.flows[n].deadline_s) - 30, at_s + 1) for n in living))
    now = world.wifi[at_s]
    if plan.served and now > 0.0:
        least = min(left[number] for number in living if number in plan.served)
        most = min(most, at_s + max(int(8.0 * least / now), 1))
    step_s = 1
    while at_s + step_s < most and (world.wifi[at_s + step_s] == now):
        step_s += 1
    return step_s


def _step_s(
    host: Host,
    scheduler: DeadlineScheduler,
    table: Sequence[DeadlineFlow],
    plan: DeadlinePlan,
    now_s: float,
    up: tuple[bool, bool],
    most_s: int,
) -> int:
    """Return the longest step by whose end an idle cellular network would not be wanted."""
    while most_s > 1:
        later = scheduler.plan(table, host.states(now_s + most_s, *up), now_s + most_s, plan)
        if not later.paid:
            break
        most_s = max(most_s // 4, 1)
    return most_s


def _carry(
    world: World,
    host: Host,
    at_s: int,
    step_s: int,
    offset_s: float,
    plan: DeadlinePlan,
    living: Sequence[int],
    left: dict[int, float],
    found: list[Carried],
    keep_parts: bool,
) -> None:
    """Carry bytes: each network serves its flows in order, and a busy one shows its rate.

    When these are done within the step the next ones go on, as a change is decided on at once.
    """
    moved: dict[int, list[float]] = {}
    used_s: dict[int, float] = {}
    others = sorted(
        [key for key in living if key not in plan.served],
        key=lambda key: world.flows[key].deadline_s,
    )
    for which, (name, rates) in enumerate(((WIFI, world.wifi), (CELLULAR, world.cellular))):
        capacity = rates[at_s] * step_s / 8.0
        room = capacity
        turn = [key for key in living if name in plan.served.get(key, ())]
        if not turn:
            continue
        for keys in (turn, *([key] for key in others)):
            for share, key in enumerate(sorted(keys, key=left.__getitem__)):
                take = min(left[key], room / (len(keys) - share))  # as TCP shares a network
                if take <= 0.0:
                    continue
                moved.setdefault(key, [0.0, 0.0])[which] += take
                left[key] -= take
                room -= take
                if left[key] <= 1e-6:
                    busy = 1.0 - room / capacity
                    used_s[key] = max(used_s.get(key, 0.0), busy * step_s)
        host.measured(name, rates[at_s], float(step_s), at_s + step_s + offset_s)
    for key, (wifi, cellular) in moved.items():
        one = found[key]
        one.wifi_bytes += wifi
        one.cellular_bytes += cellular
        if keep_parts and (wifi or cellular):
            one.parts.append((float(at_s), float(step_s), wifi, cellular))
        if left[key] <= 1e-6 and one.done_s == inf:
            one.done_s = at_s + used_s.get(key, float(step_s))
