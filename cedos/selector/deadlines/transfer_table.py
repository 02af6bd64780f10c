"""The table of a host's transfers with deadlines: the programs' reports, and each transfer's turn."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from cedos.errors import NotFoundError
from cedos.model import Direction
from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.network_state import HostNetworks, NetworkState, SeenNetwork
from cedos.selector.deadlines.plan import (
    DeadlineFlow,
    DeadlinePlan,
    DeadlineScheduler,
    expected_bytes,
)
from cedos.selector.deadlines.prospect import Prospect, prospect

# The most transfers of one user, and of all users.
MOST_OF_USER: Final = 1000
MOST: Final = 4000
# A program without a report for this time does not run. Its transfer waits for it and takes no
# turn.
SILENT_S: Final = 30.0

# A transfer without reports is forgotten this long after its deadline.
KEPT_S: Final = 7 * 86_400.0

# The time of little use after which a limit of the program's own is assumed.
_STUCK_S: Final = 5.0
# A running program reports every second. One that was silent for longer was stopped or starved, and
# its bytes say nothing of networks.
_AWAKE_S: Final = 5.0

# A program that uses a smaller share of its networks' rates for some time has a limit of its own.
_OWN_LIMIT: Final = 0.5

# The time for which all bytes are counted before and after more transfers begin, and the factor by which
# the bytes must grow then: twice as many have twice the bytes if servers are slow, and as many if the
# networks are full. If they do not grow, the next trial is later.
_ROUND_S: Final = 4.0
_GREW: Final = 1.5
_TRIED_AGAIN_S, _MOST_TRIED_AGAIN_S = 60.0, 600.0
_MOST_BESIDE: Final = 64


@dataclass(frozen=True, slots=True)
class TableTransfer:
    """A program's report of one transfer."""

    key: str  # the transfer's own for good, also after a restart of its program
    uid: int  # the user
    name: str
    server: str
    direction: Direction
    size_bytes: int | None  # None: not known yet
    done_bytes: int
    deadline_unix_s: float  # when all bytes are wanted
    why: str = ""  # the failure of the last attempt
    # The transfer pauses until then, and takes no turn; None: it does not pause.
    again_unix_s: float | None = None


@dataclass(frozen=True, slots=True)
class TransferTurn:
    """The turn of a transfer: what it may do now, and its prospect."""

    networks: tuple[str, ...]
    late: bool
    first: bool
    prospect: Prospect


@dataclass(slots=True)
class _Row:
    """A transfer of the table.

    `slow_s`: for how long it has used little of its networks; `most_bps`: the limit that this shows.
    """

    transfer: TableTransfer
    since_s: float
    heard_s: float = -inf
    by_network: dict[str, int] = field(default_factory=dict)
    slow_s: float = 0.0
    most_bps: float = inf


class _Beside:
    """The transfers of one direction that run beside those of the plan.

    The first transfer has all networks, but its server may drip, and then nothing is known of the
    networks. So as many as run already begin beside them (1, 2, 4, ...) until the bytes of all grow no
    more: those stop again with whom they have not grown. After a while it is tried anew.
    """

    def __init__(self) -> None:
        # With the rate of all before these began.
        self.begun: list[tuple[float, list[str]]] = []
        self.shared = False  # whether several users' transfers, or such ones, run in this round
        self._by_network: dict[str, int] = {}
        self._round_at_s = self._begun_at_s = self._next_at_s = -inf
        self._pause_s = _TRIED_AGAIN_S
        self._settled = False

    def tried_keys(self) -> list[str]:
        return [key for _, each in self.begun for key in each]

    def add(self, used: Mapping[str, int]) -> None:
        for name, count in used.items():
            self._by_network[name] = self._by_network.get(name, 0) + count

    def round(self, now: float) -> tuple[dict[str, float], float] | None:
        """Return the rate of each network in a round that ends now, and its seconds; None: it goes on."""
        lasted_s = now - self._round_at_s
        if lasted_s < _ROUND_S:
            return None
        known = {name: 8.0 * count / lasted_s for name, count in self._by_network.items()}
        self._round_at_s, self._by_network = now, {}
        if lasted_s == inf:  # the first one begins
            self._next_at_s = now + 2.0 * _ROUND_S
            return None
        return known, lasted_s

    def count_more(self, total_bps: float, running: int, now: float) -> int:
        """Return how many more may begin after a round; the last ones may have to stop."""
        if not self.begun:
            if now < self._next_at_s:
                return 0
            self._begun_at_s, self._settled = now, False
        elif now - self._begun_at_s >= _TRIED_AGAIN_S:
            self.begun, self._next_at_s = [], now
            return 0
        elif self._settled:
            return 0
        elif 0.0 < total_bps < _GREW * self.begun[-1][0]:
            # Earlier ones, too: the network may have been faster for a moment as they began.
            while self.begun and total_bps < _GREW * self.begun[-1][0]:
                self.begun.pop()
            self._settled = True
            if not self.begun:
                self._next_at_s = now + self._pause_s
                self._pause_s = min(2.0 * self._pause_s, _MOST_TRIED_AGAIN_S)
            return 0
        else:
            self._pause_s = _TRIED_AGAIN_S
        return min(max(running, 1), _MOST_BESIDE - len(self.tried_keys()))


