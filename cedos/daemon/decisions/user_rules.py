"""Rules of a user's own (`cedos rule`): which there are, and which one a connection falls under."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from itertools import islice
from typing import Final

import msgspec

from cedos.api.rules import MOST_ADDRESSES, RuleMessage, RuleRequest
from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.steer_interface import Place, Steer, carried_out
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.errors import ConfigError, NotFoundError
from cedos.model import Address, Context, Decision, FlowKey, Network, Strategy, StrategyKind
from cedos.selector.decision.liveness import is_captive
from cedos.selector.decision.reason import sentences
from cedos.steer.routing.host_default import HostDefault
from cedos.steer.routing.plan import NOWHERE

MOST: Final = 64


class UserRules:
    """Rules by number.

    Args:
        kept: what was kept before, as `state` gave it; what cannot be one is left out.
        keep: called with `state` after every change.
    """

    def __init__(
        self, kept: object = None, keep: Callable[[object], None] = lambda _: None
    ) -> None:
        self._keep = keep
        self._rules: dict[int, RuleRequest] = {}
        for number, rule in kept.items() if isinstance(kept, dict) else ():
            try:
                self._rules[int(number)] = msgspec.convert(rule, RuleRequest)
            except (ValueError, msgspec.ValidationError):
                continue

    @property
    def rules(self) -> Mapping[int, RuleRequest]:
        return self._rules

    def add(self, rule: RuleRequest) -> int:
        """Add a rule, which replaces an older one for the same host and port; return its number."""
        own = {number: one for number, one in self._rules.items() if number > 0}
        same = [n for n, one in own.items() if (one.host, one.port) == (rule.host, rule.port)]
        if not same and len(own) >= MOST:
            raise ConfigError(f"there are {MOST} rules already: remove one first")
        number = same[0] if same else max(own, default=0) + 1
        self._rules[number] = rule
        self._keep(self.state())
        return number

    def remove(self, number: int) -> None:
        if self._rules.pop(number, None) is None:
            raise NotFoundError(f"there is no rule {number}: `cedos rule` lists them")
        self._keep(self.state())

    def portals(self, hosts: Iterable[tuple[str, Sequence[Address]]]) -> None:
        """Lead hosts on the way to log-in pages over their networks, while a log-in is wanted.

        These rules have numbers below 0: the user's own count before them, and they are not kept. They
        are for addresses, as any network may claim that a name or a domain is on the way.

        Args:
            hosts: a network, and the addresses there of a host.
        """
        wanted = {str(address): network for network, addresses in hosts for address in addresses}
        own = {number: rule for number, rule in self._rules.items() if number > 0}
        others = {
            -number: RuleRequest(host=address, only=(network,))
            for number, (address, network) in enumerate(islice(wanted.items(), MOST), 1)
        }
        self._rules = {**own, **others}

    def met(self, server_name: str, address: Address) -> bool:
        """Note which server a connection names; return whether a rule covers its address only now."""
        learnt = False
        for number, rule in self._rules.items():
            below = server_name == rule.host or server_name.endswith(f".{rule.host}")
            if rule.prefix is not None or not below or str(address) in rule.addresses:
                continue
            # What a name leads to changes: the youngest ones count.
            addresses = (*rule.addresses, str(address))[-MOST_ADDRESSES:]
            self._rules[number] = msgspec.structs.replace(rule, addresses=addresses)
            learnt = True
        if learnt:
            self._keep(self.state())
        return learnt

    def places(self) -> Iterator[tuple[Place, int]]:
        """Yield each place that a rule covers, with the rule that was added last."""
        for number, rule in self._rules.items():
            prefixes = [rule.prefix] if rule.prefix is not None else map(ip_network, rule.addresses)
            for prefix in prefixes:
                yield (str(prefix), rule.port), number

    def of(self, address: Address, port: int | None) -> int | None:
        """Return the number of a connection's rule: a port's before others, then the longest prefix."""
        found: tuple[tuple[bool, int, int], int] | None = None
        for (prefix, of_port), number in self.places():
            network = ip_network(prefix)
            if address.version != network.version or ip_address(address) not in network:
                continue
            if of_port is None or of_port == port:
                rank = (of_port is not None, network.prefixlen, number)
                if found is None or rank > found[0]:
                    found = rank, number
        return None if found is None else found[1]

    def state(self) -> dict[str, object]:
        return {
            str(number): msgspec.to_builtins(rule)
            for number, rule in self._rules.items()
            if number > 0
        }


def allows(rule: RuleRequest, network: Network) -> bool:
    """Return whether a rule allows a network."""
    return rule.allows(network.name, network.kind, metered=network.metered)


def _version(place: Place) -> int:
    return ip_network(place[0]).version


@dataclass(slots=True)
class _Ruled:
    """The decision for a rule in an IP version; `refused` says why its connections are refused."""

    rule: RuleRequest
    decision: Decision
    refused: str = ""

    @property
    def network(self) -> str | None:
        networks = self.decision.choice.networks
        return networks[0] if networks else None


class RuledDestinations:
    """The destinations of a user's rules: each goes to the best network that it may use.

    If no network may carry a connection under a rule, it is refused, not sent elsewhere.
    """

    def __init__(self, steer: Steer, decider: Decider, rules: UserRules) -> None:
        self.rules = rules
        self._steer = steer
        self._decider = decider
        self._led: dict[Place, str] = {}
        self._ruled: dict[tuple[int, int], _Ruled] = {}
        """A rule's number and an IP version of its addresses -> the decision."""

    def decision(self, key: FlowKey) -> Decision | None:
        """Return the decision that a connection follows; None: no rule covers it."""
        number = self.rules.of(key.remote, key.remote_port)
        ruled = None if number is None else self._ruled.get((number, key.remote.version))
        return None if ruled is None else ruled.decision

    def covers(self, address: Address, port: int | None) -> bool:
        return self.rules.of(address, port) is not None

    def may_use(self, key: FlowKey, network: str) -> bool:
        """Return whether a flow may use the network of this name, which may be gone."""
        known = [each for each in self._decider.networks if each.name == network]
        number = self.rules.of(key.remote, key.remote_port)
        return number is None or all(allows(self.rules.rules[number], each) for each in known)

    async def keep(self, flow: LivingFlow) -> None:
        """Lead a living MPTCP connection off the networks that it may not use.

        Of a name that was not known to lead there the first connection may have begun anywhere. What has
        no other network than a forbidden one stays: nothing that lives is broken.
        """
        decision = self.decision(flow.key)
        token = flow.token
        used = {path.network for path in flow.paths.values() if path.closed is None}
        strays = {name for name in used if name is not None and not self.may_use(flow.key, name)}
        if decision is None or token is None or not strays or not decision.choice.networks:
            return
        if flow.strategy is None or not strays.isdisjoint(flow.strategy.networks):
            if not await carried_out(self._steer.steer_connection(token, decision.choice)):
                return
            flow.on_decision(decision)
        for name in strays:
            await carried_out(self._steer.release(token, name))

    async def reconsider(self, context: Context) -> None:
        before, self._ruled = self._ruled, {}
        if not self.rules.rules and not self._led:
            return
        unknown = self._decider.unknown()
        usual = {v: self._decider.considered(unknown, context, None, version=v) for v in (4, 6)}
        places = {place: (number, _version(place)) for place, number in self.rules.places()}
        # Of a name whose addresses are not known yet IPv4 is told.
        led = {number for number, _ in places.values()}
        needed = {
            *places.values(),
            *((number, 4) for number in self.rules.rules if number not in led),
        }
        for number, version in sorted(needed):
            rule = self.rules.rules[number]
            decision, refused = self._decide(number, rule, usual[version], version)
            known = before.get((number, version))
            if (
                known is not None
                and known.rule == rule
                and known.decision.choice == decision.choice
                and known.refused == refused
            ):
                self._ruled[number, version] = known
                continue
            self._ruled[number, version] = _Ruled(rule, self._decider.record(decision), refused)
        wanted = {place: self._ruled[which].network or NOWHERE for place, which in places.items()}
        for place, network in wanted.items():
            if self._led.get(place) != network and await carried_out(
                self._steer.set_destination(*place, network)
            ):
                self._led[place] = network
        for place in self._led.keys() - wanted.keys():
            if await carried_out(self._steer.set_destination(*place, None)):
                del self._led[place]

    def messages(self, host_defaults: Mapping[int, HostDefault]) -> list[RuleMessage]:
        """Return the rules as messages; `host_defaults`: by IP version what cedos leaves alone."""
        found = []
        for number, rule in self.rules.rules.items():
            by_version = {v: self._ruled[number, v] for v in (4, 6) if (number, v) in self._ruled}
            if not by_version:
                continue
            # What is refused is told beside what is not.
            led = [each for each in by_version.values() if each.network is not None]
            first = (led or list(by_version.values()))[0]
            addressed = any(of == number for _, of in self.rules.places())
            left_to = {v: host_defaults[v] for v in by_version if addressed and v in host_defaults}
            found.append(
                RuleMessage(
                    number=number,
                    rule=rule,
                    network=first.network,
                    why=first.decision.reason,
                    vpn={str(v): each.interface for v, each in left_to.items() if each.vpn},
                    host_defaults={
                        str(v): each.interface for v, each in left_to.items() if not each.vpn
                    },
                    refused={
                        str(v): each.refused for v, each in by_version.items() if each.refused
                    },
                )
            )
        return found

    def _decide(
        self, number: int, rule: RuleRequest, decision: Decision, version: int
    ) -> tuple[Decision, str]:
        """Decide as for any new connection, among the networks that the rule allows; if none, say why."""
        there = [each for each in self._decider.usable if each.up and allows(rule, each)]
        allowed = {network.name for network in there if network.carries(version)}
        ways = [each for each in decision.evaluations if allowed.issuperset(each.strategy.networks)]
        transfer = replace(decision.transfer, server_name=rule.host)
        said = f"Your rule {number}: {rule.words}"
        if number < 0:
            said = f"{rule.only[0]} wants a log-in, and {rule.host} is on the way to it"
        if not ways:
            captive = [n for n in sorted(allowed) if is_captive(decision.context, n)]
            if captive:
                choice = Strategy(StrategyKind.SINGLE, (captive[0],))
                why = sentences(said, f"{captive[0]} carries nothing but the log-in until then")
                return replace(decision, transfer=transfer, choice=choice, reason=why), ""
            nowhere = Strategy(StrategyKind.DEFER, ())
            names = " and ".join(network.name for network in there)
            several = len(there) > 1
            refused = "no such network is up"
            if allowed:
                refused = f"{names} {'do' if several else 'does'} not answer"
            elif there:
                refused = f"{names} {'have' if several else 'has'} no IPv{version}"
            what = refused if there else refused.capitalize()
            why = sentences(said, f"{what}, so connections are refused")
            return replace(decision, transfer=transfer, choice=nowhere, reason=why), refused
        best = min(ways, key=lambda each: each.cost).strategy
        others = (
            f"{best.networks[0]} is the only network that it allows"
            if len(ways) == 1
            else f"Of those that it allows {best.networks[0]} is best now"
        )
        why = sentences(said, others)
        return replace(decision, transfer=transfer, choice=best, reason=why), ""
