"""The real kernel. Its namespace is the one of the thread that makes it, for life.

Follow the kernel's events of nf_tables, which iptables runs on (linux/netfilter/nf_tables.h).

Only what is taken out is of interest: every loss of a part of ours is an event.
"""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from cedos.errors import HostError
from cedos.host.steer.journal_records import valid
from cedos.host.steer.kernel import egress_wall, filter_rules, iptables
from cedos.host.steer.kernel.egress_wall import EgressWall
from cedos.host.steer.kernel.interface import FilterPlan
from cedos.host.steer.kernel.linux_rescue import LinuxRescue
from cedos.host.steer.kernel.rescue import RescueKernel
from cedos.host.steer.kernel.routing_requests import RoutingTables
from cedos.kernel import (
    generic_netlink,
    mptcp,
    policy_routing,
    rtnetlink,
    sock_diag,
    sysctl,
)
from cedos.kernel.mptcp import DestroySubflow, MptcpEvent, PathManagerCommand
from cedos.kernel.netlink import (
    NETLINK_GENERIC,
    NETLINK_NETFILTER,
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NLM_F_ACK,
    Keeps,
    NetlinkListener,
    NetlinkMessage,
    Requester,
    attributes,
    messages,
    text,
)
from cedos.kernel.policy_routing import PROTOCOL, SeenRoute
from cedos.kernel.sock_diag import TcpSocket
from cedos.model import FlowKey

_ROUTING_GROUPS: Final = (
    rtnetlink.GROUP_LINK,
    rtnetlink.GROUP_IPV4_ROUTE,
    rtnetlink.GROUP_IPV4_RULE,
    rtnetlink.GROUP_IPV6_ROUTE,
    rtnetlink.GROUP_IPV6_RULE,
)
_TYPES: Final = (policy_routing.RTN_UNICAST, *policy_routing.REFUSING_TYPES)
_LOOPBACK: Final = IPv4Address("127.0.0.1")
_NO_SUBFLOW: Final = FlowKey(_LOOPBACK, 1, _LOOPBACK, 1)
# Each new connection makes three events within some milliseconds; they are read together.
_EVENTS_TOGETHER_S: Final = 0.02
_SILENT_S: Final = 1.0
# NFNLGRP_NFTABLES of NETLINK_NETFILTER.
GROUP: Final = 7
_SUBSYSTEM: Final = 10 << 8
_DELETE_TABLE, _DELETE_CHAIN, _DELETE_RULE = 2, 5, 8
_HEAD_BYTES: Final = 4
_TABLE_NAME, _CHAIN_NAME, _RULE_CHAIN = 1, 3, 2
_TABLES: Final = ("filter", "mangle", "security", "raw", "nat")
_HOOKS: Final = ("INPUT", "FORWARD", "OUTPUT", "PREROUTING", "POSTROUTING")
_OURS: Final = "CEDOS_"


def takes_from_ours(message: NetlinkMessage) -> bool:
    """Return whether a chain or rule of ours, or a jump to one, may have gone."""
    kind = message.type - _SUBSYSTEM
    if kind not in (_DELETE_TABLE, _DELETE_CHAIN, _DELETE_RULE):
        return False
    found = attributes(message.payload, _HEAD_BYTES)
    if text(found.get(_TABLE_NAME)) not in _TABLES:
        return False
    if kind == _DELETE_TABLE:
        return True
    if kind == _DELETE_CHAIN:
        return text(found.get(_CHAIN_NAME)).startswith(_OURS)
    chain = text(found.get(_RULE_CHAIN))
    return chain in _HOOKS or chain.startswith(_OURS)


