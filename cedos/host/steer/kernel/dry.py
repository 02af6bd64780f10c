"""A kernel that is only read: what steering would do is told and remembered, nothing is done."""

from collections.abc import Callable, Sequence

from cedos.host.steer.kernel.interface import FilterPlan, SteeringKernel
from cedos.host.steer.kernel.rescue import DryRescue, flow_text
from cedos.kernel.mptcp import MptcpEvent, PathManagerCommand
from cedos.kernel.policy_routing import PROTOCOL, Route, Rule, SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.kernel.sock_diag import TcpSocket
from cedos.model import Address, FlowKey


class DryKernel:
    """A `SteeringKernel`: the real one with changes that are only told of, each in words by `tell`."""

    def __init__(self, real: SteeringKernel, tell: Callable[[str], None]) -> None:
        self._real = real
        self._tell = tell
        self.rescue = DryRescue(real.rescue, tell)
        self._rules: dict[Rule, None] = {}
        self._routes: dict[Route, None] = {}
        self._sysctls: dict[str, str] = {}
        self._gone_rules: set[Rule] = set()
        self._gone_routes: set[tuple[int, object]] = set()
        self._filtered: bool | None = None

    def rules(self) -> list[SeenRule]:
        added = [SeenRule(r.version, r.preference, r.table, False, True, r) for r in self._rules]
        real = [seen for seen in self._real.rules() if seen.rule not in self._gone_rules]
        return [*real, *added]

    def add_rules(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            self._tell(f"add {rule}")
            self._rules[rule] = None

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        for rule in rules:
            self._tell(f"delete {rule}")
            self._rules.pop(rule, None)
            self._gone_rules.add(rule)

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        added = [
            SeenRoute(
                r.destination.version,
                r.table,
                r.destination,
                r.index,
                0,
                PROTOCOL,
                r.gateway,
                r.metrics,
                r.source,
            )
            for r in self._routes
        ]
        real = [
            seen
            for seen in self._real.routes(protocol)
            if (seen.table, seen.destination) not in self._gone_routes
        ]
        return [*real, *added]

    def specific_routes(self) -> Sequence[SeenRoute]:
        return self._real.specific_routes()

    def add_routes(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self._tell(f"add {route}")
            self._routes[route] = None

    def delete_routes(self, routes: Sequence[Route]) -> None:
        for route in routes:
            self._tell(f"delete {route}")
            self._routes.pop(route, None)
            self._gone_routes.add((route.table, route.destination))

    def links(self) -> Sequence[Link]:
        return self._real.links()

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        return self._real.lookup(remote, local)

    def read_sysctl(self, key: str) -> str | None:
        return self._sysctls.get(key) or self._real.read_sysctl(key)

    def write_sysctl(self, key: str, value: str) -> None:
        self._tell(f"set sysctl {key} = {value}")
        self._sysctls[key] = value

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        for command in commands:
            self._tell(str(command))
        return [None] * len(commands)

    def ours_to_steer(self, token: int) -> bool:
        return True

    def sockets(self) -> Sequence[TcpSocket]:
        return self._real.sockets()

    def close_silent(self, key: FlowKey) -> bool:
        self._tell(f"close the stuck connection {flow_text(key)}")
        return True

    def track_flows(self) -> None:
        self._tell("packet filter: track connections")
        self._filtered = True

    def bar(self, interfaces: Sequence[str]) -> None:
        text = f"nothing of a program's over {', '.join(interfaces)}"
        self._tell(f"packet filter: {text if interfaces else 'everything over all interfaces'}")
        self._filtered = True

    def hold_answers(self, on: bool) -> None:
        self._tell(f"packet filter: answers to look-ups {'wait to be read' if on else 'pass'}")
        self._filtered = True

    def repair_filter(self, plan: FilterPlan) -> bool:
        return False

    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        return False

    def forbid(self, index: int, changes: Sequence[tuple[bytes, bool | None]]) -> None:
        self._tell(f"interface {index}: rules about {len(changes)} places")

    def put_back_rules(self) -> bool:
        return False

    def remove_wall(self, but: Sequence[str]) -> bool:
        return False

    def watch_filter(self, on_change: Callable[[], None]) -> None:
        pass

    def filter_is_told(self) -> bool:
        return True

    def has_filter(self) -> bool:
        return self._real.has_filter() if self._filtered is None else self._filtered

    def remove_filter(self) -> bool:
        there, self._filtered = self.has_filter(), False
        return there

    def watch(
        self,
        on_mptcp_event: Callable[[MptcpEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._real.watch(on_mptcp_event, on_routing_change, on_loss)

    def close(self) -> None:
        self._real.close()
