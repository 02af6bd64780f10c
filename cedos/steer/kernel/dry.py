"""A kernel that is only looked at: what steering would do is said and remembered, nothing is done."""

from collections.abc import Callable, Sequence

from cedos.kernel.mptcp_netlink import Endpoint, PathCommand, PathEvent
from cedos.kernel.tcp_sockets import SeenSocket
from cedos.model import Address
from cedos.steer.kernel.interface import Kernel
from cedos.steer.kernel.rescue import DryRescue
from cedos.steer.kernel.rtnetlink import SeenLink, SeenRoute, SeenRule
from cedos.steer.routing.rules import PROTOCOL, Route, Rule


class DryKernel:
    """See `cedos.steer.kernel.interface.Kernel`: the real one with the changes that were only said.

    Args:
        real: asked, never changed.
        say: called with each change in words.
    """

    def __init__(self, real: Kernel, say: Callable[[str], None]) -> None:
        self._real = real
        self._say = say
        self.rescue = DryRescue(real.rescue, say)
        self._rules: dict[Rule, None] = {}
        self._routes: dict[Route, None] = {}
        self._sysctls: dict[str, str] = {}
        self._gone_rules: set[Rule] = set()
        self._gone_routes: set[tuple[int, object]] = set()
        self._filtered: bool | None = None

    def rules(self) -> list[SeenRule]:
        """See `Kernel`."""
        said = [SeenRule(r.version, r.preference, r.table, False, True, r) for r in self._rules]
        real = [seen for seen in self._real.rules() if seen.rule not in self._gone_rules]
        return [*real, *said]

    def add_rules(self, rules: Sequence[Rule]) -> None:
        """See `Kernel`."""
        for rule in rules:
            self._say(f"add {rule}")
            self._rules[rule] = None

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        """See `Kernel`."""
        for rule in rules:
            self._say(f"delete {rule}")
            self._rules.pop(rule, None)
            self._gone_rules.add(rule)

    def routes(self, protocol: int = 0) -> list[SeenRoute]:
        """See `Kernel`."""
        said = [
            SeenRoute(
                r.destination.version,
                r.table,
                r.destination,
                r.index,
                0,
                PROTOCOL,
                r.gateway,
                r.metrics,
            )
            for r in self._routes
        ]
        real = [
            seen
            for seen in self._real.routes(protocol)
            if (seen.table, seen.destination) not in self._gone_routes
        ]
        return [*real, *said]

    def add_routes(self, routes: Sequence[Route]) -> None:
        """See `Kernel`."""
        for route in routes:
            self._say(f"add {route}")
            self._routes[route] = None

    def delete_routes(self, routes: Sequence[Route]) -> None:
        """See `Kernel`."""
        for route in routes:
            self._say(f"delete {route}")
            self._routes.pop(route, None)
            self._gone_routes.add((route.table, route.destination))

    def links(self) -> Sequence[SeenLink]:
        """See `Kernel`."""
        return self._real.links()

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        """See `Kernel`; as the host does it now."""
        return self._real.lookup(remote, local)

    def read_sysctl(self, key: str) -> str | None:
        """See `Kernel`."""
        return self._sysctls.get(key) or self._real.read_sysctl(key)

    def write_sysctl(self, key: str, value: str) -> None:
        """See `Kernel`."""
        self._say(f"set sysctl {key} = {value}")
        self._sysctls[key] = value

    def steer(self, commands: Sequence[PathCommand]) -> list[OSError | None]:
        """See `Kernel`."""
        for command in commands:
            self._say(str(command))
        return [None] * len(commands)

    def endpoints(self) -> Sequence[Endpoint]:
        """See `Kernel`."""
        return self._real.endpoints()

    def ours_to_steer(self, token: int) -> bool:
        """See `Kernel`: they would be, had the path manager been set."""
        return True

    def sockets(self) -> Sequence[SeenSocket]:
        """See `Kernel`."""
        return self._real.sockets()

    def track_flows(self) -> None:
        """See `Kernel`."""
        self._say("packet filter: track connections")
        self._filtered = True

    def bar(self, interfaces: Sequence[str]) -> None:
        """See `Kernel`."""
        said = f"nothing of a program's over {', '.join(interfaces)}"
        self._say(f"packet filter: {said if interfaces else 'everything over all interfaces'}")
        self._filtered = True

    def has_filter(self) -> bool:
        """See `Kernel`."""
        return self._real.has_filter() if self._filtered is None else self._filtered

    def remove_filter(self) -> bool:
        """See `Kernel`."""
        there, self._filtered = self.has_filter(), False
        return there

    def watch(
        self,
        on_path_event: Callable[[PathEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        """See `Kernel`."""
        self._real.watch(on_path_event, on_routing_change, on_loss)

    def close(self) -> None:
        """See `Kernel`."""
        self._real.close()
