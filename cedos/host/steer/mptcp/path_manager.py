"""Our path manager: facts about connections and networks in, commands for the kernel out.

It does no I/O and reads no clock. A connection that lives for a moment gets a subflow over every
network whose spares are worth their joules, one of them active and the others as backups (RFC 8684,
3.3.8): moving it then takes nothing but its flags, else a round trip more. A subflow is destroyed only
when its network is gone, or when what is under way on it would hold up the rest (`release`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from cedos.errors import SteeringError
from cedos.host.steer.mptcp.connection import (
    ConnectionClosed,
    ConnectionLeft,
    ConnectionOpened,
    ConnectionState,
    Join,
    MptcpConnection,
    MptcpSubflow,
    PathManagerStep,
    SubflowDown,
    SubflowUp,
)
from cedos.kernel.mptcp import (
    CreateSubflow,
    DestroySubflow,
    MptcpEvent,
    MptcpEventKind,
    PathManagerCommand,
    RemoveAddress,
    SetBackup,
)
from cedos.model import Address, FlowKey, Network, Strategy, StrategyKind

# The time after which a join is tried again. The first attempt may still succeed if only its SYN
# or answer was lost.
_JOIN_TIMEOUT_S: Final = 6.0
_FIRST_RETRY_S: Final = 0.5
# The age at which a connection gets a spare subflow. Most connections end within two round trips;
# a spare for each would wake a cellular radio every time. A move joins at once anyway.
_SPARE_AFTER_S: Final = 0.1
_LAST_RETRY_S: Final = 60.0


class PathManager:
    """The living connections.

    Attributes:
        connections: token -> the connection as it is now.
        may_use: whether a connection, by its initial subflow, may get one over a network.
    """

    def __init__(self) -> None:
        self.may_use: Callable[[FlowKey, str], bool] = lambda *_: True
        self.connections: dict[int, MptcpConnection] = {}
        self._states: dict[int, ConnectionState] = {}
        self._networks: dict[str, Network] = {}
        self._names: dict[Address, str] = {}
        self._ids: dict[Address, int] = {}
        self._rescued: dict[FlowKey, str] = {}
        self._without_spares: frozenset[str] = frozenset()
        self._stranger_told = False

    def network_of(self, address: Address) -> str | None:
        """Return the name of the network that one of our addresses belongs to, if that is up."""
        return self._names.get(address)

    def on_rescue(self, key: FlowKey, network: str | None) -> None:
        """Note that another network carries a new subflow than its address belongs to.

        To be told before the connection is `opened`; None: by its own network, or it has ended.
        """
        if network is None:
            self._rescued.pop(key, None)
        else:
            self._rescued[key] = network

    def _carrier(self, key: FlowKey) -> str | None:
        """Return the network that carries a subflow, while its address is ours; None: none that is up."""
        own = self._names.get(key.local)
        rescuer = self._rescued.get(key)
        if own is None or rescuer is None:
            return own
        return rescuer if rescuer in self._networks else None

    def next_at_s(self) -> float | None:
        """Return when `due` has something to do; None: never, as things are."""
        return min(
            (j.until_s for c in self._states.values() for j in c.joins.values()), default=None
        )

    # -- facts --------------------------------------------------------------------------------

    def on_open(self, event: MptcpEvent, unsteerable: str | None, now_s: float) -> PathManagerStep:
        """Add an established connection; `unsteerable` says why it is left alone, if it is."""
        step = PathManagerStep()
        if event.key is None or event.token in self._states:
            return step
        home = self._carrier(event.key)
        state = ConnectionState(event.token, event.key, home, unsteerable)
        state.subflows[event.key] = MptcpSubflow(event.key, home, False)
        self._states[event.token] = state
        # Spare subflows come a moment later, so that short connections have none.
        if state.unsteerable is None and state.home is not None:
            for name in self._networks:
                if name != state.home and self._is_wanted(state, name):
                    state.joins[name] = Join(now_s + _SPARE_AFTER_S, 0, False)
        step.events.append(ConnectionOpened(self._show(state), state.initial))
        return step

    def adopt(
        self,
        by_token: Mapping[int, Sequence[MptcpSubflow]],
        unsteerable: Mapping[int, str | None],
        now_s: float,
    ) -> PathManagerStep:
        """Take all living connections, by token, each with its initial subflow first if that lives.

        What is not known yet is taken over as it is; what is known and not there has ended.
        """
        step = PathManagerStep()
        for token in [token for token in self._states if token not in by_token]:
            self._on_closed(token, step)
        for token, subflows in by_token.items():
            if token in self._states or not subflows:
                continue
            named = {p.key: MptcpSubflow(p.key, self._carrier(p.key), p.backup) for p in subflows}
            active = next((p for p in named.values() if not p.backup), named[subflows[0].key])
            state = ConnectionState(token, subflows[0].key, active.network, unsteerable.get(token))
            state.subflows = named
            self._states[token] = state
            self._join_all(state, step, now_s)
            step.events.append(ConnectionOpened(self._show(state), state.initial))
        return step

    def on_event(self, event: MptcpEvent, now_s: float) -> PathManagerStep:
        """Apply an event: a subflow came up or went down, or a connection has ended."""
        step = PathManagerStep()
        state = self._states.get(event.token)
        if state is None:
            return step
        if event.kind is MptcpEventKind.CLOSED:
            self._on_closed(event.token, step)
        elif event.key is not None and event.kind is MptcpEventKind.SUBFLOW_UP:
            self._on_up(state, event.key, step)
        elif event.key is not None and event.kind is MptcpEventKind.SUBFLOW_DOWN:
            self._down(state, event.key, step, now_s)
        return step

    def networks_changed(self, networks: Sequence[Network], now_s: float) -> PathManagerStep:
        """Take the networks; those that are down count as gone, and so do lost IP versions."""
        self._networks = {network.name: network for network in networks if network.up}
        self._names = {}
        for network in self._networks.values():
            led = (each for each in network.addresses if network.leads_out(each.version))
            for interface in led:
                self._names.setdefault(interface.ip, network.name)
        step = PathManagerStep()
        for state in self._states.values():
            # Subflows whose network was unknown or down may have one now.
            for key, subflow in list(state.subflows.items()):
                if subflow.network is None and (name := self._carrier(key)) is not None:
                    state.subflows[key] = MptcpSubflow(key, name, subflow.backup)
                    state.home = state.home or (None if subflow.backup else name)
            # Leave networks that are gone, and join those that came.
            self._leave_gone(state, step)
            for name in [n for n in state.joins if n not in self._networks]:
                del state.joins[name]
            self._join_all(state, step, now_s)
            self._show(state)
        return step

    def without_spares(self, names: Collection[str], now_s: float) -> PathManagerStep:
        """Open no more backup subflows over these networks; those there stay."""
        before, self._without_spares = self._without_spares, frozenset(names)
        step = PathManagerStep()
        if before == self._without_spares:
            return step
        for state in self._states.values():
            # A join that the kernel was asked for comes up anyway; the others are dropped.
            for name in [n for n in state.joins if not self._is_wanted(state, n)]:
                if not state.joins[name].asked:
                    del state.joins[name]
            self._join_all(state, step, now_s)
            self._show(state)
        return step

    def on_failure(self, command: PathManagerCommand, now_s: float) -> None:
        """Try a refused join again later; other refusals show in events."""
        state = self._states.get(command.token)
        if state is None or not isinstance(command, CreateSubflow):
            return
        if outstanding := state.asked.get(command.local):
            outstanding.pop(0)
        name = self._names.get(command.local)
        if name is not None and (join := state.joins.get(name)) is not None:
            state.joins[name] = _join_later(join.tries, now_s)

    def due(self, now_s: float) -> PathManagerStep:
        """Ask again for the subflows that have not come up."""
        step = PathManagerStep()
        for state in self._states.values():
            for name, join in list(state.joins.items()):
                if join.until_s <= now_s:
                    self._join(state, name, step, now_s, join.tries)
        return step

    def leave(self, token: int, why: str) -> ConnectionLeft:
        """Leave a living connection alone from now on."""
        state = self._states[token]
        state.unsteerable = why
        state.joins.clear()
        return ConnectionLeft(self._show(state), state.initial)

    # -- wishes -------------------------------------------------------------------------------

    def steer(self, token: int, strategy: Strategy, now_s: float) -> PathManagerStep:
        """Move a connection: first what becomes active, then what becomes a backup.

        Where there is no subflow over a network yet, the move ends when it has come up. Raises
        SteeringError for what cannot be moved, or not there.
        """
        state = self._steerable(token)
        if strategy.kind not in (StrategyKind.SINGLE, StrategyKind.MPTCP):
            raise SteeringError(f"{strategy} is nothing that a living connection can be moved to")
        for name in strategy.networks:
            if name not in self._networks:
                raise SteeringError(f"{strategy}: the network {name} is not up")
        state.strategy = strategy
        # Flags move what has a subflow there already; the rest waits for a join.
        step = PathManagerStep(self._flags(state, everything=True))
        present = {self._carrier(key) for key in state.subflows}
        for name in strategy.networks:
            join = state.joins.get(name)
            if name not in present and (join is None or not join.asked):
                self._join(state, name, step, now_s, join.tries if join is not None else 0)
        self._show(state)
        return step

    def release(self, token: int, network: str, now_s: float) -> PathManagerStep:
        """Give up a connection's subflows over a network that holds up the rest, for the time being.

        A backup flag does not call back what is under way. The other end's kernel repeats that on the
        same subflow, with the patience of that subflow's time-out, and the rest waits for it: on a Wi-Fi
        that faded for 3 s before it died, 2 MB took 12 s, and 4 s where the address was removed.
        Nothing is given up where no other network has a subflow. SteeringError as for `steer`.
        """
        state = self._steerable(token)
        step = PathManagerStep()
        left = [subflow for subflow in state.subflows.values() if subflow.network == network]
        rest = [
            subflow
            for subflow in state.subflows.values()
            if subflow.network != network and self._carrier(subflow.key) is not None
        ]
        if not rest:
            return step
        # One of the remaining subflows must be active before the others go.
        if all(subflow.backup for subflow in rest):
            first = rest[0]
            step.commands.append(SetBackup(token, first.key, False))
            state.subflows[first.key] = MptcpSubflow(first.key, first.network, False)
            self._show(state)
        if not left:
            return step
        # Removing the address makes the peer send again elsewhere; then the subflows go.
        for local in dict.fromkeys(subflow.key.local for subflow in left):
            step.commands.append(RemoveAddress(token, local, self._identity_in(state, local)))
        for subflow in left:
            step.commands.append(DestroySubflow(token, subflow.key))
            del state.subflows[subflow.key]
            step.events.append(SubflowDown(self._show(state), subflow.key))
        if self._is_wanted(state, network):
            state.joins.setdefault(network, _join_later(0, now_s))
        return step

    def flags(self, token: int) -> list[PathManagerCommand]:
        """Return all flags of a connection once more: the packet with one may have been lost."""
        state = self._states.get(token)
        return [] if state is None else self._flags(state, everything=True)

    # -- within -------------------------------------------------------------------------------

    def _steerable(self, token: int) -> ConnectionState:
        state = self._states.get(token)
        if state is None:
            raise SteeringError(f"no living MPTCP connection has the token {token:#010x}")
        if state.unsteerable is not None:
            raise SteeringError(f"connection {token:#010x} is left alone: {state.unsteerable}")
        return state

    def _show(self, state: ConnectionState) -> MptcpConnection:
        view = self.connections[state.token] = state.view()
        return view

    def _on_closed(self, token: int, step: PathManagerStep) -> None:
        initial = self._states.pop(token).initial
        step.events.append(ConnectionClosed(self.connections.pop(token), initial))

    def _flags(
        self, state: ConnectionState, *, everything: bool = False
    ) -> list[PathManagerCommand]:
        subflows = {
            key: subflow for key, subflow in state.subflows.items() if subflow.network is not None
        }
        if state.alone and all(subflow.network != state.alone for subflow in subflows.values()):
            return []  # until it is there, the others go on as they are
        wanted = {
            key: state.wants_backup(subflow.network or "") for key, subflow in subflows.items()
        }
        # First what becomes active, then what becomes a backup: one is active at any time.
        commands: list[PathManagerCommand] = []
        for backup in (False, True):
            for key, subflow in subflows.items():
                if wanted[key] is backup and (everything or subflow.backup is not backup):
                    commands.append(SetBackup(state.token, key, backup))
                    state.subflows[key] = MptcpSubflow(key, subflow.network, backup)
        return commands

    def _on_up(self, state: ConnectionState, key: FlowKey, step: PathManagerStep) -> None:
        name = self._carrier(key)
        asked = state.joins.pop(name, None) if name is not None else None
        # (Of two requests for one network both may come up; the second one is no stranger's.)
        unasked = asked is None and not state.asked.get(key.local)
        stranger = state.unsteerable is None and unasked and key not in state.subflows
        if stranger and not self._stranger_told:
            self._stranger_told = True
            step.notices.append("another program manages the paths of MPTCP connections too")
        # The first subflow over a network that is up is the connection's new home.
        if name is not None and all(self._carrier(k) is None for k in state.subflows):
            state.home = name
        # Of several requests under way, as a backup and as none, any may be the one that came up;
        # then its flag is told in any case.
        outstanding = state.asked.get(key.local, [])
        backup = outstanding.pop(0) if outstanding else False
        if name is not None and any(other is not backup for other in outstanding):
            others = any(self._carrier(k) is not None for k in state.subflows)
            backup = state.wants_backup(name) and others
            step.commands.append(SetBackup(state.token, key, backup))
        state.subflows[key] = MptcpSubflow(key, name, backup)
        if state.unsteerable is None:
            self._leave_gone(state, step)
            step.commands += self._flags(state)
        step.events.append(SubflowUp(self._show(state), key))

    def _down(
        self, state: ConnectionState, key: FlowKey, step: PathManagerStep, now_s: float
    ) -> None:
        subflow = state.subflows.pop(key, None)
        if subflow is None:
            return
        # Its network is still up: try again later, and at once if it was the last subflow.
        if subflow.network in self._networks and state.unsteerable is None:
            if self._is_wanted(state, subflow.network):
                state.joins.setdefault(subflow.network, _join_later(0, now_s))
            if not state.subflows:
                self._join_all(state, step, now_s)
        step.events.append(SubflowDown(self._show(state), subflow.key))

    def _leave_gone(self, state: ConnectionState, step: PathManagerStep) -> None:
        """Destroy subflows over networks that are gone, as soon as another one can take over.

        What ended before its network went leaves backups alone, too.
        """
        if state.unsteerable is not None:
            return
        gone = [p for k, p in state.subflows.items() if p.network and self._carrier(k) is None]
        there = [p for k, p in state.subflows.items() if self._carrier(k) is not None]
        if not there:
            return
        if all(subflow.backup for subflow in there):
            first = there[0]
            step.commands.append(SetBackup(state.token, first.key, False))
            state.subflows[first.key] = MptcpSubflow(first.key, first.network, False)
        for subflow in gone:
            step.commands.append(DestroySubflow(state.token, subflow.key))
            del state.subflows[subflow.key]
            step.events.append(SubflowDown(self._show(state), subflow.key))

    def _join_all(self, state: ConnectionState, step: PathManagerStep, now_s: float) -> None:
        # Without a home it has never used an access network.
        if state.unsteerable is not None or state.home is None:
            return
        present = {self._carrier(key) for key in state.subflows}
        for name in self._networks:
            needed = present <= {None} or self._is_wanted(state, name)
            if needed and name not in present and name not in state.joins:
                self._join(state, name, step, now_s, 0)

    def _is_wanted(self, state: ConnectionState, name: str) -> bool:
        """Return whether there is to be a subflow over a network, active or as a spare."""
        return name not in self._without_spares or not state.wants_backup(name)

    def _join(
        self, state: ConnectionState, name: str, step: PathManagerStep, now_s: float, tries: int
    ) -> None:
        # A user's rule may forbid the network for this connection.
        if not self.may_use(state.initial, name):
            state.joins.pop(name, None)
            return
        # The subflow needs an address of the connection's IP version there.
        remote = state.initial.remote
        network = self._networks[name]
        own = network.addresses if network.leads_out(remote.version) else ()
        local = next(
            (
                interface.ip
                for interface in own
                if interface.version == remote.version and not interface.ip.is_link_local
            ),
            None,
        )
        if local is None:
            state.joins.pop(name, None)
            return
        # No other subflow carries anything: what joins is needed at once.
        alone = all(self._carrier(key) is None for key in state.subflows)
        backup = state.wants_backup(name) and not alone
        identity = self._identity_in(state, local)
        until_s = now_s + _JOIN_TIMEOUT_S * 2 ** min(tries, 3)
        state.joins[name] = Join(until_s, tries + 1, True)
        state.asked.setdefault(local, []).append(backup)
        port = state.initial.remote_port
        step.commands.append(
            CreateSubflow(state.token, local, identity, network.index, remote, port, backup)
        )

    def _identity_in(self, state: ConnectionState, local: Address) -> int:
        return 0 if local == state.initial.local else self._identity(local)

    def _identity(self, local: Address) -> int:
        """Return an address's number within every connection; 0 is each one's first address."""
        if local not in self._ids:
            used = set(self._ids.values())
            # Eight bits number the addresses: forget those that no network has any more.
            if len(used) >= 254:
                self._ids = {a: n for a, n in self._ids.items() if a in self._names}
                used = set(self._ids.values())
            self._ids[local] = next(n for n in range(1, 256) if n not in used)
        return self._ids[local]


def _join_later(tries: int, now_s: float) -> Join:
    return Join(now_s + min(_FIRST_RETRY_S * 4 ** min(tries, 5), _LAST_RETRY_S), tries, False)
