"""Our path manager: facts about connections and networks in, commands for the kernel out.

It does no I/O and reads no clock. Every connection that lives for a moment gets a subflow over every
network, one of them active and the others as backups (RFC 8684, 3.3.8), so that moving a living
connection takes nothing but its flags. A subflow is destroyed only when its network is gone, or when
what is under way on it would hold up the rest (`release`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from cedos.errors import SteeringError
from cedos.kernel.mptcp_netlink import (
    CreatePath,
    DestroyPath,
    EventKind,
    PathCommand,
    PathEvent,
    RemoveAddress,
    SetBackup,
)
from cedos.model import Address, FlowKey, Network, Strategy, StrategyKind
from cedos.steer.mptcp.connection import (
    ConnectionClosed,
    ConnectionOpened,
    MptcpConnection,
    MptcpSubflow,
    PathDown,
    PathUp,
)
from cedos.steer.mptcp.state import ConnectionState, Join, PathManagerStep

# A join whose SYN or answer is lost is tried again while the first attempt may still succeed.
_JOIN_TIMEOUT_S: Final = 6.0
_FIRST_RETRY_S: Final = 0.5
# Most connections end within two round trips. A spare for each would wake a cellular radio every
# time, and cost this host more than all else that is done for them; a move joins at once anyhow.
_SPARE_AFTER_S: Final = 0.1
_LAST_RETRY_S: Final = 60.0


class PathManager:
    """All living connections.

    Attributes:
        connections: token -> the connection as it is now.
    """

    def __init__(self) -> None:
        self.connections: dict[int, MptcpConnection] = {}
        self._living: dict[int, ConnectionState] = {}
        self._networks: dict[str, Network] = {}
        self._names: dict[Address, str] = {}
        self._ids: dict[Address, int] = {}
        self._rescued: dict[FlowKey, str] = {}
        self._stranger_told = False

    def network_of(self, address: Address) -> str | None:
        """The name of the network that one of our addresses belongs to, if that is up."""
        return self._names.get(address)

    def rescued(self, key: FlowKey, network: str | None) -> None:
        """A subflow that is being opened is carried by another network than its address belongs to.

        To be told before the connection is `opened`; None: by its own network, or it has ended.
        """
        if network is None:
            self._rescued.pop(key, None)
        else:
            self._rescued[key] = network

    def _carrier(self, key: FlowKey) -> str | None:
        """The network that carries a subflow, while its address is ours; None: none that is up."""
        own = self._names.get(key.local)
        rescuer = self._rescued.get(key)
        if own is None or rescuer is None:
            return own
        return rescuer if rescuer in self._networks else None

    def next_at_s(self) -> float | None:
        """When `due` has something to do; None: never, as things are."""
        return min(
            (j.until_s for c in self._living.values() for j in c.joins.values()), default=None
        )

    # -- facts --------------------------------------------------------------------------------

    def opened(self, event: PathEvent, unsteerable: str | None, now_s: float) -> PathManagerStep:
        """A connection is established; `unsteerable` says why it is to be left alone, if it is."""
        step = PathManagerStep()
        if event.key is None or event.token in self._living:
            return step
        home = self._carrier(event.key)
        living = ConnectionState(event.token, event.key, home, unsteerable)
        living.paths[event.key] = MptcpSubflow(event.key, home, False)
        self._living[event.token] = living
        if living.unsteerable is None and living.home is not None:
            for name in self._networks:
                if name != living.home:
                    living.joins[name] = Join(now_s + _SPARE_AFTER_S, 0, False)
        step.events.append(ConnectionOpened(self._seen(living), living.initial))
        return step

    def found(
        self,
        paths: Mapping[int, Sequence[MptcpSubflow]],
        unsteerable: Mapping[int, str | None],
        now_s: float,
    ) -> PathManagerStep:
        """All connections that live now, by token, the initial subflow first where it lives.

        What is not known yet is taken over as it is; what is known and not there has ended.
        """
        step = PathManagerStep()
        for token in [token for token in self._living if token not in paths]:
            self._closed(token, step)
        for token, subflows in paths.items():
            if token in self._living or not subflows:
                continue
            named = {p.key: MptcpSubflow(p.key, self._carrier(p.key), p.backup) for p in subflows}
            active = next((p for p in named.values() if not p.backup), named[subflows[0].key])
            living = ConnectionState(token, subflows[0].key, active.network, unsteerable.get(token))
            living.paths = named
            self._living[token] = living
            self._join_all(living, step, now_s)
            step.events.append(ConnectionOpened(self._seen(living), living.initial))
        return step

    def happened(self, event: PathEvent, now_s: float) -> PathManagerStep:
        """A subflow came up or went down, or a connection has ended."""
        step = PathManagerStep()
        living = self._living.get(event.token)
        if living is None:
            return step
        if event.kind is EventKind.CLOSED:
            self._closed(event.token, step)
        elif event.key is not None and event.kind is EventKind.SUBFLOW_UP:
            self._up(living, event.key, step)
        elif event.key is not None and event.kind is EventKind.SUBFLOW_DOWN:
            self._down(living, event.key, step, now_s)
        return step

    def networks_changed(self, networks: Sequence[Network], now_s: float) -> PathManagerStep:
        """The networks are these now; those that are down count as gone."""
        self._networks = {network.name: network for network in networks if network.up}
        self._names = {}
        for network in self._networks.values():
            for interface in network.addresses:
                self._names.setdefault(interface.ip, network.name)
        step = PathManagerStep()
        for living in self._living.values():
            for key, path in list(living.paths.items()):
                if path.network is None and (name := self._carrier(key)) is not None:
                    living.paths[key] = MptcpSubflow(key, name, path.backup)
                    living.home = living.home or (None if path.backup else name)
            self._leave_gone(living, step)
            for name in [n for n in living.joins if n not in self._networks]:
                del living.joins[name]
            self._join_all(living, step, now_s)
            self._seen(living)
        return step

    def failed(self, command: PathCommand, now_s: float) -> None:
        """The kernel refused a command: a join is tried again later, the rest shows in events."""
        living = self._living.get(command.token)
        if living is None or not isinstance(command, CreatePath):
            return
        if outstanding := living.asked.get(command.local):
            outstanding.pop(0)
        name = self._names.get(command.local)
        if name is not None and (join := living.joins.get(name)) is not None:
            living.joins[name] = _later(join.tries, now_s)

    def due(self, now_s: float) -> PathManagerStep:
        """Asks again for the subflows that have not come up."""
        step = PathManagerStep()
        for living in self._living.values():
            for name, join in list(living.joins.items()):
                if join.until_s <= now_s:
                    self._join(living, name, step, now_s, join.tries)
        return step

    # -- wishes -------------------------------------------------------------------------------

    def steer(self, token: int, strategy: Strategy, now_s: float) -> PathManagerStep:
        """Moves a connection: first what becomes active, then what becomes a backup.

        Where there is no subflow over a network yet, the move ends when it has come up.

        Raises:
            SteeringError: no such connection, one that is left alone, a network that is not up, or
                a strategy that is nothing for a living connection.
        """
        living = self._steerable(token)
        if strategy.kind not in (StrategyKind.SINGLE, StrategyKind.MPTCP):
            raise SteeringError(f"{strategy} is nothing that a living connection can be moved to")
        for name in strategy.networks:
            if name not in self._networks:
                raise SteeringError(f"{strategy}: the network {name} is not up")
        living.strategy = strategy
        step = PathManagerStep(self._flags(living, everything=True))
        for name, join in list(living.joins.items()):
            if name in strategy.networks and not join.asked:
                self._join(living, name, step, now_s, join.tries)
        self._seen(living)
        return step

    def release(self, token: int, network: str, now_s: float) -> PathManagerStep:
        """Gives up a connection's subflows over a network that holds up the rest, for the time being.

        A backup flag does not call back what is under way. The other end's kernel repeats that on the
        same path, with the patience of that path's time-out, and the rest waits for it: on a Wi-Fi
        that faded for 3 s before it died, 2 MB took 12 s, and 4 s where the address was removed.
        Nothing is given up where no other network has a subflow.

        Raises:
            SteeringError: no such connection, or one that is left alone.
        """
        living = self._steerable(token)
        step = PathManagerStep()
        left = [path for path in living.paths.values() if path.network == network]
        rest = [
            path
            for path in living.paths.values()
            if path.network != network and self._carrier(path.key) is not None
        ]
        if not left or not rest:
            return step
        if all(path.backup for path in rest):
            first = rest[0]
            step.commands.append(SetBackup(token, first.key, False))
            living.paths[first.key] = MptcpSubflow(first.key, first.network, False)
        for local in dict.fromkeys(path.key.local for path in left):
            step.commands.append(RemoveAddress(token, local, self._identity_in(living, local)))
        for path in left:
            step.commands.append(DestroyPath(token, path.key))
            del living.paths[path.key]
            step.events.append(PathDown(self._seen(living), path.key))
        living.joins.setdefault(network, _later(0, now_s))
        return step

    def flags(self, token: int) -> list[PathCommand]:
        """All flags of a connection once more: the packet that carries one may have been lost."""
        living = self._living.get(token)
        return [] if living is None else self._flags(living, everything=True)

    # -- within -------------------------------------------------------------------------------

    def _steerable(self, token: int) -> ConnectionState:
        living = self._living.get(token)
        if living is None:
            raise SteeringError(f"no living MPTCP connection has the token {token:#010x}")
        if living.unsteerable is not None:
            raise SteeringError(f"connection {token:#010x} is left alone: {living.unsteerable}")
        return living

    def _seen(self, living: ConnectionState) -> MptcpConnection:
        view = self.connections[living.token] = living.view()
        return view

    def _closed(self, token: int, step: PathManagerStep) -> None:
        initial = self._living.pop(token).initial
        step.events.append(ConnectionClosed(self.connections.pop(token), initial))

    def _flags(self, living: ConnectionState, *, everything: bool = False) -> list[PathCommand]:
        paths = {key: path for key, path in living.paths.items() if path.network is not None}
        if living.alone and all(path.network != living.alone for path in paths.values()):
            return []  # until it is there, the others go on as they are
        wanted = {key: living.wants_backup(path.network or "") for key, path in paths.items()}
        commands: list[PathCommand] = []
        for backup in (False, True):
            for key, path in paths.items():
                if wanted[key] is backup and (everything or path.backup is not backup):
                    commands.append(SetBackup(living.token, key, backup))
                    living.paths[key] = MptcpSubflow(key, path.network, backup)
        return commands

    def _up(self, living: ConnectionState, key: FlowKey, step: PathManagerStep) -> None:
        name = self._carrier(key)
        asked = living.joins.pop(name, None) if name is not None else None
        # (Of two requests for one network both may come up; the second one is no stranger's.)
        unasked = asked is None and not living.asked.get(key.local)
        stranger = living.unsteerable is None and unasked and key not in living.paths
        if stranger and not self._stranger_told:
            self._stranger_told = True
            step.notices.append("another program manages the paths of MPTCP connections too")
        if name is not None and all(self._carrier(k) is None for k in living.paths):
            living.home = name
        # Of several requests under way, as a backup and as none, any may be the one that came up;
        # then its flag is told in any case.
        outstanding = living.asked.get(key.local, [])
        backup = outstanding.pop(0) if outstanding else False
        if name is not None and any(other is not backup for other in outstanding):
            backup = not living.wants_backup(name)
        living.paths[key] = MptcpSubflow(key, name, backup)
        if living.unsteerable is None:
            self._leave_gone(living, step)
            step.commands += self._flags(living)
        step.events.append(PathUp(self._seen(living), key))

    def _down(
        self, living: ConnectionState, key: FlowKey, step: PathManagerStep, now_s: float
    ) -> None:
        path = living.paths.pop(key, None)
        if path is None:
            return
        if path.network in self._networks and living.unsteerable is None:
            living.joins.setdefault(path.network, _later(0, now_s))
        step.events.append(PathDown(self._seen(living), path.key))

    def _leave_gone(self, living: ConnectionState, step: PathManagerStep) -> None:
        """Destroys subflows over networks that are gone, as soon as another one can take over."""
        if living.unsteerable is not None:
            return
        gone = [p for k, p in living.paths.items() if p.network and self._carrier(k) is None]
        there = [p for k, p in living.paths.items() if self._carrier(k) is not None]
        if not gone or not there:
            return
        if all(path.backup for path in there):
            first = there[0]
            step.commands.append(SetBackup(living.token, first.key, False))
            living.paths[first.key] = MptcpSubflow(first.key, first.network, False)
        for path in gone:
            step.commands.append(DestroyPath(living.token, path.key))
            del living.paths[path.key]
            step.events.append(PathDown(self._seen(living), path.key))

    def _join_all(self, living: ConnectionState, step: PathManagerStep, now_s: float) -> None:
        # Without a home it has never used an access network.
        if living.unsteerable is not None or living.home is None:
            return
        present = {self._carrier(key) for key in living.paths}
        for name in self._networks:
            if name not in present and name not in living.joins:
                self._join(living, name, step, now_s, 0)

    def _join(
        self, living: ConnectionState, name: str, step: PathManagerStep, now_s: float, tries: int
    ) -> None:
        remote = living.initial.remote
        network = self._networks[name]
        local = next(
            (
                interface.ip
                for interface in network.addresses
                if interface.version == remote.version and not interface.ip.is_link_local
            ),
            None,
        )
        if local is None:
            living.joins.pop(name, None)
            return
        # Nobody else carries anything: what joins is needed at once.
        alone = all(self._carrier(key) is None for key in living.paths)
        backup = living.wants_backup(name) and not alone
        identity = self._identity_in(living, local)
        until_s = now_s + _JOIN_TIMEOUT_S * 2 ** min(tries, 3)
        living.joins[name] = Join(until_s, tries + 1, True)
        living.asked.setdefault(local, []).append(backup)
        port = living.initial.remote_port
        step.commands.append(
            CreatePath(living.token, local, identity, network.index, remote, port, backup)
        )

    def _identity_in(self, living: ConnectionState, local: Address) -> int:
        return 0 if local == living.initial.local else self._identity(local)

    def _identity(self, local: Address) -> int:
        """An address's number within every connection; 0 is each one's first address."""
        if local not in self._ids:
            used = set(self._ids.values())
            if len(used) >= 254:
                self._ids = {a: n for a, n in self._ids.items() if a in self._names}
                used = set(self._ids.values())
            self._ids[local] = next(n for n in range(1, 256) if n not in used)
        return self._ids[local]


def _later(tries: int, now_s: float) -> Join:
    return Join(now_s + min(_FIRST_RETRY_S * 4 ** min(tries, 5), _LAST_RETRY_S), tries, False)
