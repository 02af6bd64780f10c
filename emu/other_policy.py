"""Compares a fixed policy with what was decided, on the flows of an event log.

A log tells which network each flow began on. What it would have taken on another one was not measured:
its seconds and joules are predicted, for both sides alike, from what was known when the flow began, with
the size that it turned out to have.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cedos.controller.commands import Command, ForgetFlow, RecordFlow
from cedos.controller.controller import Controller
from cedos.controller.events import Event, FlowOpened
from cedos.model import (
    Direction,
    Evaluation,
    FlowKey,
    FlowRecord,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.liveness import dead_networks

_WAYS: Final = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP})


@dataclass(slots=True)
class Side:
    """The flows of one side: as they were recorded, or as the policy would have begun them."""

    # `flows`, `bytes`: by network; `wlan0+lte0`: over both, in shares that are not known.
    flows: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    metered_bytes: float = 0.0  # of the policy over both networks those that are predicted
    # `seconds`, `joules`: predicted, of the flows that both sides' predictions know.
    seconds: float = 0.0
    joules: float = 0.0

    def add(self, other: "Side") -> None:
        self.flows.update(other.flows)
        self.bytes.update(other.bytes)
        self.metered_bytes += other.metered_bytes
        self.seconds += other.seconds
        self.joules += other.joules


@dataclass(slots=True)
class Compared:
    """The flows to a destination, or all."""

    # How many there were; `elsewhere`: how many the policy would have begun on another network,
    # `dead`: how many on one that was dead then, `predicted`: how many are in seconds and joules.
    flows: int = 0
    elsewhere: int = 0
    dead: int = 0
    predicted: int = 0
    recorded: Side = field(default_factory=Side)
    policy: Side = field(default_factory=Side)

    def add(self, other: "Compared") -> None:
        self.flows += other.flows
        self.elsewhere += other.elsewhere
        self.dead += other.dead
        self.predicted += other.predicted
        self.recorded.add(other.recorded)
        self.policy.add(other.policy)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A flow's beginning: what was known, the networks, and those among them that were dead."""

    case: Case
    networks: Sequence[Network]
    dead: frozenset[str]


class OtherPolicy:
    """A fixed policy beside the controller of a replay.

    Args:
        kinds: the kinds of network that it uses, the first choice first. A flow goes over another kind
            only where none of these is up, as routes by metrics have it.
    """

    def __init__(self, kinds: Sequence[NetworkKind]) -> None:
        self._kinds = kinds
        self._begun: dict[FlowKey, _Beginning] = {}
        self.destinations: dict[str, Compared] = {}  # by the name or the address of a server

    @property
    def total(self) -> Compared:
        """Return the sum over all destinations."""
        found = Compared()
        for each in self.destinations.values():
            found.add(each)
        return found

    def on_event(self, event: Event, controller: Controller, now_s: float) -> None:
        """Take an event before the controller does: a flow begins by what was known before it."""
        if not isinstance(event, FlowOpened) or event.incoming or event.own:
            return
        decider, context = controller.decider, controller.context(now_s)
        self._begun[event.key] = _Beginning(
            decider.case(decider.unknown(), context, _WAYS, decider.usable),
            decider.networks,
            frozenset(dead_networks(context, decider.networks)),
        )

    def on_commands(self, commands: Iterable[Command]) -> None:
        """Take what the controller commands: flows end."""
        for each in commands:
            if isinstance(each, ForgetFlow):
                self._begun.pop(each.key, None)
            elif isinstance(each, RecordFlow):
                begun = [self._begun.pop(path.key, None) for path in each.record.subflows]
                if each.chosen and begun[0] is not None:
                    self._compare(each.record, begun[0])

    def _compare(self, record: FlowRecord, begun: _Beginning) -> None:
        first, names = record.subflows[0], {each.name for each in begun.networks}
        choice = self._choice(begun.networks, first.key, mptcp=record.token is not None)
        if first.network not in names or choice is None:
            return  # the host's own default carries it
        carried: Counter[str] = Counter()
        for path in record.subflows:
            carried[path.network or ""] += path.bytes_down + path.bytes_up
        total = carried.total()
        used = [first.network, *(each for each in carried if each in names - {first.network})]
        kind = StrategyKind.MPTCP if len(used) > 1 else StrategyKind.SINGLE
        known = {each.strategy: each for each in _evaluations(record, begun.case)}
        taken, expected = known.get(Strategy(kind, tuple(used))), known.get(choice)
        metered = {each.name for each in begun.networks if each.metered}
        recorded = Side(
            Counter({first.network: 1}),
            +carried,
            sum(count for name, count in carried.items() if name in metered),
        )
        way = "+".join(choice.networks)
        share = float(choice.networks[0] in metered)
        if len(choice.networks) > 1 and expected is not None:
            share = expected.metered_bytes / max(_size_bytes(record), 1)
        policy = Side(Counter({way: 1}), +Counter({way: total}), total * min(share, 1.0))
        if taken is not None and expected is not None:
            recorded.seconds, recorded.joules = taken.time_s, taken.energy_j
            policy.seconds, policy.joules = expected.time_s, expected.energy_j
        found = Compared(
            1,
            int(choice.networks[0] != first.network),
            int(choice.networks[0] in begun.dead),
            int(taken is not None and expected is not None),
            recorded,
            policy,
        )
        server = record.server_name or str(first.key.remote)
        self.destinations.setdefault(server, Compared()).add(found)

    def _choice(self, networks: Sequence[Network], key: FlowKey, *, mptcp: bool) -> Strategy | None:
        """Return how the policy would have begun a flow; None: no network would have carried it."""
        able = [each for each in networks if each.up and each.carries(key.remote.version)]
        by_kind = [each.name for kind in self._kinds for each in able if each.kind is kind]
        if not by_kind:
            by_kind = [each.name for each in able][:1]
        if mptcp and len(self._kinds) > 1 and len(by_kind) > 1:
            return Strategy(StrategyKind.MPTCP, tuple(by_kind[:2]))
        return Strategy(StrategyKind.SINGLE, (by_kind[0],)) if by_kind else None


def _size_bytes(record: FlowRecord) -> int:
    """Return the bytes in the direction that has most."""
    down = sum(path.bytes_down for path in record.subflows)
    return max(down, sum(path.bytes_up for path in record.subflows))


def _evaluations(record: FlowRecord, case: Case) -> Sequence[Evaluation]:
    """Return what each strategy was expected to take for what a flow turned out to carry."""
    size = _size_bytes(record)
    if not size:
        return ()
    down = sum(path.bytes_down for path in record.subflows)
    transfer = Transfer(
        SizeEstimate(size, size, size, "progress"), Direction.DOWN if down == size else Direction.UP
    )
    return decide(replace(case, transfer=transfer)).evaluations
