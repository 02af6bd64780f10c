"""Cedos' Figure 6, Table VI, Figure 7 and Figure 8, simulated.

Figure 6: 100 MB flows against slow Wi-Fi, against one another, and one urgent among nine.

Table VI: the share and mean length of allowed delays in each group is the paper's, since no simulation
says what people choose. Delays are exponential with the published mean, six hours at most. Downloads
without delay go over Wi-Fi where there is any, else over the cellular network; people chose "no delay"
where they knew of Wi-Fi (79.5 % over Wi-Fi), here they choose it anywhere.

Figure 7: the paper measured a telephone (V-B.2): 43 mW asleep, 231.9 mW awake with a WakeLock, and 55.1
mW where D-Lock wakes it every two minutes to look for Wi-Fi, so 1.45 J a look. The radios' energy of the
downloads is not counted.

Figure 8: drawn with what Cedos published (V-B.1): 44 stops, attached for 56.4 s at each and 60.3 s
without on average, 9 of them carry anything, for 34.4 s at 6.29 Mbit/s. Not published, and assumed:
they carry in the middle of a stop, stops spread exponentially, LTE carried 4.7 Mbit/s as in Figure 6.

A stream that is played through a place: simulated, and as one who knows the future would buy it. Pure.

`play` has the same BufferManager as `cedos-get --bitrate`. Networks carry what the traces say, at once; a
path is there as soon as its network carries something (`_CONNECT_S`), and known to be silent after
`_SILENT_S`.

`least_metered_bytes` is exact for rates that are constant within a second: a metered byte is of use as
late as it can come, for then the store has the most room for unmetered ones. Backwards: what must be in
store at the beginning of each second, both networks taken together. Forwards: unmetered bytes as they
come, metered ones only where the next second's need is not there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final, NamedTuple

from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.plan import D2Sched, DeadlineScheduler
from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation
from emu.experiments.cedos import world
from emu.experiments.cedos.compare import AtOnce, EachAlone, feasible, most_wifi_bytes
from emu.experiments.cedos.simulate import Carried, Host, Sleep, simulate
from emu.experiments.cedos.world import Wanted, World

_LONGEST_S: Final = 6 * 3600.0
_SHORTEST_S: Final = 300.0
_DAYS_OF_USER: Final = 10
ON_THE_SPOT_WIFI_SHARE: Final = 0.795
_STEP_S = 0.1
_CONNECT_S = 0.3
_SILENT_S = 1.0
WINDOW_BYTES = 1 << 18
ASLEEP_W, AWAKE_W = 0.043, 0.2319
LOOK_J: Final = (0.0551 - ASLEEP_W) * 120.0
WAYS: Final[dict[str, Callable[[], Sleep]]] = {
    "wakelock": lambda: Sleep(locked=True),
    "looks_every_1_min": lambda: Sleep(every_s=60),
    "looks_every_2_min": lambda: Sleep(every_s=120),
    "looks_every_10_min": lambda: Sleep(every_s=600),
    "alarm": Sleep,
    "no_alarm": lambda: Sleep(alarm=False),
}
STOPS, WORKING = 44, 9
ATTACHED_S, BETWEEN_S, CARRIES_S = 56.4, 60.3, 34.4
WIFI_BPS, LTE_BPS, BITRATE_BPS = 6.29e6, 4.7e6, 640e3
PAPER_LOW_BYTES, PAPER_HIGH_BYTES = 200_000, 3_000_000
SHOWN_EVERY_S: Final = 5
_RTT_S: Final = 0.0429
_STORE_BYTES: Final = 64e6
_CASES_SIZE_BYTES: Final = 100e6
_CASES_WIFI_BPS: Final = {"a": 0.8e6, "b": 0.0, "c": 6.3e6}
_CASES_CELLULAR_BPS: Final = {"a": 4.7e6, "b": 4.7e6, "c": 0.0}
# The time for which both networks were used before. The paper's scheduler uses the last measured
# rate.
_MEASURED_S: Final = 60
_CASES_SCHEDULERS: Final[tuple[DeadlineScheduler, ...]] = (
    AtOnce("wifi-first"),
    EachAlone(),
    D2Sched(),
    ChanceScheduler(),
)


@dataclass(frozen=True, slots=True)
class Playback:
    """A stream of so many seconds at one rate; it is played `delay_s` after it was asked for."""

    bitrate_bps: float
    seconds: float
    delay_s: float = 2.0
    store_bytes: float = 64e6


def _due(playback: Playback, until_s: float) -> float:
    """Return the bytes that must have come by then."""
    seconds = min(max(until_s - playback.delay_s, 0.0), playback.seconds)
    return playback.bitrate_bps / 8 * seconds


def least_metered_bytes(
    unmetered_bps: Sequence[float], metered_bps: Sequence[float], playback: Playback
) -> float | None:
    """Return the bytes; None if no plan plays it without a stall."""
    steps = len(unmetered_bps)
    whole = playback.bitrate_bps / 8 * playback.seconds
    played = [_due(playback, n + 1) - _due(playback, n) for n in range(steps)]
    need = [0.0] * (steps + 1)
    for n in reversed(range(steps)):
        come = (unmetered_bps[n] + metered_bps[n]) / 8
        need[n] = max(need[n + 1] + played[n] - come, 0.0)
    stored = fetched = metered = 0.0
    for n in range(steps):
        room = playback.store_bytes + played[n] - stored
        free = min(unmetered_bps[n] / 8, whole - fetched, max(room, 0.0))
        bought = min(max(need[n + 1] + played[n] - stored - free, 0.0), whole - fetched - free)
        if bought > metered_bps[n] / 8 + 1.0:
            return None
        fetched += free + bought
        stored += free + bought - played[n]
        metered += bought
    return metered


@dataclass(slots=True)
class Played:
    """The cost of a stream, and its stalls."""

    metered_bytes: float = 0.0
    unmetered_bytes: float = 0.0
    stalls: int = 0
    stalled_s: float = 0.0
    starts: int = 0
    metered_s: float = 0.0  # for so long the metered network was used
    store_bytes: list[float] = field(default_factory=list)  # what was stored, at each second


def play(
    unmetered_bps: Sequence[float],
    metered_bps: Sequence[float],
    playback: Playback,
    rtt_s: float = 0.06,
    manager: BufferManager | None = None,
) -> Played:
    """Rate are of each second; `manager`: with other thresholds than `cedos-get` computes."""
    manager = manager or BufferManager(bitrate_bps=playback.bitrate_bps, window_bytes=WINDOW_BYTES)
    result = Played()
    whole = playback.bitrate_bps / 8 * playback.seconds
    store = unread = fetched = consumed = 0.0
    wifi_s = metered_s = quiet_s = 0.0  # for how long each network carries, or is used
    silent_s = _SILENT_S
    carried = [0.0] * round(1 / _STEP_S)
    standing = started = False
    granted = float(WINDOW_BYTES)
    for n in range(round(len(unmetered_bps) / _STEP_S)):
        second = min(int(n * _STEP_S + 1e-9), len(unmetered_bps) - 1)
        wifi, lte = unmetered_bps[second], metered_bps[second]
        silent_s = 0.0 if wifi else silent_s + _STEP_S
        up = silent_s < _SILENT_S
        wifi_s = wifi_s + _STEP_S if up else 0.0
        buffered = store + unread if fetched < whole else 1e12
        was = manager.filling
        situation = BufferSituation(
            int(buffered),
            wifi_s if up and wifi_s >= _CONNECT_S else None,
            8 * sum(carried),
            lte,
            rtt_s,
            quiet_s,
        )
        filling = manager.metered_wanted(situation)
        result.starts += filling and not was
        metered_s = metered_s + _STEP_S if filling else 0.0
        result.metered_s += _STEP_S if filling else 0.0
        if n % round(1 / _STEP_S) == 0:
            result.store_bytes.append(store + unread)
        if filling and not was:
            started = False
        room = max(granted - fetched, 0.0)
        free = min(wifi / 8 * _STEP_S, room, whole - fetched) if wifi_s >= _CONNECT_S else 0.0
        paid = 0.0
        if filling and metered_s >= _CONNECT_S:
            paid = min(lte / 8 * _STEP_S, room - free, whole - fetched - free)
        if paid and not started:
            manager.on_start(metered_s)
            started = True
        quiet_s = 0.0 if free + paid else quiet_s + _STEP_S
        carried = [*carried[1:], free]
        fetched += free + paid
        unread += free + paid
        result.unmetered_bytes += free
        result.metered_bytes += paid
        if manager.may_read(int(store), int(playback.store_bytes)):
            store, unread = store + unread, 0.0
            granted = max(granted, fetched + manager.window_bytes)
        if n * _STEP_S >= playback.delay_s and consumed < whole:
            wanted = min(playback.bitrate_bps / 8 * _STEP_S, whole - consumed)
            had = min(wanted, store)
            store -= had
            consumed += had
            if had < wanted - 1.0:
                result.stalls += not standing
                result.stalled_s += _STEP_S * (1 - had / wanted)
                standing = True
            else:
                standing = False
    return result


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


def table6(count: int, seed: int) -> dict[str, Any]:
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
            # Draw which downloads may wait, and for how long.
            for flow in drawn.flows:
                if random.random() < group.delayed_share:
                    delay_s = random.expovariate(1.0 / group.mean_delay_s)
                    delay_s = min(max(delay_s, _SHORTEST_S), _LONGEST_S)
                    later.append(flow._replace(deadline_s=flow.released_s + delay_s))
                else:
                    now.append(flow)
            # Both kinds share the networks' rates, but not each other's queue: they are simulated apart.
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
    # People chose "no delay" where they knew of Wi-Fi: take their share for those downloads.
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


def figure7(count: int, seed: int, names: Iterable[str] = WAYS) -> dict[str, Any]:
    """Return by way: idle power, time awake and why, deadlines met, share over Wi-Fi."""
    return {name: _way(WAYS[name], count, seed) for name in names}


def _way(make: Callable[[], Sleep], count: int, seed: int) -> dict[str, Any]:
    awake_s = looks = flows = missed = 0
    total = wifi = 0.0
    for user in range(-(-count // _DAYS_OF_USER)):
        # What a host has learned of its networks is kept from day to day.
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
    # Asleep, awake, and each look for Wi-Fi, by the paper's measured powers.
    joules = ASLEEP_W * (lasted_s - awake_s) + AWAKE_W * awake_s + LOOK_J * looks
    return {
        "days": number,
        "mw": 1000.0 * joules / lasted_s,
        "awake_share": awake_s / lasted_s,
        "looks_a_day": looks / number,
        "flows": flows,
        "met_share": 1.0 - missed / flows,
        "missed": missed,
        "wifi_share": wifi / total,
    }


def ride(seed: int) -> tuple[list[float], list[bool]]:
    """Wi-Fi's rate in each second, and whether there is an access point, working or not."""
    random = Random(seed)
    working = set(random.sample(range(STOPS), WORKING))
    rates: list[float] = []
    attached: list[bool] = []
    for stop in range(STOPS):
        away_s = 30 + round(random.expovariate(1.0 / (BETWEEN_S - 30)))
        stay_s = 36 + round(random.expovariate(1.0 / (ATTACHED_S - 36)))
        carries_s = round(CARRIES_S) if stop in working else 0
        before_s = (stay_s - carries_s) // 2
        rates += [0.0] * (away_s + before_s) + [WIFI_BPS] * carries_s
        rates += [0.0] * (stay_s - before_s - carries_s)
        attached += [False] * away_s + [True] * stay_s
    return rates, attached


