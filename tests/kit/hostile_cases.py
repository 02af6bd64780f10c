"""Hostile cases for the daemon: places, loads, settings and predictors at random, and what must hold.

A case is drawn from a number: cuts and odd pairs of a collection's networks, or traces made to mislead;
interfaces that come and go; a hard budget; settings at random, and predictors that say anything. The
simulated daemon then carries its transfers, or the proxy beside it does, and `check` looks for faults:

- an exception;
- a command that names a network that is down or barred while another one is there (`astray`);
- a connection over a dead network for long, though it may move and another network lives, or one through
  the proxy that gets nothing or is refused while any network lives (`stranded`);
- more than six moves of a connection in ten seconds, the last one not away from silence (`flaps`);
- a hard budget that is exceeded by more than what was on its way (`overspent`): what the network carries
  in half a second, and its queues (`docs/state.md`).
"""

import hashlib
import math
import traceback
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

import msgspec
import numpy as np

from cedos.budget_kinds import Resource
from cedos.config import Config
from cedos.controller import commands as do
from cedos.controller.commands import NOWHERE, Command
from cedos.controller.config import Choices
from cedos.model import Budget, Direction, NetworkKind, PhoneUse
from emu import policies
from emu.places.places import Places
from emu.places.traces import OPPORTUNITY_BYTES, Trace
from emu.simulator.connection import Transfer
from emu.simulator.gateway import ProxiedTransfer, SimulatedGateway
from emu.simulator.laptop import SimulatedLaptop
from emu.simulator.link import Clock, Network
from emu.testbed.access import INTERFACES, Access
from emu.testbed.wiring import SERVER_ADDRESSES
from emu.workloads.mixed import PlannedTransfer
from predictors.base import Distribution

# The seconds in which a case's transfers begin, and the longest that one takes.
LENGTH_S: Final = 10.0
_LIMIT_S: Final = 12.0
_LOOK_S: Final = 0.5
# A connection that gets nothing for so long, while another network lives throughout, is stranded.
_STRANDED_S: Final = 10.0
# The packets each way in each second that a network has which lives: 1 Mbit/s.
_LIVES_PACKETS: Final = 84
_MOST_MOVES, _WITHIN_S = 6, 10.0
# A spent budget is noticed within so long.
_NOTICED_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Change:
    """An interface that comes up or goes down."""

    at_s: float
    kind: NetworkKind
    up: bool


class Fickle:
    """Predictors that say anything, and something else each time."""

    features: Sequence[str] = ("size_bytes",)
    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        draw = self._draw
        return {name: Distribution((math.exp(draw.gauss(-1.0, 2.0)),)) for name in self.strategies}


