"""Brings the kernel's rules and routes to what is planned: make before break, and nothing foreign."""

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.routing.announced import parts_elsewhere, past_announced
from cedos.host.steer.routing.host_default import Foreign, examine
from cedos.host.steer.routing.plan import (
    REFUSING_TABLE,
    Destination,
    Preference,
    RoutingPlan,
    default_rules,
    is_ours,
    plan,
    rescue_rule,
    without_loopback,
)
from cedos.kernel.policy_routing import MAIN_TABLE, PROTOCOL, Route, Rule, SeenRoute, SeenRule
from cedos.model import FlowKey, Network

_DEFAULTS: Final = (Preference.DEFAULT, Preference.DEFAULT_ONLY)


class Routing:
    """The installed routing and the wanted one. All methods raise OSError if the kernel refuses."""

    def __init__(self, kernel: SteeringKernel) -> None:
        self._kernel = kernel
        self._networks: tuple[Network, ...] = ()
        self._interfaces: set[str] = set()  # of networks, those that are gone included
        self._metrics: dict[tuple[int, int], bytes] = {}
        self._main: Sequence[SeenRoute] | None = None
        self._led_out: set[tuple[int, int]] = set()
        self._installed = RoutingPlan()
        self._given_metrics: dict[Route, bytes] = {}
        self.default: str | None = None
        self.others: dict[int, str] = {}
        self.destinations: dict[Destination, str] = {}
        self.marks: dict[int, str] = {}
        self.rescues: dict[FlowKey, str] = {}
        self.foreign = Foreign()

    def networks_changed(self, networks: Sequence[Network]) -> None:
        self._networks = tuple(networks)
        self._interfaces |= {network.interface for network in networks}
        there = [(version, network) for version in (4, 6) for network in networks]
        known = {(version, network.index) for version, network in there}
        leading = {(v, network.index) for v, network in there if network.leads_out(v)}
        self._led_out = leading | (self._led_out & known)
        self.reconcile()

    def set_default(self, name: str | None, others: Mapping[int, str] | None = None) -> None:
        """Lead new connections to a network: the new rules are there before the old ones go.

        `others`: an IP version that it lacks -> the network for that.
        """
        self.default = name
        self.others = dict(others or {})
        if self.foreign.defaults:
            self._apply(self._planned())
            return
        by_name = {network.name: network for network in self._networks}
        old = {rule for rule in self._installed.rules if rule.preference in _DEFAULTS}
        new = (
            default_rules(by_name[name], self._networks, self.others)
            if name in by_name
            else frozenset[Rule]()
        )
        rules = (self._installed.rules - old) | new
        self._apply(RoutingPlan(rules, self._installed.routes))

    def set_destination(self, destination: Destination, name: str | None) -> None:
        """Lead new connections to some destination to a network; None: to the default again."""
        self.set_destinations({destination: name})

    def set_destinations(self, wanted: Mapping[Destination, str | None]) -> None:
        """Lead new connections to several destinations at once: a name may have hundreds."""
        with self._unless_refused():
            for destination, name in wanted.items():
                if name is None:
                    self.destinations.pop(destination, None)
                else:
                    self.destinations[destination] = name
            if self._main is None:
                self._main = self._specific_routes()
            self._apply(self._planned())

    def set_mark(self, mark: int, name: str | None) -> None:
        """Lead new connections that carry a mark to a network; None: to the default again."""
        with self._unless_refused():
            if name is None:
                self.marks.pop(mark, None)
            else:
                self.marks[mark] = name
            self._apply(self._planned())

    def set_rescue(self, key: FlowKey, name: str | None) -> None:
        """Lead one flow to a network, ahead of all others of its address; None: as them again."""
        by_name = {network.name: network for network in self._networks}
        with self._unless_refused():
            before = self.rescues.pop(key, None)
            if name is not None:
                self.rescues[key] = name
            old, new = (
                frozenset(filter(None, [rescue_rule(key, by_name[which])]))
                if which in by_name
                else frozenset[Rule]()
                for which in (before, name)
            )
            self._apply(RoutingPlan((self._installed.rules - old) | new, self._installed.routes))

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        """Take back what is wanted where the kernel refuses it: it would refuse all that comes later.

        What is wanted no more stays so.
        """
        before = dict(self.destinations), dict(self.marks), dict(self.rescues)
        try:
            yield
        except OSError:
            destinations, marks, rescues = before
            self.destinations = {k: v for k, v in destinations.items() if k in self.destinations}
            self.marks = {k: v for k, v in marks.items() if k in self.marks}
            self.rescues = {k: v for k, v in rescues.items() if k in self.rescues}
            raise

    def reconcile(self) -> bool:
        """Read what is really installed and repair it; return whether anything foreign is new or gone."""
        routes = self._kernel.routes()
        rules = self._kernel.rules()
        foreign = examine(rules, routes, self._kernel.links(), self._networks)
        self._metrics = {
            (route.version, route.index): route.metrics
            for route in sorted(routes, key=lambda route: route.rank, reverse=True)
            if route.table == MAIN_TABLE and route.destination.prefixlen == 0
        }
        news = foreign != self.foreign
        self.foreign = foreign
        self._main = self._specific_routes()
        self._installed = self._read(rules, routes)
        self._apply(self._planned())
        return news

    def _specific_routes(self) -> Sequence[SeenRoute] | None:
        """Return main's specific routes where some may be overruled: a host may have thousands."""
        wanted = self.foreign.overruled or any(each.ruled for each in self.destinations)
        return self._kernel.specific_routes() if wanted else None

    def _planned(self) -> RoutingPlan:
        left_alone = self.foreign.defaults
        # A network can bring about that its address is no more, or of the link alone (DHCP).
        borrowing = {v for v, each in left_alone.items() if each.interface in self._interfaces}
        planned = plan(
            self._networks,
            self.default,
            self.destinations,
            marks=self.marks,
            rescues=self.rescues,
            left_alone={v: each.vpn for v, each in left_alone.items()},
            borrowing=borrowing,
            metrics=self._metrics,
            lost=self._led_out,
            others=self.others,
            overruled=self.foreign.overruled,
        )
        steered = {rule.version for rule in planned.rules} - (left_alone.keys() - borrowing)
        ruled = {
            each: name
            for each, name in self.destinations.items()
            if each.ruled and each.prefix.version in steered
        }
        main = self._main or ()
        rules = past_announced(ruled, self._networks, main)
        rules |= parts_elsewhere(self.foreign.overruled, self._networks, main)
        return replace(planned, rules=planned.rules | rules)

    def _read(self, rules: Sequence[SeenRule], routes: Sequence[SeenRoute]) -> RoutingPlan:
        """Return our installed rules and routes. Routes count with the metrics that we gave them."""
        installed = set()
        for seen in routes:
            if seen.protocol == PROTOCOL:
                bare = Route(
                    seen.table, seen.destination, seen.index, seen.gateway, source=seen.source
                )
                installed.add(replace(bare, metrics=self._given_metrics.get(bare, seen.metrics)))
        ours = (seen.rule for seen in rules if seen.rule and is_ours(seen.preference))
        return RoutingPlan(frozenset(ours), frozenset(installed))

    def _apply(self, wanted: RoutingPlan) -> None:
        """Add new routes, then new rules; remove old rules, then old routes: one is always there."""
        before, self._installed = self._installed, wanted
        new_routes, old_routes = wanted.routes - before.routes, before.routes - wanted.routes
        try:
            added = {route for route in sorted(new_routes, key=str) if self._add(route)}
            routes = wanted.routes - new_routes | added
            refusing = any(route.table == REFUSING_TABLE for route in routes)
            rules = wanted.rules if refusing else without_loopback(wanted.rules)
            self._installed = RoutingPlan(rules, routes)
            new_rules, old_rules = rules - before.rules, before.rules - rules
            self._kernel.add_rules(sorted(new_rules, key=_rule_order))
            # What holds something back comes last and goes first.
            self._kernel.delete_rules(sorted(old_rules, key=_rule_order, reverse=True))
            # A route to the same destination has replaced its predecessor.
            replaced = {(route.table, route.destination) for route in added}
            stale = [
                route for route in old_routes if (route.table, route.destination) not in replaced
            ]
            if stale:
                self._kernel.delete_routes(stale)
        except OSError:
            self._installed = self._read(self._kernel.rules(), self._kernel.routes(PROTOCOL))
            raise

    def _add(self, route: Route) -> bool:
        """Add a route; False where its interface has gone meanwhile, as the monitor will tell.

        False, too, for the one that refuses where loopback has no IPv6.
        """
        bare = replace(route, metrics=b"")
        # Metrics that some other kernel understood may be refused; the route counts for more.
        for attempt in dict.fromkeys((route, bare)):
            try:
                self._kernel.add_routes([attempt])
            except OSError as error:
                # Loopback's IPv6 may be disabled: EACCES, whatever one may do.
                disabled = error.errno == errno.EACCES and route.table == REFUSING_TABLE
                if error.errno in (errno.EPERM, errno.EACCES) and not disabled:
                    raise
                continue
            self._given_metrics[bare] = route.metrics
            return True
        return False


def _rule_order(rule: Rule) -> tuple[bool, bool, int, str]:
    # The default is what is waited for.
    late = rule.table in (None, REFUSING_TABLE)
    return late, rule.preference != Preference.DEFAULT, rule.preference, str(rule)
