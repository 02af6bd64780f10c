"""The daemon on the simulated laptop: the same controller, told what the monitor would have seen.

It pings, looks at flows and counters, and learns sizes as the daemon does, with its delays. Its commands
are carried out at once, as the kernel does it: new connections, moves, rescues, bars. Left out are radio
indicators and look-ups: the emulated laptop of the shipped runs has none.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from ipaddress import ip_address, ip_interface
from typing import Final, Protocol

from cedos.config import Config
from cedos.config.sections import ProbesConfig
from cedos.controller import commands as do
from cedos.controller.commands import Command
from cedos.controller.config import Choices
from cedos.controller.controller import Controller
from cedos.controller.events import (
    ESTABLISHED,
    SYN_SENT,
    BudgetsCounted,
    BudgetSet,
    BudgetUse,
    ChoiceAsked,
    ClockRead,
    CommandDone,
    CountersRead,
    Event,
    FirstPacketAnswered,
    FirstPacketSeen,
    FirstTimeoutsSet,
    FlowClosed,
    FlowOpened,
    FlowsSampled,
    HandshakeEnded,
    NetworksChanged,
    PageChecked,
    PingEnded,
    PortalFinding,
    PortalVerdict,
    ProvidersRead,
    SizeLearned,
    SubflowJoined,
    TimerFired,
)
from cedos.daemon.flows import sizes_known
from cedos.daemon.startup import choices, controller_config
from cedos.host.monitor.probing.probes import TIMEOUT_S, ProbeSchedule
from cedos.host.profiler.profiler import Profiler
from cedos.model import (
    Budget,
    Decision,
    Direction,
    FlowKey,
    FlowSample,
    NetworkKind,
    NextHop,
    SizeEstimate,
)
from cedos.model import Network as Facts
from cedos.selector.budgets.keeper import Period
from cedos.selector.decision.liveness import dead_networks
from cedos.storage import model_files
from emu.simulator.connection import Transfer
from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.tcp import PAYLOAD_BYTES
from emu.testbed.access import ADDRESSES, GATEWAYS, INTERFACES
from emu.workloads.mixed import PlannedTransfer

# The monotonic time at which a simulation begins.
_EPOCH_S: Final = 1_000.0
# The delay of the kernel's events until the daemon reads them.
_TOLD_S: Final = 0.002
_LOOK_S: Final = 0.001
_COUNTERS_S: Final = 1.0
_PORT: Final = 80
_FIRST_PORT: Final = 10_000
_PORTS: Final = 50_000
_KERNEL_S: Final = 1.0
# The daemon's state directory. It does not exist, so nothing was learned before.
_BOOT_UNIX_S: Final = 1.7e9
_MONTH: Final = Period(_BOOT_UNIX_S, _BOOT_UNIX_S + 30 * 86_400.0)

# Models are read once, not for each run.
_load = lru_cache(maxsize=4)(model_files.load)


class Watched(Protocol):
    """A connection of a program that chooses its network by itself."""

    @property
    def key(self) -> FlowKey:
        """Return the addresses and ports of the connection."""

    def sample(self, now_s: float) -> FlowSample:
        """Return what a look at the sockets shows of it; `now_s`: the daemon's time."""


