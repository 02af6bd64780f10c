"""Living MPTCP connections on a kernel and an event loop.

What the kernel says goes to our path manager, and what that wants goes to the kernel.
"""

import asyncio
import errno
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Final

from cedos.errors import HostError, SteeringError
from cedos.host.steer.journal_records import CONNECTIONS, Append, change_sysctl
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.mptcp.connection import (
    ConnectionEvent,
    ConnectionOpened,
    MptcpConnection,
    MptcpSubflow,
    PathManagerStep,
)
from cedos.host.steer.mptcp.path_manager import PathManager
from cedos.kernel.mptcp import MptcpEvent, MptcpEventKind, SetBackup
from cedos.kernel.policy_routing import MAIN_TABLE, SeenRoute
from cedos.kernel.sock_diag import TcpSocket
from cedos.kernel.sysctl import MPTCP_ENABLED, MPTCP_PATH_MANAGER, MPTCP_PM_TYPE
from cedos.logs import get_logger
from cedos.model import Address, FlowKey, Network, Strategy

_log = get_logger(__name__)
# A priority flag travels on one packet without acknowledgement. It is sent again after this time,
# in case it was lost.
_FLAGS_AGAIN_S: Final = 0.25
# The times after which a refused flag is sent again. The kernel refuses it until the subflow is
# joined, a round trip after the event.
_FLAGS_RETRY_S: Final = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
# The lifetime of the kernel's answer to where a route leads.
_ROUTES_KNOWN_S: Final = 1.0
# The sysctls of the path manager, the newer name first. A kernel with both keeps them equal.
_PATH_MANAGERS: Final = ((MPTCP_PATH_MANAGER, "userspace"), (MPTCP_PM_TYPE, "1"))

_KERNELS: Final = "it was made under the kernel's own path manager"


