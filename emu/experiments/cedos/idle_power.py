"""Figure 7 over whole days: what a host spends on waiting, with D-Lock and without.

The paper measured a telephone (V-B.2): 43 mW asleep, 231.9 mW awake with a WakeLock, and 55.1 mW where
D-Lock wakes it every two minutes to look for Wi-Fi, so 1.45 J a look. Here on drawn days (`days`), of
who touches the host only to begin a download; it sleeps by itself otherwise. What the radios spend
on the downloads comes on top and is not counted. Simulated, with the product's scheduler and alarm.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from cedos.selector.deadlines.chance import ChanceScheduler
from emu.experiments.cedos import world
from emu.experiments.cedos.compare import feasible
from emu.experiments.cedos.simulate import Host, Sleep, simulate
from emu.experiments.cedos.world import World

ASLEEP_W, AWAKE_W = 0.043, 0.2319
LOOK_J: Final = (0.0551 - ASLEEP_W) * 120.0
BATTERY_J: Final = 7.98 * 3600.0
"""The paper's telephone's."""

_DAYS_OF_USER: Final = 10

WAYS: Final[dict[str, Callable[[], Sleep]]] = {
    "wakelock": lambda: Sleep(locked=True),
    "looks_every_1_min": lambda: Sleep(every_s=60),
    "looks_every_2_min": lambda: Sleep(every_s=120),
    "looks_every_10_min": lambda: Sleep(every_s=600),
    "alarm": Sleep,
    "no_alarm": lambda: Sleep(alarm=False),
}


def figures(count: int, seed: int, names: Iterable[str] = WAYS) -> dict[str, Any]:
    """Return by way: idle power, time awake and why, deadlines met, share over Wi-Fi."""
    return {name: _way(WAYS[name], count, seed) for name in names}


def _way(make: Callable[[], Sleep], count: int, seed: int) -> dict[str, Any]:
    awake_s = looks = flows = missed = 0
    total = wifi = 0.0
    for user in range(-(-count // _DAYS_OF_USER)):
        host = Host()
        for day in range(_DAYS_OF_USER):
            drawn = world.draw(seed * 1_000_000 + user * _DAYS_OF_USER + day)
            can = feasible(drawn)
            sleep = make()
            done = simulate(
                World(drawn.wifi, drawn.cellular, can),
                ChanceScheduler(),
                host,
                begin_s=float(day * world.DAY_S),
                sleep=sleep,
            )
            awake_s, looks = awake_s + sleep.awake_s, looks + sleep.looks
            flows += len(can)
            missed += sum(one.done_s > each.deadline_s for one, each in zip(done, can, strict=True))
            total += sum(each.size_bytes for each in can)
            wifi += sum(one.wifi_bytes for one in done)
    number = -(-count // _DAYS_OF_USER) * _DAYS_OF_USER
    lasted_s = float(number * world.DAY_S)
    joules = ASLEEP_W * (lasted_s - awake_s) + AWAKE_W * awake_s + LOOK_J * looks
    return {
        "days": number,
        "mw": 1000.0 * joules / lasted_s,
        "battery_share_a_day": joules / number / BATTERY_J,
        "awake_share": awake_s / lasted_s,
        "looks_a_day": looks / number,
        "flows": flows,
        "met_share": 1.0 - missed / flows,
        "missed": missed,
        "wifi_share": wifi / total,
    }