class SimulatedLaptop:
    """The daemon's shell in simulated time (`connection.Steering`)."""

    def __init__(
        self,
        clock: Clock,
        networks: Mapping[NetworkKind, Network],
        config: Config,
        *,
        # Changes how to decide, such as the predictors.
        adapt: Callable[[Choices], Choices] = lambda choices: choices,
        budget: Budget | None = None,  # a budget of data, whose networks are named
        # Is told of each command before it is carried out.
        watch: "Callable[[SimulatedLaptop, Command], None]" = lambda laptop, command: None,
    ) -> None:
        self._clock = clock
        self._links = {INTERFACES[kind]: network for kind, network in networks.items()}
        self._names = {network: name for name, network in self._links.items()}
        self.facts = [_facts(kind, number) for number, kind in enumerate(networks, 2)]
        choice = adapt(choices(config, [], _load))
        self.controller = Controller(controller_config(config, choice, 1, dry_run=False))
        self._budget = budget
        self._watch = watch
        self._profiler = Profiler()
        self._probes: ProbesConfig = config.probes
        self._schedule = ProbeSchedule(self._probes.interval_s, self._probes.idle_interval_s)
        self._pending: dict[str, float] = {}
        self._waiting: deque[Event] = deque()
        self._busy = self._closed = False
        self._wakes_s = math.inf
        # The rules in the kernel.
        self._default = ""
        self._destinations: dict[tuple[str, int | None], str] = {}
        self._spareless: frozenset[str] = frozenset()
        self._timeouts_s: Mapping[str, float] = {}
        # The transfers that live: by the key of their first path, and the keys of each one's paths.
        self._transfers: dict[FlowKey, Transfer] = {}
        self._planned: dict[Transfer, PlannedTransfer] = {}
        self._keys: dict[Transfer, dict[Network, FlowKey]] = {}
        self._sockets = 0
        # The connections of other programs, which the daemon only sees.
        self._watched: dict[FlowKey, Watched] = {}
        self._answer: do.AnswerChoice | None = None
        # The packets of a transfer that its network had carried when the path was opened.
        self._before: dict[FlowKey, int] = {}
        self._post(ClockRead(_BOOT_UNIX_S))
        self._post(NetworksChanged(tuple(self.facts)))
        if budget is not None:
            self._post(BudgetSet(_BOOT_UNIX_S, budget, _MONTH))
        self._schedule.networks_changed(self.facts)
        self._ping()
        clock.after(_COUNTERS_S, self._count)

    def close(self) -> None:
        """Tell the daemon nothing more."""
        self._closed = True

    def set_up(self, kind: NetworkKind, up: bool) -> None:
        """Bring an interface up or down; a network without one carries nothing."""
        name = INTERFACES[kind]
        self._links[name].up_again() if up else self._links[name].fail()
        self.facts = [replace(each, up=up) if each.name == name else each for each in self.facts]
        self._later(NetworksChanged(tuple(self.facts)))

    def usable(self) -> set[str]:
        """Return the networks that are up, as the daemon knows, and not barred."""
        return {each.name for each in self.controller.decider.usable if each.up}

    def hears_nothing(self) -> bool:
        """Return whether a network is silent, dead or down, as far as the daemon knows."""
        controller = self.controller
        dead = dead_networks(controller.context(self._now_s()), controller.decider.usable)
        return bool(controller.networks.silent or dead) or len(self.usable()) < len(self._links)

    # -- transfers ----------------------------------------------------------------------------

    def begin(self, planned: PlannedTransfer) -> Transfer:
        """Begin a transfer where the rules lead it."""
        prefix = f"{planned.host}/32"
        name = self._destinations.get((prefix, _PORT)) or self._default or next(iter(self._links))
        first = self._links[name]
        used = [first]
        if planned.mptcp:
            used += [
                each
                for other, each in self._links.items()
                if other != name and other not in self._spareless
            ]
        transfer = Transfer(
            self._clock,
            used,
            planned.size_bytes,
            down=planned.direction is Direction.DOWN,
            steering=self,
        )
        self._planned[transfer] = planned
        self._keys[transfer] = {}
        self._transfers[self._open(transfer, first)] = transfer
        return transfer

    def stop(self, transfer: Transfer) -> None:
        """End a transfer that took too long."""
        transfer.stop()
        self.on_end(transfer)

    def first_wait_s(self, network: Network) -> float:
        return self._timeouts_s.get(self._names[network], _KERNEL_S)

    def on_joined(self, transfer: Transfer, network: Network) -> None:
        planned, keys = self._planned[transfer], self._keys[transfer]
        if network not in keys and planned.mptcp and len(transfer.joined) > 1:
            self._open(transfer, network)
        if planned.mptcp:
            key = self._keys[transfer].get(network) or next(iter(keys.values()))
            self._later(SubflowJoined(planned.number + 1, key, steerable=True))
        if planned.direction is Direction.UP and len(transfer.joined) == 1:
            self._learn(transfer)  # the request tells how much follows

    def on_answer(self, transfer: Transfer) -> None:
        self._learn(transfer)

    def on_end(self, transfer: Transfer) -> None:
        planned = self._planned.pop(transfer, None)
        if planned is None:
            return
        for network, key in self._keys.pop(transfer).items():
            self._close(planned, transfer, network, key)

    def _close(
        self, planned: PlannedTransfer, transfer: Transfer, network: Network, key: FlowKey
    ) -> None:
        """Tell of the end of a path."""
        self._transfers.pop(key, None)
        now_s = self._now_s()
        carried = PAYLOAD_BYTES * (transfer.packets.get(network, 0) - self._before.pop(key, 0))
        down = planned.direction is Direction.DOWN
        heard_at_s = transfer.heard_at_s.get(network)
        idle_s = math.inf if heard_at_s is None else self._clock.now_s - heard_at_s
        self._later(
            FlowClosed(
                key,
                now_s,
                carried if down else 0,
                0 if down else carried,
                rtt_s=transfer.joined.get(network),
                rtt_min_s=transfer.joined.get(network),
                at_s=now_s,
                started_unix_s=now_s,
                idle_down_s=idle_s,
                idle_ack_s=idle_s,
            )
        )

    def _release(self, transfer: Transfer, network: Network) -> None:
        """Give a path up: its socket is closed; a later one has another port."""
        key = self._keys[transfer].get(network)
        if key is not None and transfer.release(network):
            del self._keys[transfer][network]
            self._close(self._planned[transfer], transfer, network, key)

    def _open(self, transfer: Transfer, network: Network) -> FlowKey:
        planned, keys = self._planned[transfer], self._keys[transfer]
        self._sockets += 1
        port = _FIRST_PORT + self._sockets % _PORTS
        local = ip_address(ADDRESSES[network.kind])
        key = FlowKey(local, port, ip_address(planned.host), _PORT, "tcp")
        first = not keys
        keys[network] = key
        self._before[key] = transfer.packets.get(network, 0)
        now_s = self._now_s()
        self._later(FlowOpened(key, now_s, now_s))
        if first:
            for learned in self._profiler.on_open(key, now_s):
                self._later(learned)
            self._tell_sizes(key)
        return key

    def _learn(self, transfer: Transfer) -> None:
        planned = self._planned[transfer]
        key = next(iter(self._keys[transfer].values()))
        size = planned.size_bytes
        estimate = SizeEstimate(size, size, size, "content-length")
        self._later(SizeLearned(key, planned.direction, estimate, server_name=planned.host))

    def _tell_sizes(self, key: FlowKey) -> None:
        known = sizes_known(self._profiler, key)
        if known is not None:
            self._later(known)

    # -- programs that choose networks by themselves ------------------------------------------

    def choose(self, asked: ChoiceAsked) -> Decision:
        """Return the controller's answer to a program."""
        self._post(asked)
        assert self._answer is not None, "the controller answers at once"
        return self._answer.decision

    def watch(self, opened: "Watched") -> None:
        """Tell the daemon of a program's connection, which is bound to its network."""
        now_s = self._now_s()
        self._watched[opened.key] = opened
        self._later(FlowOpened(opened.key, now_s, now_s))

    def unwatch(self, closed: "Watched") -> None:
        now_s, last = self._now_s(), closed.sample(self._now_s())
        del self._watched[closed.key]
        self._later(
            FlowClosed(
                last.key,
                now_s,
                last.bytes_down,
                last.bytes_up,
                rtt_s=last.rtt_s,
                rtt_min_s=last.rtt_min_s,
                at_s=now_s,
                started_unix_s=now_s,
                idle_down_s=last.idle_down_s,
                idle_ack_s=last.idle_ack_s,
            )
        )

    # -- facts --------------------------------------------------------------------------------

    def _ping(self) -> None:
        """Ping what is due, as the daemon's schedule says."""
        if self._closed:
            return
        now_s = self._now_s()
        for name, at_s in self.controller.networks.heard_at_s.items():
            self._schedule.on_heard(name, at_s)
        for name in self._schedule.take_due(now_s):
            self._ask(name)
        next_s = self._schedule.next_s()
        wait_s = 1.0 if next_s is None else min(max(next_s - now_s, 0.01), 0.1)
        self._clock.after(wait_s, self._ping)

    def _ask(self, name: str) -> None:
        if name in self._pending:
            return
        link, asked_s = self._links[name], self._now_s()
        self._pending[name] = asked_s
        done = False

        def ended(rtt_s: float | None) -> None:
            nonlocal done
            if done:
                return
            done = True
            self._pending.pop(name, None)
            self._schedule.on_answer(name, rtt_s is not None)
            self._post(PingEnded(name, rtt_s, asked_s, self._now_s()))

        def back(parcel: Parcel, packets: int) -> None:
            ended(self._now_s() - asked_s)

        link.to_server(Parcel(lambda parcel, packets: link.to_client(Parcel(back))), own=True)
        self._clock.after(TIMEOUT_S, ended, None)

    def _check_page(self, command: do.CheckPage) -> None:
        """Ask for the test page: it comes after two round trips, or not in time."""
        link, ended = self._links[command.network], False

        def end(verdict: PortalVerdict, why: str) -> None:
            nonlocal ended
            if not ended:
                ended = True
                finding = PortalFinding(verdict, why)
                self._post(PageChecked(command.network, command.number, finding))

        def answered(parcel: Parcel, packets: int) -> None:
            end(PortalVerdict.FREE, "the test page answered as it should")

        def connected(parcel: Parcel, packets: int) -> None:
            link.to_server(Parcel(lambda parcel, packets: link.to_client(Parcel(answered))))

        link.to_server(Parcel(lambda parcel, packets: link.to_client(Parcel(connected))))
        late = partial(end, PortalVerdict.SILENT, "the test page does not answer")
        self._clock.after(command.timeout_s, late)

    def _count(self) -> None:
        if self._closed:
            return
        for name, link in self._links.items():
            self._post(CountersRead(name, link.down.delivered_bytes, link.up.delivered_bytes))
        self._post(ProvidersRead())
        self._count_use()
        self._clock.after(_COUNTERS_S, self._count)

    def _count_use(self) -> None:
        """Count what was used of the budget."""
        budget = self._budget
        if budget is None:
            return
        carried: dict[str, float] = {
            name: link.down.delivered_bytes + link.up.delivered_bytes
            for name, link in self._links.items()
        }
        spent = sum(carried[name] for name in budget.networks)
        use = BudgetUse(budget.name, spent, _MONTH, budget.until)
        self._post(BudgetsCounted(_BOOT_UNIX_S + self._clock.now_s, (use,)))

    def _look(self) -> None:
        self._post(FlowsSampled(tuple(self._samples()), dict(self._pending), _LOOK_S))

    def _samples(self) -> Iterator[FlowSample]:
        now_s = self._now_s()
        yield from (each.sample(now_s) for each in self._watched.values())
        for transfer, keys in self._keys.items():
            planned = self._planned[transfer]
            down = planned.direction is Direction.DOWN
            for network, key in keys.items():
                connected = network in transfer.joined
                packets = transfer.packets.get(network, 0) - self._before[key]
                carried = PAYLOAD_BYTES * packets
                heard_at_s = transfer.heard_at_s.get(network)
                idle_s = math.inf if heard_at_s is None else self._clock.now_s - heard_at_s
                sender = transfer.sender_over(network)
                rtt_s = transfer.joined.get(network)
                if sender is not None and not down:
                    rtt_s = sender.srtt_s
                yield FlowSample(
                    key,
                    now_s,
                    ESTABLISHED if connected else SYN_SENT,
                    planned.number + 1 if planned.mptcp and connected else None,
                    rtt_s,
                    sender.rtt_min_s if sender is not None else rtt_s,
                    None,
                    carried if down else 0,
                    0 if down else carried,
                    retransmits=sender.lost_packets if sender is not None and not down else 0,
                    idle_down_s=idle_s,
                    unacknowledged=int(transfer.unanswered),
                    idle_ack_s=idle_s,
                    receive_rtt_s=sender.srtt_s if sender is not None and down else None,
                    segments=sender.sent_packets if sender is not None and not down else 0,
                )

    # -- the controller -----------------------------------------------------------------------

    def _now_s(self) -> float:
        return _EPOCH_S + self._clock.now_s

    def _later(self, event: Event) -> None:
        """Hand an event of the kernel over, with its delay."""
        self._clock.after(_TOLD_S, self._post, event)

    def _post(self, event: Event) -> None:
        self._waiting.append(event)
        if self._busy or self._closed:
            return
        self._busy = True
        while self._waiting:
            self.controller.handle(self._waiting.popleft(), self._now_s())
            for command in self.controller.commands():
                self._watch(self, command)
                self._carry_out(command)
        self._busy = False
        at_s = self.controller.next_timer_s()
        if at_s is not None and at_s < self._wakes_s:
            self._wakes_s = at_s
            self._clock.at(at_s - _EPOCH_S, self._fire, at_s)

    def _fire(self, at_s: float) -> None:
        if at_s != self._wakes_s:
            return  # another timer stands in its place
        self._wakes_s = math.inf
        self._post(TimerFired())

    def _carry_out(self, command: Command) -> None:
        match command:
            case do.SetDefault(network, _):
                self._default = network
            case do.SetDestinations(wanted) | do.SetRuled(wanted):
                for place, name in wanted.items():
                    if name is None:
                        self._destinations.pop(place, None)
                    else:
                        self._destinations[place] = name
            case do.LeaveSpares(networks):
                self._spareless = networks
            case do.MoveConnection(token, strategy):
                if (transfer := self._of_token(token)) is not None:
                    transfer.move(self._links[name] for name in strategy.networks)
            case do.ReleasePath(token, name):
                if (transfer := self._of_token(token)) is not None:
                    self._release(transfer, self._links[name])
            case do.LookAtFlows():
                self._clock.after(_LOOK_S, self._look)
            case do.AskNetwork(name):
                self._ask(name)
            case do.CheckPage():
                self._check_page(command)
            case do.ShakeHands(name, number):
                self._waiting.append(HandshakeEnded(name, number, None))
            case do.WatchSilence(networks):
                self._schedule.silent(networks)
            case do.NoteUse(networks):
                self._schedule.in_use(networks)
            case do.CountUse():
                self._count_use()
            case do.BarNetworks(names):
                for name, link in self._links.items():
                    link.barred = name in names
                self._waiting.append(CommandDone(command))
            case do.SetFirstTimeouts(timeouts_s):
                self._timeouts_s = timeouts_s
                self._waiting.append(FirstTimeoutsSet(early=True))
            case do.LookAtFirstPacket(key):
                self._waiting.append(self._first_packet(key))
            case do.RescueFlow(key, name, _):
                if (transfer := self._transfers.get(key)) is not None and not transfer.joined:
                    transfer.rescue(self._links[name])
                    self._waiting.append(CommandDone(command))
            case do.AnswerChoice():
                self._answer = command
            case do.CloseConnection(key, _):
                if (transfer := self._transfers.get(key)) is not None:
                    self._waiting.append(CommandDone(command))
                    self.stop(transfer)
            case do.RecordFlow(record, _):
                down = sum(path.bytes_down for path in record.subflows)
                up = sum(path.bytes_up for path in record.subflows)
                key = record.subflows[0].key
                self._profiler.on_close(key, down, up)
                self._tell_sizes(key)
            case do.ForgetFlow(key):
                self._profiler.forget(key)
            case _:
                pass  # records, and what the simulated laptop has not

    def _first_packet(self, key: FlowKey) -> Event:
        transfer = self._transfers.get(key)
        if transfer is None or transfer.joined:
            return FirstPacketAnswered(key)
        received = {name: link.down.delivered_bytes for name, link in self._links.items()}
        left_s = max(transfer.resends_at_s - self._clock.now_s, 0.0)
        return FirstPacketSeen(key, left_s, transfer.syns - 1, received)

    def _of_token(self, token: int) -> Transfer | None:
        return next(
            (each for each, planned in self._planned.items() if planned.number + 1 == token), None
        )


def _facts(kind: NetworkKind, index: int) -> Facts:
    return Facts(
        INTERFACES[kind],
        INTERFACES[kind],
        index,
        kind,
        metered=kind is NetworkKind.CELLULAR,
        addresses=(ip_interface(f"{ADDRESSES[kind]}/24"),),
        next_hops=(NextHop(4, ip_address(GATEWAYS[kind])),),
    )