def figure8(seeds: int = 20) -> dict[str, Any]:
    """Shares over Wi-Fi by thresholds, and one whole ride each five seconds."""
    found: dict[str, Any] = {}
    for name, given in (
        ("computed", {}),
        ("paper", {"low_bytes": PAPER_LOW_BYTES, "high_bytes": PAPER_HIGH_BYTES}),
    ):
        shares, stalls, lte_s, best = [], 0, [], []
        for seed in range(seeds):
            wifi, attached = ride(seed)
            lte = [LTE_BPS] * len(wifi)
            playback = Playback(BITRATE_BPS, len(wifi) - 10.0, store_bytes=_STORE_BYTES)
            manager = BufferManager(bitrate_bps=BITRATE_BPS, window_bytes=WINDOW_BYTES, **given)
            one = play(wifi, lte, playback, _RTT_S, manager)
            total = one.unmetered_bytes + one.metered_bytes
            shares.append(one.unmetered_bytes / total)
            stalls += one.stalls
            lte_s.append(one.metered_s)
            # One who knows the future buys the fewest metered bytes.
            least = least_metered_bytes(wifi, lte, playback)
            best.append(1.0 - (least or 0.0) / total)
            # The first ride is drawn in the notebook.
            if seed == 0:
                found[f"{name}_ride"] = {
                    "step_s": SHOWN_EVERY_S,
                    "store_bytes": [round(each) for each in one.store_bytes[::SHOWN_EVERY_S]],
                    "attached": [int(each) for each in attached[::SHOWN_EVERY_S]],
                    "carries": [int(each > 0) for each in wifi[::SHOWN_EVERY_S]],
                }
        found[name] = {
            "wifi_share": sum(shares) / seeds,
            "wifi_share_least_most": [min(shares), max(shares)],
            "clairvoyant_wifi_share": sum(best) / seeds,
            "stalls": stalls,
            "lte_s": sum(lte_s) / seeds,
            "rides": seeds,
        }
    return found


