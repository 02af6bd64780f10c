"""Table VI: three groups of users by their data cap, and the share of their downloads over Wi-Fi.

How many downloads each group allowed a delay, and how long a one on average, is the paper's and goes in:
nothing simulated can say what people choose. Days are drawn (`days`), delays of the delayed downloads are
exponential with the published mean, six hours at most. What comes out is the share over Wi-Fi with the
scheduler that `cedos-pod` uses; downloads without delay go over Wi-Fi where there is any, else over the
cellular network. People chose "no delay" where they knew of Wi-Fi (79.5 % over Wi-Fi); here they choose
it anywhere.
"""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

from cedos.selector.deadlines.chance import ChanceScheduler
from emu.experiments.cedos import world
from emu.experiments.cedos.compare import AtOnce, feasible
from emu.experiments.cedos.simulate import Carried, Host, simulate
from emu.experiments.cedos.world import Wanted, World

_LONGEST_S: Final = 6 * 3600.0
_SHORTEST_S: Final = 300.0
_DAYS_OF_USER: Final = 10
ON_THE_SPOT_WIFI_SHARE: Final = 0.795


class Group(NamedTuple):
    """Published figures by monthly cap: how many downloads may wait, how long, share over Wi-Fi."""

    name: str
    delayed_share: float
    mean_delay_s: float
    wifi_share: float


GROUPS: Final = (
    Group("up to 1 GB", 0.627, 186.1 * 60, 0.926),
    Group("1 to 5 GB", 0.522, 101.7 * 60, 0.907),
    Group("5 GB or more", 0.476, 100.9 * 60, 0.885),
)


def figures(count: int, seed: int) -> dict[str, Any]:
    """Return figures by group, of `count` days each."""
    return {group.name: _group(group, count, seed) for group in GROUPS}


def _group(group: Group, count: int, seed: int) -> dict[str, Any]:
    random = Random(f"{seed} {group.name}")
    total = wifi = delayed_total = delayed_wifi = 0.0
    delayed = missed = downloads = switching = switched = 0
    delays: list[float] = []
    for user in range(-(-count // _DAYS_OF_USER)):
        waiting, at_once = Host(), Host()
        for day in range(_DAYS_OF_USER):
            begin_s = float(day * world.DAY_S)
            drawn = world.draw(seed * 1_000_000 + user * _DAYS_OF_USER + day)
            now: list[Wanted] = []
            later: list[Wanted] = []
            for flow in drawn.flows:
                if random.random() < group.delayed_share:
                    delay_s = random.expovariate(1.0 / group.mean_delay_s)
                    delay_s = min(max(delay_s, _SHORTEST_S), _LONGEST_S)
                    later.append(flow._replace(deadline_s=flow.released_s + delay_s))
                else:
                    now.append(flow)
            can = feasible(World(drawn.wifi, drawn.cellular, later))
            spot = simulate(
                World(drawn.wifi, drawn.cellular, now),
                AtOnce(), at_once, begin_s=begin_s, keep_parts=True,
            )  # fmt: skip
            late = simulate(
                World(drawn.wifi, drawn.cellular, can),
                ChanceScheduler(), waiting, begin_s=begin_s, keep_parts=True,
            )  # fmt: skip
            downloads += len(now) + len(can)
            delayed += len(can)
            delays += [each.delay_s for each in can]
            missed += sum(one.done_s > each.deadline_s for one, each in zip(late, can, strict=True))
            for one in (*spot, *late):
                n_switches = switches(one)
                switching += n_switches > 0
                switched += n_switches
            total += sum(each.size_bytes for each in (*now, *can))
            wifi += sum(each.wifi_bytes for each in (*spot, *late))
            delayed_total += sum(each.size_bytes for each in can)
            delayed_wifi += sum(each.wifi_bytes for each in late)
    spot_total, spot_wifi = total - delayed_total, wifi - delayed_wifi
    as_people = ON_THE_SPOT_WIFI_SHARE * spot_total + delayed_wifi
    return {
        "downloads": downloads,
        "delayed_share": delayed / downloads,
        "mean_delay_min": sum(delays) / len(delays) / 60.0,
        "wifi_share": wifi / total,
        "delayed_wifi_share": delayed_wifi / delayed_total,
        "on_the_spot_wifi_share": spot_wifi / spot_total,
        "wifi_share_with_published_on_the_spot": as_people / total,
        "missed": missed,
        "switching_share": switching / downloads,
        "switches_of_those": switched / max(switching, 1),
        "published_wifi_share": group.wifi_share,
    }


def switches(one: Carried) -> int:
    """From one network to the other; a second with both counts for the one that carried more."""
    over: Sequence[bool] = [wifi >= cellular for _, _, wifi, cellular in one.parts]
    return sum(before != after for before, after in pairwise(over))