class LinuxKernel(RoutingTables):
    """A `SteeringKernel`.

    `port`: the netlink port whose requests change the host's routing on our behalf; None: its own.
    `rescue`: the rescue of another process; None: its own. HostError: the kernel has no rtnetlink.
    """

    def __init__(self, port: int | None = None, rescue: RescueKernel | None = None) -> None:
        super().__init__()
        self.port: int = port if port is not None else self._routing.port
        self.rescue: RescueKernel = rescue or LinuxRescue()
        self._wall = EgressWall()
        self._tracking = iptables.TRACKING
        self._holding: Sequence[iptables.Chain] = ()
        self._heeds_specific = False
        self._listeners: list[NetlinkListener] = []
        self._pm: tuple[Requester, generic_netlink.Family] | None = None
        self._diag: Requester | None = None
        # /proc/sys/net shows the namespace of the opening thread; ours is that of this thread.
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    # -- routing ------------------------------------------------------------------------------

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        return [
            route
            for version in (4, 6)
            for route in self._routes(
                policy_routing.routes_request(version, protocol=protocol),
                policy_routing.DefaultRoutesFilter(),
            )
            if protocol in (0, route.protocol)
            and (route.index or not route.destination.prefixlen or route.protocol == PROTOCOL)
        ]

    def specific_routes(self) -> list[SeenRoute]:
        self._heeds_specific = True
        return [
            route
            for version in (4, 6)
            for route in self._routes(
                policy_routing.routes_request(version, table=policy_routing.MAIN_TABLE),
                policy_routing.SpecificRoutesFilter(),
            )
        ]

    def _routes(self, request: bytes, keeps: Keeps) -> Iterator[SeenRoute]:
        objects = policy_routing.parse_nexthops(
            self._dump(policy_routing.RTM_GETNEXTHOP, policy_routing.nexthops_request())
        )
        for message in self._dump(rtnetlink.RTM_GETROUTE, request, keeps, policy_routing.ROUTES_S):
            if (route := policy_routing.parse_route(message, _TYPES, objects)) is not None:
                yield route

    # -- sysctls ------------------------------------------------------------------------------

    def read_sysctl(self, key: str) -> str | None:
        return sysctl.read(key)

    def write_sysctl(self, key: str, value: str) -> None:
        self._must_be_here()
        if not valid(key, value):
            raise OSError(errno.EINVAL, "is no sysctl that cedos changes, or no value of it", key)
        sysctl.write(key, value)

    def _must_be_here(self) -> None:
        here = Path("/proc/thread-self/ns/net").stat().st_ino
        if os.fstat(self._namespace).st_ino != here:
            raise OSError(errno.EXDEV, "another network namespace than steering's own")

    # -- MPTCP --------------------------------------------------------------------------------

    def _path_manager(self) -> tuple[Requester, generic_netlink.Family]:
        if self._pm is None:
            requester = Requester(NETLINK_GENERIC)
            try:
                (answer,) = requester.ask(
                    generic_netlink.GENL_ID_CTRL,
                    generic_netlink.family_request(mptcp.FAMILY_NAME),
                )
                family = generic_netlink.parse_family(answer)
                if family is None:
                    raise FileNotFoundError(errno.ENOENT, mptcp.FAMILY_NAME)
            except OSError as error:
                requester.close()
                raise HostError(
                    "this kernel has no MPTCP path manager (CONFIG_MPTCP; Linux 5.19 or newer)"
                ) from error
            self._pm = (requester, family)
        return self._pm

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        requester, family = self._path_manager()
        results: list[OSError | None] = []
        for command in commands:
            try:
                requester.ask(family.number, mptcp.command_request(command))
                results.append(None)
            except OSError as error:
                results.append(error)
        return results

    def ours_to_steer(self, token: int) -> bool:
        # All kernels look for a subflow only where a connection has this path manager. (Its addresses
        # would tell, too, but before Linux 6.9 they are those of the kernel's own.)
        (error,) = self.steer([DestroySubflow(token, _NO_SUBFLOW)])
        if isinstance(error, TimeoutError):
            raise error
        return error is not None and error.errno == errno.ESRCH

    def close_silent(self, key: FlowKey) -> bool:
        diag = self._sock_diag()
        try:
            (answer,) = diag.ask(sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.connecting_request(key))
            facts = sock_diag.parse(answer, time.monotonic())
            # The caller may be mistaken: a connection that is answered is never closed.
            if (
                facts is None
                or facts.key != key
                or facts.state != sock_diag.ESTABLISHED
                or facts.token is not None
                or key.local.is_loopback
                or min(facts.idle_down_s, facts.idle_ack_s) < _SILENT_S
            ):
                return False
            request = sock_diag.destroy_request(answer)
            diag.ask(sock_diag.SOCK_DESTROY, request, NLM_F_ACK)
        except FileNotFoundError:  # it has ended
            return False
        return True

    def _sock_diag(self) -> Requester:
        if self._diag is None:
            self._diag = Requester(NETLINK_SOCK_DIAG)
        return self._diag

    def sockets(self) -> list[TcpSocket]:
        request, keeps = sock_diag.tcp_sockets_request(), sock_diag.some_of_each_user()
        answers = self._sock_diag().dump(sock_diag.TCP_SOCKETS, request, keeps)
        return list(filter(None, map(sock_diag.parse_tcp_socket, answers)))

    # -- the rest -----------------------------------------------------------------------------

    def track_flows(self) -> None:
        self._must_be_here()
        self._tracking = iptables.track()

    def bar(self, interfaces: Sequence[str]) -> None:
        self._must_be_here()
        filter_rules.bar(interfaces)

    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        return self._wall.put_up(interfaces)

    def forbid(self, index: int, changes: Sequence[tuple[bytes, bool | None]]) -> None:
        self._wall.forbid(index, dict(changes))

    def put_back_rules(self) -> bool:
        return self._wall.put_back_rules()

    def remove_wall(self, but: Sequence[str]) -> bool:
        return self._wall.remove(but)

    def hold_answers(self, on: bool) -> None:
        self._must_be_here()
        self._holding = filter_rules.hold_answers(on)

    def repair_filter(self, plan: FilterPlan) -> bool:
        self._must_be_here()
        # The wall first: it is the one that is in a hurry.
        chains = filter_rules.barring_chains(plan.barred) if plan.barred is not None else []
        chains += [self._tracking] if plan.track else []
        chains += self._holding if plan.holds is not None else []
        repaired = iptables.put_back(chains)
        if plan.rescue and not self.rescue.stands():
            self.rescue.prepare()
            repaired = True
        return repaired

    def watch_filter(self, on_change: Callable[[], None]) -> None:
        def on_told(data: bytes) -> None:
            if any(map(takes_from_ours, messages(data))):
                on_change()

        def on_controlled(data: bytes) -> None:
            if any(map(egress_wall.takes_out, messages(data))):
                on_change()

        group = egress_wall.GROUP_TRAFFIC_CONTROL
        self._listeners += [
            NetlinkListener(NETLINK_ROUTE, [group], on_controlled, on_change),
            NetlinkListener(NETLINK_NETFILTER, [GROUP], on_told, on_change),
        ]

    def filter_is_told(self) -> bool:
        return iptables.on_nf_tables()

    def has_filter(self) -> bool:
        return iptables.present()

    def remove_filter(self) -> bool:
        self._must_be_here()
        return iptables.remove()

    def watch(
        self,
        on_mptcp_event: Callable[[MptcpEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        """Watch as `SteeringKernel` says; HostError without MPTCP's events (routing is still watched)."""

        def routing(data: bytes) -> None:
            for message in messages(data):
                # What we changed ourselves is no news.
                if message.port == self.port:
                    continue
                if changes_routing(message) or (
                    self._heeds_specific and policy_routing.changes_specific(message)
                ):
                    on_routing_change()

        def paths(data: bytes) -> None:
            for event in mptcp.mptcp_events(data):
                on_mptcp_event(event)

        self._listeners.append(
            NetlinkListener(NETLINK_ROUTE, _ROUTING_GROUPS, routing, on_routing_change)
        )
        _, family = self._path_manager()
        groups = [family.groups[mptcp.EVENT_GROUP]]
        self._listeners.append(
            NetlinkListener(NETLINK_GENERIC, groups, paths, on_loss, interval_s=_EVENTS_TOGETHER_S)
        )

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._routing.close()
        self.rescue.close()
        self._wall.close()
        if self._diag is not None:
            self._diag.close()
            self._diag = None
        if self._pm is not None:
            self._pm[0].close()
            self._pm = None
        if self._namespace >= 0:
            os.close(self._namespace)
            self._namespace = -1


def changes_routing(message: NetlinkMessage) -> bool:
    """Return whether an event concerns us: a rule, one of our routes, any default route, a link."""
    kind = message.type
    if kind == rtnetlink.RTM_NEWLINK:
        # IPv4 routes go with their interface in silence.
        return rtnetlink.is_up(message)
    if kind in (rtnetlink.RTM_NEWROUTE, rtnetlink.RTM_DELROUTE):
        return policy_routing.is_default_or_ours(message)
    return kind in (rtnetlink.RTM_NEWRULE, rtnetlink.RTM_DELRULE, rtnetlink.RTM_DELLINK)
