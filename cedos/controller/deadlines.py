"""Transfers with deadlines: the host's table, its plan each second, and D-Lock (Cedos, III-E).

D-Lock keeps the host awake while a transfer can move, and lets it sleep while none can.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from cedos.controller.commands import KeepAwake, KeepTransfers, TurnsChanged
from cedos.controller.decisions.decider import Decider
from cedos.controller.events import TransferEnded, TransferReported
from cedos.controller.outbox import Outbox, next_beat_s
from cedos.limits import TokenBucket
from cedos.model import Context
from cedos.selector.deadlines.network_state import METERED_S, SeenNetwork
from cedos.selector.deadlines.plan import EPOCH_S
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable
from cedos.selector.decision.liveness import why_dead
from cedos.selector.objective import WeightedCost

# Seconds between two writes of the table, at rest and while bytes arrive: a kill loses no more.
_KEEP_S, _KEEP_CARRYING_S = 30.0, 0.9
_ENDED: Final = 1000

# A plan of 1,000 transfers takes 50 ms and more. A report has a table beyond the first number planned at
# once only if the last plan is older than so many seconds for each transfer; else the next beat does it.
_PLANNED_AT_ONCE: Final = 32
_PLANS_APART_S: Final = 1e-3

# The decisions on turns that are recorded. To word one takes up to 50 ms, and 1,000 turns may change at
# once.
RECORDED_AT_ONCE, RECORDED_PER_S = 16, 2.0

# Seconds until a lock against sleep that was refused is wanted again.
_AGAIN_S: Final = 30.0


def rows(kept: Any) -> Iterator[tuple[TableTransfer, dict[str, int]]]:
    """Return each readable transfer of a kept table with its bytes by network."""
    found = kept.get("rows") if isinstance(kept, dict) else None
    for each in found if isinstance(found, list) else ():
        try:
            yield msgspec.convert(each, tuple[TableTransfer, dict[str, int]])
        except msgspec.ValidationError:
            continue


class DLock:
    """The lock against falling asleep while a transfer moves, as far as the host was told of it."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._held: bool | None = False
        self._again_s = -math.inf

    def update(self, wanted: bool, now_s: float) -> None:
        """Hold the lock, or give it back."""
        if wanted != self._held and (now_s >= self._again_s or not wanted):
            self._held = wanted
            self._outbox.give(KeepAwake(wanted))

    def on_refused(self, now_s: float) -> None:
        """Ask once more after a while: the host refused the lock."""
        self._held, self._again_s = None, now_s + _AGAIN_S