class TransferTable:
    """The table; it has one plan for each direction, as the two ways of a network do not share rates.

    `clock_s` is the difference between the wall's clock and that of `now`.
    """

    def __init__(
        self, networks: HostNetworks | None = None, scheduler: DeadlineScheduler | None = None
    ) -> None:
        self.networks = networks or HostNetworks()
        self._scheduler = scheduler or ChanceScheduler()
        self._rows: dict[str, _Row] = {}
        self._plans = dict.fromkeys(Direction, DeadlinePlan())
        self._states: dict[Direction, list[NetworkState]] = {way: [] for way in Direction}
        self._beside = {way: _Beside() for way in Direction}
        self._seen: Sequence[SeenNetwork] = ()
        self._clock_s = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def report(self, transfer: TableTransfer, now: float) -> None:
        """Record a program's report of its transfer, the first one or a later one.

        ValueError: there are too many, or the key is another user's.
        """
        if why := self.refusal(transfer):
            raise ValueError(why)
        row = self._rows.setdefault(transfer.key, _Row(transfer, now))
        row.transfer, row.heard_s = transfer, now

    def refusal(self, transfer: TableTransfer) -> str:
        """Return why a transfer cannot be reported, in words; "": it can."""
        row = self._rows.get(transfer.key)
        if row is not None:
            other = row.transfer.uid != transfer.uid
            return "a transfer of another user has this key" if other else ""
        of_user = sum(each.transfer.uid == transfer.uid for each in self._rows.values())
        if of_user >= MOST_OF_USER or len(self._rows) >= MOST:
            return f"{of_user} transfers of this user wait already; {MOST_OF_USER} can"
        return ""

    def add_bytes(self, key: str, used: dict[str, int], lasted_s: float, now: float) -> None:
        """Record the bytes that came over each network since the last report."""
        row = self._rows[key]
        direction = row.transfer.direction
        allowed = self._plans[direction].served.get(key, ())
        total_bps = can_bps = 0.0
        for name, count in used.items():
            row.by_network[name] = row.by_network.get(name, 0) + count
        beside = self._beside[direction]
        if lasted_s <= _AWAKE_S:
            beside.add(used)
        # A shorter time gives no rate; in a longer one the program did not run all the time. Of several
        # transfers only all together show what their networks carry.
        if not 0.2 <= lasted_s <= _AWAKE_S or not allowed or beside.shared:
            return
        for name in allowed:
            bps = 8.0 * used.get(name, 0) / lasted_s
            total_bps += bps
            state = next((each for each in self._states[direction] if each.name == name), None)
            can_bps += state.rate_bps if state is not None else 0.0
        # It steadily uses much less than its networks can carry, so its server or its program limits it.
        # The assumed limit is a fifth higher, which leaves it room to show that the limit is gone.
        slow = total_bps < _OWN_LIMIT * can_bps
        row.slow_s = row.slow_s + lasted_s if slow else 0.0
        row.most_bps = max(1.2 * total_bps, 1e3) if row.slow_s >= _STUCK_S else inf
        for name in allowed:
            # Bytes behind another limit say nothing of the network.
            bps = 8.0 * used.get(name, 0) / lasted_s
            if bps > 0.0 and row.most_bps == inf:
                self.networks.on_measured(name, direction, bps, lasted_s, now)

    def end(self, key: str) -> None:
        """Remove a transfer that is done, or given up."""
        self._rows.pop(key, None)

    def plan(self, seen: Sequence[SeenNetwork], unix_s: float, now: float) -> bool:
        """Plan again; return whether any transfer's networks have changed."""
        self._clock_s, self._seen = unix_s - now, seen
        self.networks.watch(seen, now)
        for key, row in list(self._rows.items()):
            if unix_s > row.transfer.deadline_unix_s + KEPT_S and not self._runs(row, now):
                del self._rows[key]
        changed = False
        if not self._rows:  # most hosts have none, most of the time
            changed = any(plan.served for plan in self._plans.values())
            self._plans = dict.fromkeys(Direction, DeadlinePlan())
            self._beside = {way: _Beside() for way in Direction}
            return changed
        for way in Direction:
            flows = self.flows(way, now)
            states = self.networks.states(seen, way, now, used=bool(flows))
            self._states[way] = states
            before = self._plans[way]
            plan = self._scheduler.plan(flows, states, now, before)
            if len(plan.served) < len(flows):
                plan = self._add_beside(way, flows, plan, now)
            else:
                self._beside[way] = _Beside()
            self._plans[way] = plan
            changed = changed or plan.served != before.served
        return changed

    def _add_beside(
        self, way: Direction, flows: Sequence[DeadlineFlow], plan: DeadlinePlan, now: float
    ) -> DeadlinePlan:
        """Return the plan with what runs beside it: each user's own, and transfers that are tried."""
        states, before, beside = self._states[way], self._plans[way], self._beside[way]
        served, late, paid = dict(plan.served), set(plan.late), set(plan.paid)
        rows = {flow.key: self._rows[str(flow.key)].transfer for flow in flows}

        def join(some: Sequence[DeadlineFlow]) -> None:
            own = self._scheduler.plan(some, states, now, before)
            for key in own.served.keys() - served.keys():
                served[key] = own.served[key]
                late.difference_update({key} - own.late)
            paid.update(own.paid)

        # No user waits for another: who has no turn gets the plan of the own transfers alone.
        of_user: dict[int, list[DeadlineFlow]] = {}
        for flow in flows:
            of_user.setdefault(rows[flow.key].uid, []).append(flow)
        for uid in of_user.keys() - {rows[key].uid for key in served}:
            join(of_user[uid])
        shared = len({rows[key].uid for key in served}) > 1
        if (ended := beside.round(now)) is not None:
            known, lasted_s = ended
            for name, bps in known.items() if beside.shared else ():
                for ago_s in range(int(lasted_s) - 1, -1, -1):
                    self.networks.on_measured(name, way, bps, 1.0, now - ago_s)
            running = len(served.keys() | set(beside.tried_keys()))
            total_bps = sum(known.values())
            more = beside.count_more(total_bps, running, now)
            if more > 0 and (
                begin := self._keys_to_begin(flows, {*served, *beside.tried_keys()}, more)
            ):
                beside.begun.append((total_bps, begin))
        by_key = {flow.key: flow for flow in flows}
        for key in beside.tried_keys():
            if key in by_key and key not in served:
                join([by_key[key]])
        beside.shared = shared or bool(beside.begun)
        names = tuple(each.name for each in states if each.name in paid)
        return DeadlinePlan(served, names, frozenset(late))

    def _keys_to_begin(
        self, flows: Sequence[DeadlineFlow], run: Set[Hashable], most: int
    ) -> list[str]:
        """Return the keys of those that begin next: of the servers with the fewest, then by deadline."""
        of_server = Counter(self._server(flow) for flow in flows if flow.key in run)
        waiting = sorted(
            [flow for flow in flows if flow.key not in run],
            key=lambda flow: (of_server[self._server(flow)], flow.deadline_at_s),
        )
        return [str(flow.key) for flow in waiting[:most]]

    def _server(self, flow: DeadlineFlow) -> tuple[int, str]:
        transfer = self._rows[str(flow.key)].transfer
        return transfer.uid, transfer.server

    def networks_of(self, key: str) -> tuple[str, ...]:
        """Return the networks that a transfer may use now."""
        row = self._rows.get(key)
        return () if row is None else self._plans[row.transfer.direction].served.get(key, ())

    def serial(self, key: str) -> str:
        """Return a text that changes when the transfer's networks change, or when it becomes late."""
        row = self._rows.get(key)
        if row is None:
            return ""
        plan = self._plans[row.transfer.direction]
        return "+".join(
            [*sorted(plan.served.get(key, ())), *(["late"] if key in plan.late else [])]
        )

    def flows(self, direction: Direction, now: float) -> list[DeadlineFlow]:
        """Return the flows whose programs run and which do not pause."""
        return [
            self._flow(row)
            for row in self._rows.values()
            if row.transfer.direction is direction
            and row.transfer.again_unix_s is None
            and self._runs(row, now)
        ]

    def turn(
        self, key: str, now: float, flows: Sequence[DeadlineFlow] | None = None
    ) -> TransferTurn:
        """Return the turn of a transfer; `flows`: those of its direction, if known already.

        NotFoundError: there is none.
        """
        row = self._rows.get(key)
        if row is None:
            raise NotFoundError("this transfer is not in the table")
        way = row.transfer.direction
        plan = self._plans[way]
        others = self.flows(way, now) if flows is None else flows
        flow = self._flow(row)
        found = prospect(flow, others, self._states[way], now)
        if flow.key in plan.late:
            # A late flow has no chance left, whatever its prospect among the others says.
            found = replace(found, missed=1.0)
        return TransferTurn(
            plan.served.get(key, ()),
            key in plan.late,
            not any(each.deadline_at_s < flow.deadline_at_s for each in others),
            found,
        )

    def moving(self, now: float) -> int:
        """Return the number of transfers that run and may use a network now."""
        served = {key for plan in self._plans.values() for key in plan.served}
        return sum(key in served and self._runs(row, now) for key, row in self._rows.items())

    def rows(self, now: float) -> list[tuple[TableTransfer, dict[str, int], bool]]:
        """Return all transfers by deadline, their bytes by network, and whether their program runs."""
        return [
            (row.transfer, row.by_network, self._runs(row, now))
            for row in sorted(self._rows.values(), key=lambda each: each.transfer.deadline_unix_s)
        ]

    def by_network(self, key: str) -> Mapping[str, int]:
        """Return the bytes of a transfer over each network, as far as is known."""
        return self._rows[key].by_network

    def direction(self, key: str) -> Direction:
        return self._rows[key].transfer.direction

    def states(self, direction: Direction) -> Sequence[NetworkState]:
        """Return the networks that the last plan used."""
        return self._states[direction]

    def restore(self, transfer: TableTransfer, by_network: dict[str, int], now: float) -> None:
        """Restore a transfer of an earlier daemon; its program will report it again."""
        if len(self._rows) < MOST and transfer.key not in self._rows:
            self._rows[transfer.key] = _Row(transfer, now, by_network=by_network)

    @staticmethod
    def _runs(row: _Row, now: float) -> bool:
        return now - row.heard_s <= SILENT_S

    def _flow(self, row: _Row) -> DeadlineFlow:
        of = row.transfer
        # More bytes than it said: its size is not known.
        exact = of.size_bytes is not None and of.done_bytes <= of.size_bytes
        left = of.size_bytes - of.done_bytes if of.size_bytes is not None and exact else None
        return DeadlineFlow(
            of.key,
            max(float(left), 1.0) if left is not None else expected_bytes(of.done_bytes),
            of.deadline_unix_s - self._clock_s,
            row.most_bps,
            exact,
        )