def figure6_world(case: str) -> World:
    flows = {
        "a": [Wanted(0, _CASES_SIZE_BYTES, 300.0)],
        "b": [Wanted(0, _CASES_SIZE_BYTES, 1800.0)] * 10,
        "c": [Wanted(0, _CASES_SIZE_BYTES, 1800.0)] * 9 + [Wanted(0, _CASES_SIZE_BYTES, 300.0)],
    }[case]
    long_s = 3600
    wifi, cellular = _CASES_WIFI_BPS[case], _CASES_CELLULAR_BPS[case]
    return World(
        [wifi] * long_s,
        [cellular] * long_s,
        flows,
        [wifi] * _MEASURED_S if wifi else (),
        [cellular] * _MEASURED_S if cellular else (),
    )


def run_figure6(case: str, *, keep_parts: bool = False) -> dict[str, list[Carried]]:
    """Run a case under each scheduler."""
    return {
        each.name: simulate(figure6_world(case), each, keep_parts=keep_parts)
        for each in _CASES_SCHEDULERS
    }


def figure6() -> dict[str, Mapping[str, object]]:
    """Return by case and scheduler: deadlines met, share over Wi-Fi, when each was done."""
    found: dict[str, Mapping[str, object]] = {}
    for case in "abc":
        of = figure6_world(case)
        total = sum(flow.size_bytes for flow in of.flows)
        by: dict[str, object] = {
            name: {
                "met": sum(
                    one.done_s <= flow.deadline_s for one, flow in zip(done, of.flows, strict=True)
                ),
                "wifi_share": sum(one.wifi_bytes for one in done) / total,
                "done_s": [round(one.done_s, 1) for one in done],
            }
            for name, done in run_figure6(case).items()
        }
        found[case] = by | {
            "flows": len(of.flows),
            "feasible": len(feasible(of)),
            "clairvoyant_wifi_share": most_wifi_bytes(of) / total,
        }
    return found