@dataclass(frozen=True, slots=True)
class Case:
    """A case, wholly given by its number and a collection of places."""

    number: int
    accesses: Mapping[NetworkKind, Access]
    plan: Sequence[PlannedTransfer]
    changes: Sequence[Change]
    config: Config
    predictors: str
    budget: Budget | None
    gateway: bool = False  # programs connect through the proxy


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a case: its faults (kind, in words), and a digest of all that happened."""

    faults: tuple[tuple[str, str], ...]
    digest: str
    transfers: int


# -- drawing ----------------------------------------------------------------------------------


def draw(number: int, places: Places, *, gateway: bool = False) -> Case:
    """Draw a case."""
    random = Random(f"hostile/{number}")
    accesses = {kind: _access(kind, random, places) for kind in NetworkKind if kind in INTERFACES}
    changes: list[Change] = []
    if random.random() < 0.3:
        for _ in range(random.randint(1, 4)):
            kind, at_s = random.choice(list(accesses)), random.uniform(1.0, LENGTH_S - 2.0)
            changes.append(Change(at_s, kind, up=False))
            changes.append(Change(at_s + random.choice((0.05, 0.5, 3.0, 10.0)), kind, up=True))
    budget = None
    if random.random() < 0.3:
        supply = random.choice((1e5, 1e6, 3e6, 1e7, 3e7))
        budget = Budget(
            *("data", Resource.DATA, supply, "2026-12-01T00:00:00"),
            networks=(INTERFACES[NetworkKind.CELLULAR],),
            hard=True,
        )
    return Case(
        number,
        accesses,
        _plan(random),
        sorted(changes, key=lambda each: each.at_s),
        _config(random),
        predictors=random.choice(("shipped", "shipped", "shipped", "fickle")),
        budget=budget,
        gateway=gateway,
    )


def _access(kind: NetworkKind, random: Random, places: Places) -> Access:
    if random.random() < 0.5:
        # A cut of some place, so that the two networks are seldom of the same one.
        given = random.choice(list(places.values())).networks[kind.value]
        whole = Access(kind, up=given.up, down=given.down, rtt_s=given.rtt_s)
        return whole.rotated(random.uniform(0.0, given.down.period_s), LENGTH_S + _LIMIT_S)
    rtt_s = math.exp(random.uniform(math.log(0.002), math.log(0.4)))
    queue = random.choice((None, None, None, random.randint(1, 20), 1000))
    down, up = _misleading(random), _misleading(random)
    return Access(kind, up=down if random.random() < 0.5 else up, down=down, rtt_s=rtt_s,
                  queue_packets=queue)  # fmt: skip


def _misleading(random: Random) -> Trace:
    """Make a trace: on and off, in bursts, dying, hardly alive, or steady."""
    rate_bps = math.exp(random.uniform(math.log(5e4), math.log(4e7)))
    each_ms = 12e6 / rate_bps
    length_ms = 1000.0 * (LENGTH_S + _LIMIT_S)
    times_ms = np.arange(each_ms, length_ms, each_ms)
    match random.choice(("on-off", "on-off", "dies", "comes", "crawls", "steady")):
        case "on-off":
            period_ms = random.choice((100.0, 500.0, 1000.0, 2000.0, 5000.0, 12_000.0))
            phase_ms, on = random.uniform(0.0, period_ms), random.uniform(0.1, 0.9)
            times_ms = times_ms[(times_ms + phase_ms) % period_ms < on * period_ms]
        case "dies":
            times_ms = times_ms[times_ms < random.uniform(0.0, length_ms)]
        case "comes":
            times_ms = times_ms[times_ms > random.uniform(0.0, length_ms)]
        case "crawls":
            times_ms = np.arange(300.0, length_ms, random.choice((300.0, 1000.0, 4000.0)))
    return Trace(times_ms.astype(np.int64), int(length_ms))


def _plan(random: Random) -> list[PlannedTransfer]:
    count, share = random.randint(3, 30), random.random()
    drawn = sorted(
        (random.uniform(0.0, LENGTH_S), random.uniform(0.0, math.log(8e6))) for _ in range(count)
    )
    return [
        PlannedTransfer(
            *(number, "hostile", at_s, random.choice(SERVER_ADDRESSES)),
            random.choice((Direction.DOWN, Direction.DOWN, Direction.UP)),
            max(round(math.exp(log_size)), 1),
            mptcp=random.random() < share,
        )
        for number, (at_s, log_size) in enumerate(drawn)
    ]


def _config(random: Random) -> Config:
    """Draw settings; half of the cases have the shipped ones."""
    shipped = policies.simulated("cedos").daemon
    assert shipped is not None
    if random.random() < 0.5:
        return shipped
    drawn: dict[str, dict[str, Any]] = {
        "decision": {
            "objective": random.choice(("balanced", "max-s", "max-s-per-e")),
            "phone": random.choice(list(PhoneUse)).value,
            "redundant": random.random() < 0.2,
        },
        "steering": {
            "destinations": random.random() < 0.7,
            "rescue": random.random() < 0.8,
            "short_queues": random.random() < 0.3,
            "close_stuck": random.choice(("never", "lost", "after 3s")),
        },
        "probes": {"interval_s": random.choice((0.5, 2.0, 10.0))},
    }
    return msgspec.convert(_merged(msgspec.to_builtins(shipped), drawn), Config)


def _merged(known: dict[str, Any], drawn: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return known | {section: known[section] | dict(values) for section, values in drawn.items()}


# -- checking ---------------------------------------------------------------------------------


def check(case: Case) -> Outcome:
    """Carry a case out and return its faults."""
    world = _World(case)
    try:
        world.run()
    except Exception:  # any exception is a fault that is told
        world.fault("exception", traceback.format_exc(limit=-4).strip())
    return world.outcome()


class _World:
    """A case under way, and what is seen of it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._clock = clock = Clock()
        self._networks = {kind: Network(clock, each) for kind, each in case.accesses.items()}
        # Since when each interface is up.
        self._since_s = dict.fromkeys(case.accesses, 0.0)
        self._faults: dict[str, str] = {}
        self._transfers: dict[int, Transfer | ProxiedTransfer] = {}
        self._progress: dict[int, tuple[int, float]] = {}
        self._moved_at_s: defaultdict[int, deque[float]] = defaultdict(
            lambda: deque(maxlen=_MOST_MOVES + 1)
        )
        self._moves = 0
        self._seconds = {
            kind: (_by_second(each.down), _by_second(each.up))
            for kind, each in case.accesses.items()
        }
        self._laptop = SimulatedLaptop(
            clock,
            self._networks,
            case.config,
            adapt=self._adapt,
            budget=case.budget,
            watch=self._see,
        )
        self._gateway = (
            SimulatedGateway(clock, self._networks, self._laptop) if case.gateway else None
        )

    def _adapt(self, choices: Choices) -> Choices:
        match self._case.predictors:
            case "fickle":
                return replace(choices, model=Fickle(self._case.number))
            case _:
                return choices

    def fault(self, kind: str, words: str) -> None:
        """Note the first fault of a kind."""
        self._faults.setdefault(kind, f"at {self._clock.now_s:.2f} s: {words}")

    def run(self) -> None:
        case, clock = self._case, self._clock
        for planned in case.plan:
            clock.at(planned.at_s, self._begin, planned)
        for change in case.changes:
            clock.at(change.at_s, self._change, change)
        clock.after(_LOOK_S, self._look)
        (self._gateway or clock).run(LENGTH_S + _LIMIT_S)
        if case.budget is not None:
            lte = self._networks[NetworkKind.CELLULAR]
            used = lte.down.delivered_bytes + lte.up.delivered_bytes
            coming = _on_its_way(case.accesses[NetworkKind.CELLULAR])
            if used > case.budget.supply + coming:
                self.fault(
                    "overspent",
                    f"{used:,} of {case.budget.supply:,.0f} bytes, {coming:,} on their way at most",
                )

    def outcome(self) -> Outcome:
        found = [
            (number, transfer.ended_s, *(transfer.packets.get(each) for each in self._networks.values()))
            for number, transfer in self._transfers.items()
        ]  # fmt: skip
        told = repr((found, self._moves, sorted(self._faults.items())))
        return Outcome(
            tuple(self._faults.items()), hashlib.sha256(told.encode()).hexdigest(), len(found)
        )

    def _begin(self, planned: PlannedTransfer) -> None:
        carrier = self._gateway or self._laptop
        transfer = self._transfers[planned.number] = carrier.begin(planned)
        self._progress[planned.number] = (0, self._clock.now_s)
        self._clock.after(_LIMIT_S, carrier.stop, transfer)

    def _change(self, change: Change) -> None:
        self._since_s[change.kind] = self._clock.now_s if change.up else math.inf
        self._laptop.set_up(change.kind, change.up)

    # What the daemon commands.

    def _see(self, laptop: SimulatedLaptop, command: Command) -> None:
        match command:
            case do.SetDefault(network, others):
                led = {network, *others.values()}
            case do.SetDestinations(wanted):
                led = {each for each in wanted.values() if each not in (None, NOWHERE)}
            case do.RescueFlow(_, network):
                led = {network}
            case do.MoveConnection(token, strategy):
                led = set(strategy.networks)
                self._moves += 1
                moved = self._moved_at_s[token]
                moved.append(self._clock.now_s)
                often = len(moved) > _MOST_MOVES and moved[-1] - moved[0] < _WITHIN_S
                if often and not laptop.hears_nothing():
                    times = ", ".join(f"{each:.2f}" for each in moved)
                    self.fault("flaps", f"transfer {token - 1} moved at {times}")
            case _:
                return
        known = laptop.usable()
        astray = {each for each in led if each} - known
        if known and astray:
            self.fault("astray", f"{command} though only {sorted(known)} may be used")

    # What becomes of connections.

    def _look(self) -> None:
        now_s = self._clock.now_s
        for number, transfer in self._transfers.items():
            if transfer.ended_s is not None or transfer.stopped:
                refused = isinstance(transfer, ProxiedTransfer) and transfer.stream is None
                if refused and number in self._progress:
                    del self._progress[number]  # it is judged once
                    self._judge(self._case.plan[number], transfer)
                continue
            carried = _carried(transfer)
            if carried != self._progress[number][0]:
                self._progress[number] = (carried, now_s)
            elif now_s - self._progress[number][1] >= _STRANDED_S:
                self._judge(self._case.plan[number], transfer)
        self._clock.after(_LOOK_S, self._look)

    def _judge(self, planned: PlannedTransfer, transfer: Transfer | ProxiedTransfer) -> None:
        """Tell whether a transfer that gets nothing could get something elsewhere."""
        if isinstance(transfer, ProxiedTransfer):
            living = self._living()
            if self._case.budget is not None:  # its price may hold what can wait off its network
                living = [each for each in living if each is not NetworkKind.CELLULAR]
            if living:
                self.fault("stranded", f"{_words(planned)} through the proxy while {living} lives")
            return
        may_move = planned.mptcp and bool(transfer.joined)
        if not may_move and (transfer.joined or not self._case.config.steering.rescue):
            return  # a plain connection stays where it is
        here = {kind for kind in self._networks if self._networks[kind] in transfer.used}
        living = self._living()
        if living and here.isdisjoint(living):
            what = "MPTCP" if may_move else "a first packet"
            self.fault(
                "stranded", f"{_words(planned)}, {what}, on {sorted(here)} while {living} lives"
            )

    def _living(self) -> list[NetworkKind]:
        return sorted(kind for kind in self._networks if self._lives(kind))

    def _lives(self, kind: NetworkKind) -> bool:
        now_s = self._clock.now_s
        if self._networks[kind].barred or now_s - self._since_s[kind] < _STRANDED_S:
            return False
        down, up = self._seconds[kind]
        first, last = int(now_s - _STRANDED_S), int(now_s)
        return all(int(min(each[first:last], default=0)) >= _LIVES_PACKETS for each in (down, up))


def _carried(transfer: Transfer | ProxiedTransfer) -> int:
    """Return a number that grows with what a transfer gets."""
    if isinstance(transfer, Transfer):
        return sum(transfer.packets.values()) + len(transfer.joined)
    stream = transfer.stream
    return 0 if stream is None else 1 + stream.sent_bytes + stream.received_bytes


def _words(planned: PlannedTransfer) -> str:
    return (
        f"transfer {planned.number} ({planned.direction}, {planned.size_bytes} bytes,"
        f" begun at {planned.at_s:.2f} s)"
    )


def _by_second(trace: Trace) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Count the opportunities of each second of a case."""
    seconds = int(LENGTH_S + _LIMIT_S)
    return np.histogram(trace.repeated(seconds).times_ms, bins=seconds, range=(0, 1000 * seconds))[
        0
    ]


def _on_its_way(access: Access) -> int:
    """Return the most bytes that come after a look finds a budget spent."""
    rate = sum(int(_by_second(each).max()) for each in (access.down, access.up))
    queued = access.queue_down_packets + access.queue_up_packets
    return round(OPPORTUNITY_BYTES * (_NOTICED_S * rate + queued))
