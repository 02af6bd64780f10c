"""Rules of a user's own (`cedos rule`): which there are, and which one a connection falls under."""

from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import Final

import msgspec

from cedos.api.rules import MOST_ADDRESSES, RuleRequest
from cedos.daemon.decisions.steer_interface import Place
from cedos.errors import ConfigError, NotFoundError
from cedos.model import Address

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
        same = [
            n for n, one in self._rules.items() if (one.host, one.port) == (rule.host, rule.port)
        ]
        if not same and len(self._rules) >= MOST:
            raise ConfigError(f"there are {MOST} rules already: remove one first")
        number = same[0] if same else max(self._rules, default=0) + 1
        self._rules[number] = rule
        self._keep(self.state())
        return number

    def remove(self, number: int) -> None:
        if self._rules.pop(number, None) is None:
            raise NotFoundError(f"there is no rule {number}: `cedos rule` lists them")
        self._keep(self.state())

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

    def allows(self, address: Address, port: int, network: str, *, metered: bool) -> bool:
        """Return whether a connection may use a network."""
        number = self.of(address, port)
        return number is None or self._rules[number].allows(network, metered=metered)

    def state(self) -> dict[str, object]:
        return {str(number): msgspec.to_builtins(rule) for number, rule in self._rules.items()}