class MptcpConnections:
    """Follows all connections; steers those that were made while the paths are in our hands.

    `ours` tells whether those of new ones are, `notice` is called with what a person should know.
    """

    def __init__(
        self, kernel: SteeringKernel, ours: Callable[[], bool], notice: Callable[[str], None]
    ) -> None:
        self._kernel = kernel
        self._ours = ours
        self._notice = notice
        self._manager = PathManager()
        # The connections of which the kernel was not asked yet whether it lets us steer them.
        self._unasked: set[int] = set()
        self._queues: set[asyncio.Queue[ConnectionEvent | None]] = set()
        self._loop = asyncio.get_running_loop()
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._due: asyncio.TimerHandle | None = None
        # What happens before the networks are known is found out then.
        self._networks_known = False
        self._closed = False
        self._routed_by_default: dict[tuple[Address, Address], bool] = {}
        self._routes_until_s = 0.0

    @property
    def connections(self) -> dict[int, MptcpConnection]:
        """Return token -> the connection as it is now."""
        return self._manager.connections

    async def events(self) -> AsyncIterator[ConnectionEvent]:
        """Return the connections that live now, then what happens, until `close`."""
        queue: asyncio.Queue[ConnectionEvent | None] = asyncio.Queue()
        if self._closed:
            return
        self._queues.add(queue)
        try:
            for connection in list(self.connections.values()):
                if connection.subflows:
                    yield ConnectionOpened(connection, connection.subflows[0].key)
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queues.discard(queue)

    def close(self) -> None:
        """End timers and events; the connections stay as they are."""
        self._closed = True
        for timer in (*self._timers.values(), self._due):
            if timer is not None:
                timer.cancel()
        for queue in self._queues:
            queue.put_nowait(None)

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Join from new networks, leaves those that are gone. Errors: OSError."""
        self._routed_by_default.clear()
        first, self._networks_known = not self._networks_known, True
        self._carry_out(self._manager.networks_changed(networks, time.monotonic()))
        if first:
            self.read_all()

    def keep_to(self, may_use: Callable[[FlowKey, str], bool]) -> None:
        self._manager.may_use = may_use

    def without_spares(self, names: Collection[str]) -> None:
        self._carry_out(self._manager.without_spares(names, time.monotonic()))

    def steer(self, token: int, strategy: Strategy) -> None:
        self._ask(token)
        refused = self._carry_out(self._manager.steer(token, strategy, time.monotonic()))
        if refused is not None and refused.errno != errno.EINVAL:
            raise SteeringError(f"the kernel refuses to move the connection: {refused}")
        if refused is None:
            self._flags_later(token, _FLAGS_AGAIN_S, len(_FLAGS_RETRY_S))

    def release(self, token: int, network: str) -> None:
        self._ask(token)
        self._carry_out(self._manager.release(token, network, time.monotonic()))

    def on_rescue(self, key: FlowKey, network: str | None) -> None:
        self._manager.on_rescue(key, network)

    def on_event(self, event: MptcpEvent) -> None:
        """Apply an event of a connection."""
        if self._closed or not self._networks_known:
            return
        now_s = time.monotonic()
        try:
            if event.kind is MptcpEventKind.ESTABLISHED:
                self._unasked.add(event.token)
                self._carry_out(self._manager.on_open(event, self._unsteerable(event), now_s))
            else:
                if event.kind is MptcpEventKind.CLOSED:
                    self._unasked.discard(event.token)
                self._carry_out(self._manager.on_event(event, now_s))
        except OSError as error:
            _log.warning("a path event could not be answered", why=str(error))

    def read_all(self) -> None:
        """Take stock of all sockets: at the start, and when events were lost. Errors: OSError."""
        sockets = self._kernel.sockets()
        listening = {seen.key.local_port for seen in sockets if seen.listening}
        by_token: dict[int, list[MptcpSubflow]] = {}
        for seen in sorted(sockets, key=lambda seen: seen.local_id):
            if seen.token is not None:
                subflow = MptcpSubflow(seen.key, None, seen.backup)
                by_token.setdefault(seen.token, []).append(subflow)
        reasons = {}
        for token, subflows in by_token.items():
            if token not in self.connections:
                key = subflows[0].key
                server = key.local_port in listening
                event = MptcpEvent(MptcpEventKind.ESTABLISHED, token, key, server_side=server)
                reasons[token] = self._unsteerable(event)
        self._unasked &= by_token.keys()
        self._unasked |= by_token.keys() - self.connections.keys()
        self._carry_out(self._manager.adopt(by_token, reasons, time.monotonic()))

    def on_events_lost(self) -> None:
        """Read all connections again after the kernel dropped events."""
        if not self._closed and self._networks_known:
            _log.warning("path events were lost; looking at all connections")
            self.read_all()

    def _unsteerable(self, event: MptcpEvent) -> str | None:
        assert event.key is not None
        if event.server_side:
            return "the other end opened it"
        if not event.joinable:
            return "the other end forbids further subflows"
        if not self._ours():
            return _KERNELS
        if self._manager.network_of(event.key.local) is None:
            return "it uses no access network (but a VPN, a local network, this host)"
        if not self.by_default(event.key.remote, event.key.local):
            return "a route of its own leads there (a VPN, a local network)"
        return None

    def by_default(self, remote: Address, local: Address) -> bool:
        """Return whether a default route leads there; answers are kept by host."""
        now_s = time.monotonic()
        if now_s > self._routes_until_s:
            self._routed_by_default.clear()
            self._routes_until_s = now_s + _ROUTES_KNOWN_S
        known = self._routed_by_default.get((remote, local))
        if known is None:
            route = self._kernel.lookup(remote, local)
            known = route is not None and not route.destination.prefixlen
            self._routed_by_default[remote, local] = known
        return known

    def _ask(self, token: int) -> None:
        """Leave a connection alone if it has the kernel's own path manager.

        The kernel is asked before the first command. Most connections end without one, and the question
        wakes the privileged part.
        """
        if token in self._unasked:
            ours = self._kernel.ours_to_steer(token)
            self._unasked.discard(token)
            if not ours:
                self._tell(self._manager.leave(token, _KERNELS))

    def _tell(self, event: ConnectionEvent) -> None:
        for queue in self._queues:
            queue.put_nowait(event)

    def _carry_out(self, step: PathManagerStep) -> OSError | None:
        """Return the first refusal to set a flag, if there was one; it is tried again by itself."""
        refused: OSError | None = None
        for token in {command.token for command in step.commands}:
            self._ask(token)
        commands = [c for c in step.commands if self.connections[c.token].unsteerable is None]
        if commands:
            results = self._kernel.steer(commands)
            for command, error in zip(commands, results, strict=True):
                if error is not None:
                    _log.debug("refused", command=str(command), why=str(error))
                    self._manager.on_failure(command, time.monotonic())
                    if isinstance(command, SetBackup):
                        refused = refused or error
                        self._flags_later(command.token, _FLAGS_RETRY_S[0], 1)
        for notice in step.notices:
            self._notice(notice)
        for event in step.events:
            self._tell(event)
        if self._due is not None:
            self._due.cancel()
            self._due = None
        at_s = self._manager.next_at_s()
        if at_s is not None and not self._closed:
            self._due = self._loop.call_later(max(at_s - time.monotonic(), 0.0), self._retry)
        return refused

    def _retry(self) -> None:
        self._due = None
        if not self._closed:
            self._carry_out(self._manager.due(time.monotonic()))

    def _flags_later(self, token: int, delay_s: float, tries: int) -> None:
        if token in self._timers:
            self._timers[token].cancel()
        self._timers[token] = self._loop.call_later(delay_s, self._flags_again, token, tries)

    def _flags_again(self, token: int, tries: int) -> None:
        self._timers.pop(token, None)
        if self._closed:
            return
        commands = self._manager.flags(token)
        refused = [error for error in self._kernel.steer(commands) if error is not None]
        if not refused:
            return
        if tries < len(_FLAGS_RETRY_S):
            self._flags_later(token, _FLAGS_RETRY_S[tries], tries + 1)
        else:
            _log.warning("a connection does not let itself be moved", why=str(refused[0]))


def hand_over(kernel: SteeringKernel) -> list[str]:
    """Move our living MPTCP connections to the network of the host's own default route.

    To be called while our rules still stand: they tell which network a socket's address belongs to.
    A plain TCP connection cannot be moved; of those whose network is not the host's own default
    the returned words say that they lose their way.
    """
    own = own_defaults(kernel.routes())
    by_token: defaultdict[int, list[TcpSocket]] = defaultdict(list)
    lines = []
    for seen in kernel.sockets():
        if seen.listening or seen.key.remote.version not in own:
            continue
        if seen.token is not None:
            by_token[seen.token].append(seen)
        elif _index(kernel, seen) not in (None, own[seen.key.remote.version]):
            key = seen.key
            lines.append(
                f"loses its network: TCP {key.local} port {key.local_port}"
                f" -> {key.remote} port {key.remote_port}"
            )
    for token, subflows in by_token.items():
        lines += _move(kernel, token, subflows, own)
    return lines


def own_defaults(routes: Sequence[SeenRoute]) -> dict[int, int]:
    """Return IP version -> index of the interface of the host's own default route."""
    best: dict[int, SeenRoute] = {}
    for route in routes:
        if route.table == MAIN_TABLE and route.destination.prefixlen == 0 and route.index:
            known = best.get(route.version)
            if known is None or route.rank < known.rank:
                best[route.version] = route
    return {version: route.index for version, route in best.items()}


