"""Steering as the daemon uses it, and `restore` for what a dead daemon left."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from cedos.controller.commands import NOWHERE
from cedos.controller.events import HostDefault
from cedos.errors import CedosError, HostError, PrivilegeError, SteeringError
from cedos.host.costly_reads import CostlyReads
from cedos.host.steer.barring import Barring
from cedos.host.steer.journal import Journal, JournalKeeper
from cedos.host.steer.journal_records import (
    ELSEWHERE,
    FILTER,
    ROUTING,
    JournalReading,
    Record,
    SysctlRecord,
    host_record,
)
from cedos.host.steer.kernel.dry import DryKernel
from cedos.host.steer.kernel.interface import SteeringKernel, refusals
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.mptcp.connection import ConnectionEvent, MptcpConnection
from cedos.host.steer.mptcp.connections import MptcpConnections, take_path_manager
from cedos.host.steer.mptcp.receive_window import ReceiveWindow
from cedos.host.steer.repairs import (
    HeldSysctls,
    PacketFilter,
    Repairs,
    bound_retransmission,
    keep_windows,
    track_flows,
)
from cedos.host.steer.rescues import Rescues
from cedos.host.steer.routing_plan import Destination
from cedos.host.steer.routing_rules import Routing
from cedos.host.steer.rule_wall import RuleWall
from cedos.host.steer.undo import restore, undo_all
from cedos.kernel import privileges
from cedos.kernel.policy_routing import PROTOCOLS
from cedos.logs import get_logger
from cedos.model import FlowKey, Network, Strategy

__all__ = ["Steering", "restore"]

_log = get_logger(__name__)

# Changes of the host's routing within this time are handled together.
_SETTLE_S: Final = 0.05


class Steering:
    """Everything that steering does; all is undone when the `async with` block ends.

    To be made within the event loop, and entered at once.

    Args:
        state_dir: where the journal is kept.
        dry_run: tell what would be done (`planned`, and the log), change nothing.
        filter_flows: make the kernel track and count flows.
        rescue: be able to lead flows elsewhere whose first packet found no answer; needs flows that
            are tracked.
        tcp: bound the retransmission time-out of new sockets, and keep windows over idle times.
        kernel: what to act on; None: the one of the calling thread's namespace.
        open_journal: opens the journal, if it is not this process that keeps it.
        goes_on: whether another one begins as soon as this one has closed. The second wall of barred
            networks stands meanwhile, until `barring.take_down_unneeded`.

    Raises:
        PrivilegeError: CAP_NET_ADMIN is missing, or `state_dir` may not be written.
        AlreadyRunningError: another process is steering with this `state_dir`.
        SteeringError: the journal cannot be written, or the kernel refuses; nothing is left.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        dry_run: bool = False,
        filter_flows: bool = True,
        rescue: bool = False,
        tcp: bool = False,
        kernel: SteeringKernel | None = None,
        open_journal: Callable[[], JournalKeeper] | None = None,
        goes_on: Callable[[], bool] = lambda: False,
    ) -> None:
        if kernel is None and not dry_run and "CAP_NET_ADMIN" not in privileges.held_capabilities():
            raise PrivilegeError(
                "steering needs CAP_NET_ADMIN: run it as root, or by the systemd unit"
            )
        self._dry_run = dry_run
        self._steers_mptcp = False
        self._filter_flows = filter_flows
        self._rescue = rescue
        self._tcp = tcp
        self._goes_on = goes_on
        self._networks: dict[str, Network] = {}
        self._problems: dict[str, str] = {}
        self._settling: asyncio.TimerHandle | None = None
        self._reads = CostlyReads()
        self._filtered = False
        self._closed = False
        self.planned: list[str] = []
        actual = kernel or LinuxKernel()
        self._kernel: SteeringKernel = (
            DryKernel(actual, self._carry_out_plan) if dry_run else actual
        )
        try:
            # A dry run has nothing to undo.
            self._journal: JournalKeeper | None = None
            if not dry_run:
                self._journal = open_journal() if open_journal else Journal(state_dir)
        except BaseException:
            actual.close()
            raise
        self._filter = PacketFilter(self._kernel)
        self._sysctls = HeldSysctls(self._kernel, self._append)
        self._repairs = Repairs(self._filter, self._sysctls, self._look, self._problem)
        self._repairing: asyncio.Task[None] | None = None
        self._unsettled = False
        self._routing = Routing(self._kernel, self._sysctls.note)
        self._told_defaults: Mapping[int, HostDefault] = {}
        self._left_alone: Callable[[], None] = lambda: None
        self._window = ReceiveWindow(self._kernel, self._append)
        self._connections = MptcpConnections(
            self._kernel,
            lambda: self._steers_mptcp,
            lambda text: self._problem(text, text),
        )
        self.rescues = Rescues(
            self._kernel, self._routing, self._connections, self._networks, self._sysctls.note
        )
        self._rule_wall = RuleWall(self._kernel)
        self.barring = Barring(
            self._kernel, self._filter, self._connections, self._networks, self._sysctls
        )

    # -- life ---------------------------------------------------------------------------------

    async def __aenter__(self) -> "Steering":
        try:
            with refusals("begin to steer"):
                await self._begin(self._kernel)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _begin(self, kernel: SteeringKernel) -> None:
        if (journal := self._journal) is not None:
            await self._filter.do(lambda: self._undo_stale(kernel, journal))
        host = host_record(kernel)
        self._append(host)
        # Now, as later the disk may take nothing, and then a hard budget is to hold all the same.
        self._append(ROUTING)
        self._append(FILTER)
        try:
            kernel.watch(
                self._connections.on_event, self._routing_changed, self._connections.on_events_lost
            )
            take_path_manager(kernel, self._sysctls.note)
            self._steers_mptcp = True
        except HostError as error:
            self._problem("mptcp", str(error))
        if self._tcp:
            try:
                keep_windows(kernel, self._sysctls.note)
                bound_retransmission(kernel, self._sysctls.note)
            except OSError as error:
                self._problem("tcp", f"TCP stays as the kernel has it: {error.strerror}")
        if self._filter_flows:
            try:
                await self._filter.do(lambda: track_flows(kernel, self._sysctls.note))
                self._filtered = True
            except HostError as error:
                self._problem("filter", str(error))
        if self._rescue:
            await self._begin_to_rescue()
        # Once more: without it the host's earlier state is lost, and a journal suffers in one place.
        self._append(host)
        if not self._dry_run:
            await self._filter.stand(
                track=self._filtered,
                rescue=self.rescues.ready,
                on_change=self._repairs.filter_changed,
            )
            self._repairing = asyncio.create_task(self._repairs.run(), name="repairs")

    def _undo_stale(self, kernel: SteeringKernel, journal: JournalKeeper) -> None:
        """Undo what a dead daemon left; keep and report what cannot be undone."""
        undone = undo_all(kernel, journal.read(), wall=not self._filter_flows)
        if undone.refused is not None:
            raise undone.refused
        if undone.done:
            _log.warning(f"undid what a dead daemon had left: {undone.in_short}")
            _log.debug("undone", steps=undone.done)
        kept = None
        try:
            if {*undone.left} - {ELSEWHERE}:
                kept = journal.put_aside()
            else:
                journal.remove()
        except SteeringError as error:  # a disk that is read-only opens no barred network
            _log.warning("the journal stays", why=str(error))
        if undone.left:
            remedy = (
                f"its journal is kept as {kept}: put that right by hand" if kept else "it is kept"
            )
            self._problem(
                "journal",
                f"an earlier daemon left what could not be undone: {'; '.join(undone.left)} ({remedy})",
            )

    async def _begin_to_rescue(self) -> None:
        try:
            if not self._filtered:
                raise HostError(
                    "first packets into a dead network cannot be sent over another one: that needs"
                    " iptables"
                )
            await self._filter.do(self.rescues.begin)
            self.rescues.repeat_early()
        except HostError as error:
            self._problem("rescue", str(error))

    async def close(self) -> None:
        """Undo everything; again does nothing.

        Raises:
            SteeringError: something could not be undone: the journal stays, for `restore`.
        """
        if self._closed:
            return
        self._closed = True
        self._connections.close()
        self.rescues.close()
        self.barring.close()
        if not self._goes_on():
            with suppress(OSError, HostError):  # what follows undoes it by its marks
                self._rule_wall.close()
        self._filter.leave()
        if self._settling is not None:
            self._settling.cancel()
        try:
            await self._end_repairs()
            if self._journal is not None:
                appended = JournalReading(self._journal.appended)
                undone = await self._filter.do(
                    lambda: undo_all(self._kernel, appended, wall=not self._goes_on())
                )
                if isinstance(undone.refused, PermissionError):
                    with refusals("undo everything"):
                        raise undone.refused
                if undone.left:
                    raise SteeringError(
                        f"could not be undone: {'; '.join(undone.left)}; the journal keeps it, and"
                        " `cedos restore` tries it again"
                    )
                try:
                    self._journal.remove()
                except CedosError as error:  # its disk takes nothing any more
                    _log.warning(
                        "the journal stays, though all is undone: the next start finds nothing to do",
                        why=str(error),
                    )
                _log.info(f"undone: {undone.in_short}. Rules and budgets of yours are kept")
                _log.debug("undone", steps=undone.done)
        finally:
            self._filter.close()
            self._kernel.close()
            if self._journal is not None:
                self._journal.close()

    # -- what it shows ------------------------------------------------------------------------

    @property
    def connections(self) -> Mapping[int, MptcpConnection]:
        """Return the living MPTCP connections by token; replaced, never changed."""
        return self._connections.connections

    @property
    def host_defaults(self) -> Mapping[int, HostDefault]:
        """Return by IP version the host's own default, where that is left alone."""
        return self._routing.foreign.defaults

    @property
    def problems(self) -> tuple[str, ...]:
        """Return what this host cannot do, and who else interferes, in words."""
        return tuple(self._problems.values())

    def events(self) -> AsyncIterator[ConnectionEvent]:
        """Return the connections that live now as opened, then what happens; ends with `close`."""
        return self._connections.events()

    # -- what it does -------------------------------------------------------------------------

    async def networks_changed(self, networks: Sequence[Network]) -> None:
        """Follow the networks with all that is steered, and with the walls of barred networks."""
        self.follow(networks)
        await self.barring.networks_changed()

    def follow(self, networks: Sequence[Network]) -> None:
        """Bring tables, rules and subflows in line with the networks; also those that are down.

        Raises:
            SteeringError: the kernel refuses.
        """
        self._must_be_open()
        self._networks.clear()
        self._networks.update({network.name: network for network in networks})
        self._at_interfaces(lambda: self._rule_wall.follow(networks))
        with refusals("follow the networks"):
            self._routing.networks_changed(networks)
            self._notes()
            self._connections.networks_changed(self.barring.usable())

    def set_default(
        self, network_name: str | None, others: Mapping[int, str] | None = None
    ) -> None:
        """Lead new connections to a network; None: where the host would lead them itself.

        `others`: an IP version that it lacks -> the name of the network for that version's connections.

        Living connections stay where they are. Where a VPN has the default, it keeps it.
        SteeringError: no such network, one that is down, or the kernel refuses.
        """
        self._must_be_open()
        if network_name is not None:
            self._on_network_up(network_name)
        with refusals(f"make {network_name} the default"):
            self._routing.set_default(network_name, others)

    def set_destination(
        self,
        prefix: str,
        port: int | None,
        network_name: str | None,
        *,
        protocol: str | None = None,
    ) -> None:
        """Lead new connections to some destination to a network; None: like all others again.

        `NOWHERE` in place of a network: they are refused. `prefix` is an address or `address/length`,
        `protocol` `tcp` or `udp`; None: all. SteeringError for what is none of that, for a network
        that is not there, and where the kernel refuses.
        """
        self._must_be_open()
        try:
            destination = Destination(ip_network(prefix, strict=False), port, protocol)
        except ValueError as error:
            raise SteeringError(f"{error}; right would be 192.0.2.0/24 or 2001:db8::/32") from None
        if protocol not in (None, *PROTOCOLS) or (port is not None and not 0 < port < 65536):
            raise SteeringError(f"port {port}, protocol {protocol}: no such destination")
        if network_name not in (None, NOWHERE) and network_name not in self._networks:
            raise SteeringError(f"there is no network {network_name}")
        with refusals(f"lead {prefix} to {network_name}"):
            self._routing.set_destination(destination, network_name)

    def set_destinations(self, wanted: Mapping[tuple[str, int | None], str | None]) -> None:
        """Lead new connections to several destinations, as `set_destination` does."""
        for (prefix, port), name in wanted.items():
            self.set_destination(prefix, port, name)

    def set_ruled(self, wanted: Mapping[tuple[str, int | None], str | None]) -> None:
        """Lead new connections to places (prefix and port) that a user's rules are about.

        Neither hints nor what is known of a destination override it, and what the network cannot carry
        is refused.
        SteeringError: one of the networks is not there, or the kernel refuses; nothing is changed.
        """
        self._must_be_open()
        for name in set(wanted.values()) - {None, NOWHERE}:
            if name not in self._networks:
                raise SteeringError(f"there is no network {name}")
        places = {
            Destination(ip_network(prefix, strict=False), port, ruled=True): name
            for (prefix, port), name in wanted.items()
        }
        with refusals(f"lead {len(places)} destinations"):
            self._routing.set_destinations(places)

    def forbid(self, places: Mapping[tuple[str, int | None], Sequence[str] | None]) -> None:
        """Let programs begin nothing at places over networks (names), whatever leads them there.

        None: forget a place. What the kernel refuses is a problem, and tried again.
        """
        self._must_be_open()
        self._at_interfaces(lambda: self._rule_wall.forbid(places))

    def _at_interfaces(self, act: Callable[[], object]) -> None:
        try:
            act()
        except (OSError, HostError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._problem(
                "rules", f"your rules hold by routes alone, which some sockets pass: {why}"
            )
        else:
            self._problem("rules", None)

    def set_mark(self, mark: int, network_name: str | None) -> None:
        """Lead new connections whose socket carries a mark to a network; None: like all others again.

        SteeringError: no such mark (SO_MARK, not 0) or network, or the kernel refuses.
        """
        self._must_be_open()
        if not 0 < mark < 1 << 32:
            raise SteeringError(f"{mark} is no mark; right would be 1 to 4294967295")
        if network_name is not None and network_name not in self._networks:
            raise SteeringError(f"there is no network {network_name}")
        with refusals(f"lead mark {mark:#x} to {network_name}"):
            self._routing.set_mark(mark, network_name)

    async def hold_answers(self, on: bool) -> None:
        """Let answers to look-ups wait to be read (`filter_rules`), or pass. SteeringError: refused."""
        self._must_be_open()
        with refusals("hold answers to look-ups"):
            await self._filter.hold_answers(on)

    def steer_connection(self, token: int, strategy: Strategy) -> None:
        """Move a living MPTCP connection: `single(n)` or `mptcp(primary)`.

        It returns when the kernel has the commands; the first data follows on the new path.
        SteeringError: no such connection, one that is left alone, or another strategy.
        """
        self._must_be_open()
        self._connections.steer(token, strategy)
        with refusals("bound the receive buffers"):
            self._window.used_by(self.connections.values())

    def when_left_alone(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when the host takes a default for itself, or gives it back."""
        self._left_alone = changed

    def keep_to(self, may_use: Callable[[FlowKey, str], bool]) -> None:
        """Open new subflows of MPTCP connections only over networks that each may use."""
        self._connections.keep_to(may_use)

    def without_spares(self, network_names: Collection[str]) -> None:
        """Remove spare subflows over these networks: they would wake a radio."""
        self._must_be_open()
        self._connections.without_spares(network_names)

    def release(self, token: int, network_name: str) -> None:
        """Give up a living MPTCP connection's subflows over a network, until it can be joined again.

        What is under way there is sent again over the others at once. SteeringError as for a move.
        """
        self._must_be_open()
        self._connections.release(token, network_name)

    def close_silent(self, key: FlowKey) -> bool:
        """Close a plain TCP connection on which nothing comes; return whether it was closed.

        SteeringError where the kernel refuses.
        """
        self._must_be_open()
        with refusals("close a stuck connection"):
            return self._kernel.close_silent(key)

    def paths_measured(self, paths: Mapping[str, tuple[float, float]]) -> None:
        """Keep the queues at the other end short, so that moves are quick.

        Does nothing while a network that is up is not measured, or is a wire. `paths` are, of each
        network, the highest rate seen lately in bit/s, and in s the longest of its living flows' least
        round-trip times. SteeringError: the sysctl or the journal cannot be written.
        """
        self._must_be_open()
        if self._steers_mptcp:
            with refusals("bound the receive buffers"):
                self._window.on_measured(self._networks.values(), paths, time.monotonic())
                self._window.used_by(self.connections.values())

    # -- within -------------------------------------------------------------------------------

    def _must_be_open(self) -> None:
        if self._closed:
            raise SteeringError("steering has been closed")

    def _on_network_up(self, name: str) -> None:
        network = self._networks.get(name)
        if network is None or not network.up:
            raise SteeringError(f"the network {name} is not {'up' if network else 'there'}")

    def _carry_out_plan(self, what: str) -> None:
        self.planned.append(what)
        _log.info("would", do=what)

    def _append(self, record: Record) -> None:
        journal = None if self._closed else self._journal
        # (What comes and goes, as a wall, would fill it with the same.)
        if journal is not None and not (
            isinstance(record, SysctlRecord) and record in journal.appended
        ):
            journal.append(record)

    def _problem(self, topic: str, text: str | None) -> None:
        if text is None:
            self._problems.pop(topic, None)
        elif self._problems.get(topic) != text:
            self._problems[topic] = text
            _log.warning("steering", problem=text)

    def _notes(self) -> None:
        notes = self._routing.foreign.notes
        if self.host_defaults != self._told_defaults:
            self._told_defaults = self.host_defaults
            self._left_alone()
        self._problem("foreign", ". ".join(notes) or None)

    def _routing_changed(self) -> None:
        if self._settling is None and not self._closed:
            loop = asyncio.get_running_loop()
            pause_s = max(_SETTLE_S, self._reads.pause_s)
            self._settling = loop.call_later(pause_s, self._settle)

    def _settle(self) -> None:
        self._settling = None
        if self._closed or not self._networks:
            return
        self._unsettled = True
        try:
            with self._reads.measure():
                self._routing.reconcile()
            self._notes()
        except OSError as error:
            why = error.strerror or str(error)
            self._problem("routing", f"rules and routes cannot be put back: {why}")
        else:
            self._unsettled = False
            self._problem("routing", None)

    def _look(self) -> None:
        """Try again once a second what failed; put back what others took out at interfaces."""
        self._at_interfaces(self._rule_wall.repair)
        if self._unsettled and self._settling is None:
            self._settle()
        elif self._routing.stale:
            self._routing_changed()

    async def _end_repairs(self) -> None:
        repairing, self._repairing = self._repairing, None
        if repairing is not None:
            repairing.cancel()
            with suppress(asyncio.CancelledError):
                await repairing
