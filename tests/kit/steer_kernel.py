"""A kernel in memory: for tests of steering without privileges.

Its routing looks a packet's way up as Linux does: rule by rule, the longest prefix in each table.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_network

from cedos.errors import HostError
from cedos.host.steer.kernel.interface import FilterPlan
from cedos.host.steer.kernel.rescue import flow_text
from cedos.kernel.mptcp import (
    CreateSubflow,
    DestroySubflow,
    MptcpEvent,
    PathManagerCommand,
    RemoveAddress,
)
from cedos.kernel.policy_routing import (
    MAIN_TABLE,
    PROTOCOL,
    RTN_THROW,
    Route,
    Rule,
    SeenRoute,
    SeenRule,
)
from cedos.kernel.rtnetlink import Link
from cedos.kernel.sock_diag import ConnectingSocket, TcpSocket
from cedos.model import Address, FlowKey

LOCAL_TABLE = 255


class MemoryRescue:
    """A `RescueKernel`. Everything public is there to be set up and looked at."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.waiting: dict[FlowKey, ConnectingSocket] = {}
        self.adopted: set[FlowKey] = set()
        self.there = False
        self._changed = changed

    def prepare(self) -> None:
        self._changed("rescue: prepare")
        self.there = True

    def stands(self) -> bool:
        return self.there

    def is_prepared(self) -> bool:
        return self.there

    def remove(self) -> bool:
        there, self.there = self.there, False
        self.adopted.clear()
        return there

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        return self.waiting.get(key)

    def adopt(self, key: FlowKey) -> None:
        self._changed(f"rescue: adopt {flow_text(key)}")
        self.adopted.add(key)

    def release(self, key: FlowKey) -> None:
        self._changed(f"rescue: release {flow_text(key)}")
        self.adopted.discard(key)

    def forget(self, key: FlowKey) -> None:
        self._changed(f"rescue: forget {flow_text(key)}")

    def repeat_early(self) -> None:
        raise PermissionError(errno.EPERM, "no BPF in memory")

    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        pass

    def repeat_as_usual(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryKernel:
    """A `SteeringKernel`. Everything public is there to be set up and looked at."""

    def __init__(self) -> None:
        # Rules of other programs; at first those of every host.
        self.others = [
            SeenRule(version, preference, table, True, False, None)
            for version in (4, 6)
            for preference, table in ((0, LOCAL_TABLE), (32766, MAIN_TABLE))
        ]
        self.own: list[Rule] = []  # our rules, in the order in which they are asked
        self.all_routes: list[SeenRoute] = []
        self.all_links: list[Link] = []
        self.all_sockets: list[TcpSocket] = []
        self.sysctls = {
            "net.mptcp.enabled": "1",
            "net.mptcp.path_manager": "kernel",
            "net.mptcp.close_timeout": "60",
            "net.ipv4.tcp_rmem": "4096\t131072\t6291456",
            "net.ipv4.tcp_rto_max_ms": "120000",
            "net.ipv4.tcp_slow_start_after_idle": "1",
            "net.ipv4.tcp_retries2": "15",
            "net.ipv4.tcp_syn_retries": "6",
            "net.ipv4.tcp_orphan_retries": "0",
            "net.netfilter.nf_conntrack_acct": "0",
            "net.ipv6.conf.wlan0.use_oif_addrs_only": "0",
            "net.ipv6.conf.lte0.use_oif_addrs_only": "0",
        }
        self.kernels_own: set[int] = set()
        self.steered: list[PathManagerCommand] = []
        self.silent: set[FlowKey] = set()
        self.filter = False
        self.barred: tuple[str, ...] = ()
        self.walled: set[str] = set()
        self.no_wall = False
        self.forbidden: dict[int, dict[bytes, bool]] = {}  # of users' rules, by interface
        self.log: list[str] = []  # all changes in words, in their order
        self.refuses = 0  # the error number with which every further change is refused; 0: none is
        self.rescue = MemoryRescue(self._changed)
        self.tell_mptcp: Callable[[MptcpEvent], None] = lambda _: None
        self.tell_routing: Callable[[], None] = lambda: None
        self.tell_loss: Callable[[], None] = lambda: None
        self.tell_filter: Callable[[], None] = lambda: None
        self.tells_filter = True

    def _changed(self, what: str) -> None:
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.log.append(what)

    def rules(self) -> list[SeenRule]:
        own = [
            SeenRule(rule.version, rule.preference, rule.table, _general(rule), True, rule)
            for rule in self.own
        ]
        return sorted([*self.others, *own], key=lambda seen: seen.preference)

    def add_rules(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if rule not in self.own:
                self._changed(f"add {rule}")
                self.own.append(rule)

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if rule in self.own:
                self._changed(f"delete {rule}")
                self.own.remove(rule)

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        return [route for route in self.all_routes if protocol in (0, route.protocol)]

    def specific_routes(self) -> list[SeenRoute]:
        main = [route for route in self.all_routes if route.table == MAIN_TABLE]
        return [route for route in main if route.destination.prefixlen]

    def add_routes(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self._changed(f"add {route}")
            place = (route.table, route.destination)
            self.all_routes = [r for r in self.all_routes if (r.table, r.destination) != place]
            self.all_routes.append(
                SeenRoute(
                    route.destination.version,
                    route.table,
                    route.destination,
                    route.index,
                    0,
                    PROTOCOL,
                    route.gateway,
                    route.metrics,
                    route.source,
                    type=route.type,
                )
            )

    def delete_routes(self, routes: Sequence[Route]) -> None:
        for route in routes:
            place = (route.table, route.destination, route.index, PROTOCOL)
            there = [
                r for r in self.all_routes if (r.table, r.destination, r.index, r.protocol) == place
            ]
            if there:
                self._changed(f"delete {route}")
                self.all_routes.remove(there[0])

    def links(self) -> list[Link]:
        return self.all_links

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        return self.way(remote, local)

    def way(
        self,
        remote: Address,
        local: Address | None = None,
        *,
        interface: str | None = None,
        port: int | None = None,
        source_port: int | None = None,
        protocol: str | None = None,
        mark: int | None = None,
        forwarded: bool = False,
    ) -> SeenRoute | None:
        """The route that a packet with these properties takes."""
        skips_to = 0
        for seen in self.rules():
            rule = seen.rule
            if seen.preference < skips_to:
                continue
            if seen.version != remote.version or (rule is None and not seen.general):
                continue
            if rule is not None and (
                (rule.source and not (local in rule.source if local else rule.finds_source))
                or (rule.destination and remote not in rule.destination)
                or (rule.interface and rule.interface != interface)
                or (rule.local and forwarded)
                or rule.arrival  # of what comes in, none is asked for
                or (rule.port is not None and rule.port != port)
                or (rule.source_port is not None and rule.source_port != source_port)
                or (rule.protocol is not None and rule.protocol != protocol)
                or (rule.mark is not None and rule.mark != mark)
            ):
                continue
            if rule is not None and rule.goto is not None:
                assert any(each.preference == rule.goto for each in self.own)
                skips_to = rule.goto
                continue
            if seen.table is None:
                return None
            suppress = -1 if rule is None else rule.suppress_prefixlength
            found = self._longest(seen.table, remote, interface)
            if found and found.type == RTN_THROW:
                continue
            if found and found.destination.prefixlen > (-1 if suppress is None else suppress):
                return found
        return None

    def _longest(self, table: int, remote: Address, interface: str | None) -> SeenRoute | None:
        names = {link.index: link.name for link in self.all_links}
        matching = [
            route
            for route in self.all_routes
            if route.table == table
            and remote in route.destination
            and interface in (None, names.get(route.index))
        ]
        best = sorted(matching, key=lambda r: (-r.destination.prefixlen, r.metric))
        return best[0] if best else None

    def read_sysctl(self, key: str) -> str | None:
        return self.sysctls.get(key)

    def write_sysctl(self, key: str, value: str) -> None:
        if key not in self.sysctls:
            raise OSError(errno.ENOENT, key)
        self._changed(f"sysctl {key} = {value}")
        self.sysctls[key] = value

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        for command in commands:
            self.log.append(str(command))
            self.steered.append(command)
        return [None] * len(commands)

    def created(self) -> list[CreateSubflow]:
        """The joins asked for so far."""
        return [command for command in self.steered if isinstance(command, CreateSubflow)]

    def destroyed(self) -> list[DestroySubflow]:
        """The subflows ended so far."""
        return [command for command in self.steered if isinstance(command, DestroySubflow)]

    def removed(self) -> list[RemoveAddress]:
        """The addresses given up so far."""
        return [command for command in self.steered if isinstance(command, RemoveAddress)]

    def ours_to_steer(self, token: int) -> bool:
        return token not in self.kernels_own

    def sockets(self) -> list[TcpSocket]:
        return self.all_sockets

    def close_silent(self, key: FlowKey) -> bool:
        self._changed(f"close {flow_text(key)}")
        return key in self.silent

    def track_flows(self) -> None:
        self._changed("packet filter: track connections")
        self.filter = True

    def bar(self, interfaces: Sequence[str]) -> None:
        self._changed(f"packet filter: bar {', '.join(interfaces) or 'nothing'}")
        self.barred = tuple(interfaces)
        self.filter = True

    def hold_answers(self, on: bool) -> None:
        self._changed(f"packet filter: {'hold answers' if on else 'hold no answers'}")
        self.filter = True

    def repair_filter(self, plan: FilterPlan) -> bool:
        there = self.rescue.there or not plan.rescue
        if there and self.filter and self.barred == (plan.barred or ()):
            return False
        if plan.barred is not None:
            self.bar(plan.barred)
        if plan.track:
            self.track_flows()
        if plan.rescue:
            self.rescue.prepare()
        return True

    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        if self.no_wall:
            raise HostError("this kernel has no filters at interfaces")
        missing = set(interfaces) - self.walled
        self.walled |= missing
        return bool(missing)

    def forbid(self, index: int, changes: Sequence[tuple[bytes, bool | None]]) -> None:
        if self.no_wall:
            raise HostError("this kernel has no filters at interfaces")
        at = self.forbidden.setdefault(index, {})
        for key, forbidden in changes:
            if forbidden is None:
                at.pop(key, None)
            else:
                at[key] = forbidden

    def put_back_rules(self) -> bool:
        return False

    def remove_wall(self, but: Sequence[str]) -> bool:
        there = self.walled - {*but}
        self.walled -= there
        return bool(there)

    def watch_filter(self, on_change: Callable[[], None]) -> None:
        self.tell_filter = on_change

    def filter_is_told(self) -> bool:
        return self.tells_filter

    def has_filter(self) -> bool:
        return self.filter

    def remove_filter(self) -> bool:
        there, self.filter, self.barred = self.filter, False, ()
        return there

    def watch(
        self,
        on_mptcp_event: Callable[[MptcpEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        self.tell_mptcp, self.tell_routing, self.tell_loss = (
            on_mptcp_event,
            on_routing_change,
            on_loss,
        )

    def close(self) -> None:
        pass

    # -- for tests ----------------------------------------------------------------------------

    def add_link(self, index: int, name: str, kind: str = "", type_: int = 1) -> None:
        self.all_links.append(Link(index, name, kind, type_, 0x10041))

    def add_main_route(
        self, prefix: str, index: int, gateway: Address | None = None, metric: int = 100
    ) -> None:
        """A route of the host's own main table."""
        net = ip_network(prefix)
        self.all_routes.append(
            SeenRoute(net.version, MAIN_TABLE, net, index, metric, 3, gateway, b"")
        )


def _general(rule: Rule) -> bool:
    narrow = (rule.source, rule.destination, rule.interface, rule.port, rule.protocol, rule.mark)
    return not any((*narrow, rule.source_port))