def _index(kernel: SteeringKernel, seen: TcpSocket) -> int | None:
    """Return the interface through which a socket's packets leave, if it is by a default route."""
    route = kernel.lookup(seen.key.remote, seen.key.local)
    return route.index if route is not None and route.destination.prefixlen == 0 else None


def _move(
    kernel: SteeringKernel, token: int, subflows: list[TcpSocket], own: dict[int, int]
) -> list[str]:
    staying = [s for s in subflows if _index(kernel, s) == own[s.key.remote.version]]
    leaving = [s for s in subflows if s not in staying]
    if not staying or not leaving or not kernel.ours_to_steer(token):
        return []
    commands = [SetBackup(token, s.key, False) for s in staying if s.backup]
    commands += [SetBackup(token, s.key, True) for s in leaving if not s.backup]
    return [
        str(command)
        for command, error in zip(commands, kernel.steer(commands), strict=True)
        if error is None
    ]


def take_path_manager(kernel: SteeringKernel, append: Append) -> None:
    """Take the path manager over. HostError: impossible, or another program has it."""
    lost = "Living connections cannot be moved; new ones are still steered"
    enabled = kernel.read_sysctl(MPTCP_ENABLED)
    if enabled is None:
        raise HostError(f"this kernel has no MPTCP. {lost}")
    if enabled == "0":
        raise HostError(f"MPTCP is disabled (`sysctl {MPTCP_ENABLED}=1` enables it). {lost}")
    for key, after in _PATH_MANAGERS:
        before = kernel.read_sysctl(key)
        if before is None:
            continue
        if before == after:
            raise HostError(
                f"another program (mptcpd?) manages the paths of MPTCP connections: {key} is {before}"
                f" already. {lost}. If there is no such program, run `sysctl {key}="
                f"{'kernel' if after == 'userspace' else 0}`"
            )
        append(CONNECTIONS)
        if not change_sysctl(kernel, append, key, after):
            raise HostError(f"the disk of the journal takes nothing. {lost}")
        return
    raise HostError(f"this kernel's MPTCP paths cannot be managed by a program. {lost}")
