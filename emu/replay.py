"""Runs the controller over a recorded event log (`cedos up --record`, `cedos record start`).

Compares a fixed policy with what was decided, on the flows of an event log.

A log tells which network each flow began on. What it would have taken on another one was not measured:
its seconds and joules are predicted, for both sides alike, from what was known when the flow began, with
the size that it turned out to have.
"""

import gzip
import math
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from cedos.api.messages import flow_matches
from cedos.controller.codec import LARGEST_BYTES, LOG_FORMAT, decode_event, encode_commands
from cedos.controller.commands import Command, ForgetFlow, RecordDecision, RecordFlow
from cedos.controller.controller import Controller
from cedos.controller.events import Event, FlowOpened
from cedos.controller.snapshot import restore
from cedos.errors import HistoryError, ModelError
from cedos.model import (
    Decision,
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
from cedos.storage import model_files
from predictors.completion import CompletionModel as TrainedModel

# The faults that come of values which no daemon has written.
_FAULTS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RecursionError, TypeError, ValueError),
)
# An empty list takes 80 times its byte in memory. So only so many bytes of a record may look like the
# beginning of a list or a map in msgpack; an eighth of those within numbers do.
_MOST_LISTS: Final = 1_000_000
_BEGINS_LIST: Final = bytes((*range(0x80, 0xA0), *range(0xDC, 0xE0)))
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


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of a log: its monotonic time in s, and the checksum of the commands that came of it.

    `where`: the file and the event's number, for errors.
    """

    where: str
    at_s: float
    event: Event
    checksum: int


def records(path: Path) -> Iterator[Any]:
    """Yield the raw records of a log; its end may be missing, as of a daemon that was killed.

    HistoryError: the file cannot be read, or is no event log.
    """
    try:
        with gzip.open(path, "rb") as file:
            while True:
                try:
                    length = int.from_bytes(file.read(4), "big")
                    content = file.read(length) if 0 < length <= LARGEST_BYTES else b""
                except (EOFError, zlib.error):
                    return
                if not content or len(content) < length:
                    return
                if len(content) - len(content.translate(None, _BEGINS_LIST)) > _MOST_LISTS:
                    raise HistoryError(f"{path}: a record holds more lists than a daemon writes")
                yield msgspec.msgpack.decode(content)
    except gzip.BadGzipFile:
        raise HistoryError(f"{path} is no event log: `cedos record start` begins one") from None
    except OSError as error:
        raise HistoryError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"{path} is damaged: {error}") from None


def open_log(path: Path) -> tuple[Mapping[str, Any], Iterator[Recorded]]:
    """Return the header and the events of a log.

    HistoryError: the file is no event log, or one of another version.
    """
    raw = records(path)
    header = next(raw, None)
    if not isinstance(header, dict) or "format" not in header:
        raise HistoryError(f"{path} is no event log: `cedos record start` begins one")
    if header["format"] != LOG_FORMAT:
        raise HistoryError(
            f"{path} has format {header['format']!r:.20}, of cedos {header.get('cedos')!s:.20}; this"
            f" version reads format {LOG_FORMAT} alone"
        )
    return header, _events(path, raw)


def _events(path: Path, raw: Iterator[Any]) -> Iterator[Recorded]:
    before_s = -math.inf
    for number, record in enumerate(raw, 1):
        where = f"{path}, event {number}"
        try:
            at_s, plain, checksum = record
            event = Recorded(where, float(at_s), decode_event(plain), int(checksum))
        except _FAULTS as error:
            raise HistoryError(f"{where}: {error}") from None
        if not before_s <= event.at_s < math.inf:
            raise HistoryError(f"{where}: its time, {event.at_s} s, is not after {before_s} s")
        before_s = event.at_s
        yield event


def controller_of(header: Mapping[str, Any], model: Path | None) -> Controller:
    """Return a controller as the daemon's was when the log began.

    Args:
        header: of the log.
        model: the file of the predictors; None: the shipped ones.

    Raises:
        ModelError: the log was recorded with other predictors.
        HistoryError: the header is damaged.
    """
    try:
        trained: TrainedModel | None = None
        if header["model"] != "none":
            trained = model_files.load(model)
            if trained.fingerprint() != header["model"]:
                raise ModelError(
                    f"the log was recorded with the predictors {header['model']}, these are"
                    f" {trained.fingerprint()}: name the right file by --model"
                )
        return restore(header["state"], {"model": trained})
    except _FAULTS as error:
        raise HistoryError(f"the header of the log is damaged: {error}") from None


def began(header: Mapping[str, Any]) -> datetime:
    """Return when the log began, in local time. HistoryError: the header does not say."""
    try:
        return datetime.fromtimestamp(header["unix_s"])
    except (*_FAULTS, OSError):
        raise HistoryError("the header of the log does not say when it began") from None


@dataclass(slots=True)
class Replay:
    """The outcome of a replay."""

    events: int = 0  # how many there were; `seconds`: the time that they span
    seconds: float = 0.0
    commands: Counter[str] = field(default_factory=Counter)  # how many of each kind
    kinds: Counter[str] = field(default_factory=Counter)
    # The numbers of the events whose commands were others than the recorded ones.
    different: list[int] = field(default_factory=list)
    # All decisions, with their time in s since the beginning.
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    flows: int = 0
    # Of each flow that followed a decision: its key, the server's name, and the decision's number.
    followed: list[tuple[FlowKey, str | None, int]] = field(default_factory=list)
    took_us: list[float] = field(default_factory=list)

    def event_us(self, share: float) -> float:
        """Return the processor time of an event that this share of events did not exceed."""
        if not self.took_us:
            return 0.0
        return sorted(self.took_us)[min(int(share * len(self.took_us)), len(self.took_us) - 1)]

    def about(self, flow: str) -> list[tuple[float, Decision]]:
        """Return the decisions about a flow or its server, and those that its connections followed."""
        followed = {number for key, name, number in self.followed if flow_matches(flow, key, name)}
        return [
            (at_s, each)
            for at_s, each in self.decisions
            if each.number in followed
            or (
                (key := each.transfer.flow) is not None
                and flow_matches(flow, key, each.transfer.server_name)
            )
            or each.transfer.server_name == flow
        ]

    def note_flow(self, key: FlowKey, server_name: str | None, decision: int | None) -> None:
        """Note the decision that a flow followed; None: it followed none."""
        if decision is not None:
            self.followed.append((key, server_name, decision))


def replay(
    controller: Controller, log: Iterator[Recorded], other: OtherPolicy | None = None
) -> Replay:
    """Hand all events to a controller, and compare its commands with the recorded ones.

    `other`: a policy that is to be compared with what was decided.

    HistoryError: the log is damaged, or the controller cannot take an event.
    """
    found, began_s = Replay(), None
    for each in log:
        began_s = each.at_s if began_s is None else began_s
        try:
            if other is not None:
                other.on_event(each.event, controller, each.at_s)
            began_ns = time.thread_time_ns()
            controller.handle(each.event, each.at_s)
            commands = controller.commands()
            found.took_us.append((time.thread_time_ns() - began_ns) / 1e3)
            if other is not None:
                other.on_commands(commands)
            checksum = zlib.crc32(encode_commands(commands))
        except _FAULTS as error:
            kind, fault = type(each.event).__name__, type(error).__name__
            raise HistoryError(
                f"{each.where}: the controller cannot take this {kind}: {fault}: {error}"
            ) from error
        found.events += 1
        found.seconds = each.at_s - began_s
        found.kinds[type(each.event).__name__] += 1
        found.flows += isinstance(each.event, FlowOpened)
        if checksum != each.checksum:
            found.different.append(found.events)
        _note(found, commands)
    for flow in controller.flows:
        found.note_flow(flow.key, flow.server_name, flow.decision)
    return found


def _note(found: Replay, commands: list[Command]) -> None:
    for command in commands:
        found.commands[type(command).__name__] += 1
        if isinstance(command, RecordDecision):
            found.decisions.append((found.seconds, command.decision))
        elif isinstance(command, RecordFlow):
            record = command.record
            found.note_flow(record.subflows[0].key, record.server_name, record.decision)