class DeadlineTransfers:
    """The table, with the networks and prices of now.

    Args:
        kept: the table that an earlier daemon has left (`state`).

    Attributes:
        table: to be read.
    """

    def __init__(self, outbox: Outbox, decider: Decider, kept: object) -> None:
        self.table = TransferTable()
        self.lock = DLock(outbox)
        self._outbox = outbox
        self._decider = decider
        self._kept = kept
        self._plan_at_s: float | None = None
        self._kept_at_s = self._planned_at_s = -math.inf
        self._carrying = False
        self._told: dict[str, str] = {}
        self._recordings = TokenBucket(RECORDED_PER_S, RECORDED_AT_ONCE, -math.inf)
        self._ended_s: dict[tuple[int, str], float] = {}

    def next_timer_s(self) -> float | None:
        return self._plan_at_s

    def state(self, now_s: float) -> dict[str, object]:
        """Return the table, and what was learned of networks, for the next start."""
        found = [[msgspec.to_builtins(each), dict(by)] for each, by, _ in self.table.rows(now_s)]
        return {"rows": found, "networks": self.table.networks.to_state()}

    def is_late(self, uid: int, key: str, said_s: float) -> bool:
        """Return whether a report was sent before its transfer's end but arrived after that."""
        return said_s <= self._ended_s.get((uid, key), -1.0)

    # -- events -------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Take over what an earlier daemon has left, and plan from now on."""
        if isinstance(self._kept, dict):
            self.table.networks.restore(self._kept.get("networks"), now_s)
            for row, by in rows(self._kept):
                self.table.restore(row, by, now_s)
        self._kept = None
        if self._plan_at_s is None:
            self._plan_at_s = next_beat_s(now_s, EPOCH_S)

    def on_report(self, event: TransferReported, context: Context) -> None:
        """Take a program's word; one that the table refuses changes nothing."""
        now_s, transfer = context.at_s, event.transfer
        late = self.is_late(transfer.uid, transfer.key, event.said_s)
        if late or self.table.refusal(transfer):
            return
        self.table.report(transfer, now_s)
        self.table.add_bytes(transfer.key, dict(event.used_bytes), event.lasted_s, now_s)
        in_pause = transfer.again_unix_s is not None
        new = transfer.key not in self._told and not in_pause
        if in_pause:  # what it may do afterwards is decided anew
            self._told.pop(transfer.key, None)
        self._plan_soon(context, keep=new)  # also a daemon that is killed must know of a new one

    def on_ended(self, event: TransferEnded, context: Context) -> None:
        """Take that a transfer is complete or given up, if its own user says so."""
        now_s, key = context.at_s, (event.uid, event.key)
        self._ended_s.pop(key, None)
        self._ended_s[key] = event.said_s
        if len(self._ended_s) > _ENDED:
            del self._ended_s[next(iter(self._ended_s))]
        self._outbox.give(TurnsChanged(()))  # its own last question, too
        for each, _, _ in self.table.rows(now_s):
            if (each.uid, each.key) == key:
                self.table.end(event.key)
                self._told.pop(event.key, None)
                self._plan_soon(context, keep=True)
                return

    def on_timer(self, context: Context, now_s: float) -> None:
        """Plan, keep the host awake or let it sleep, and have the table kept.

        The context may be some milliseconds old; the next beat is counted from now.
        """
        self._plan_at_s = next_beat_s(now_s, EPOCH_S)
        self.plan(context)
        moving = self.table.moving(now_s)
        self.lock.update(moving > 0, now_s)
        carried, self._carrying = self._carrying, moving > 0
        every_s = _KEEP_CARRYING_S if self._carrying else _KEEP_S
        if carried != self._carrying or now_s - self._kept_at_s >= every_s:
            self._keep(now_s)

    def plan(self, context: Context) -> None:
        """Plan anew, and tell of the transfers whose turn is another one."""
        now_s = self._planned_at_s = context.at_s
        changed = self.table.plan(self._seen_networks(context), self._decider.unix_s(now_s), now_s)
        listed = self.table.rows(now_s)
        taking_part = [each.key for each, _, runs in listed if runs and each.again_unix_s is None]
        if len(self._told) > len(listed):  # the table has forgotten some
            known = {each.key for each, _, _ in listed}
            self._told = {key: said for key, said in self._told.items() if key in known}
        news = []
        for key in taking_part:
            serial = self.table.serial(key)
            if self._told.get(key, "new") != serial:
                self._told[key] = serial
                news.append(key)
        if changed or news:
            recorded = tuple(key for key in news if self._recordings.take(now_s))
            self._outbox.give(TurnsChanged(recorded))

    def _plan_soon(self, context: Context, *, keep: bool) -> None:
        """Plan, and have the table kept, at once or with the next beat."""
        if keep:
            self._kept_at_s = -math.inf
        apart_s = (len(self.table) - _PLANNED_AT_ONCE) * _PLANS_APART_S
        if context.at_s - self._planned_at_s >= apart_s:
            self.plan(context)
            if keep:
                self._keep(context.at_s)

    def _keep(self, now_s: float) -> None:
        self._kept_at_s = now_s
        self._outbox.give(KeepTransfers())

    def _seen_networks(self, context: Context) -> Sequence[SeenNetwork]:
        barred, objective = self._decider.barred, self._decider.objective
        found = []
        for network in self._decider.networks:
            known: Mapping[str, Any] = context.networks.get(network.name, {})
            down = known.get("past10_bps") or known.get("delivery_down_bps")
            up_rate = known.get("past10_up_bps") or known.get("delivery_up_bps")
            price_s = objective.prices.data_rate(network.name)
            if network.metered:
                if isinstance(objective, WeightedCost):
                    price_s += objective.s_per_metered_byte
                else:
                    price_s += METERED_S
            up = network.up and network.name not in barred
            up = up and why_dead(context, network.name) is None
            price_s = math.inf if network.name in barred else price_s
            found.append(
                SeenNetwork(
                    network.name,
                    up,
                    price_s,
                    down.value if down is not None else None,
                    up_rate.value if up_rate is not None else None,
                )
            )
        return found
