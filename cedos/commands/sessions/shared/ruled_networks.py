"""Which networks a user's rules (`cedos rule`) leave to the sessions with one server, or its nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from cedos.api.client import ControlClient
from cedos.api.rules import RuleMessage
from cedos.commands.rule import addresses, applies
from cedos.errors import CedosError
from cedos.session.io.links import Egress, EgressReader

_TIMEOUT_S: Final = 1.0


class _Found(NamedTuple):
    """A rule that applies to a server, and the server's addresses."""

    rule: RuleMessage
    addresses: Sequence[str]


class RuledNetworks:
    """Asks the daemon behind a control socket. Without one there are no rules, as for other programs.

    Args:
        servers: host and port of where sessions may lead; rules about any of them hold for all.
        looked_up: a name's addresses.
        egresses: the interfaces that lead to an address, of those that the daemon did not know yet.
    """

    def __init__(
        self,
        socket: Path,
        *servers: tuple[str, int],
        looked_up: Callable[[str], Sequence[str]] = addresses,
        egresses: Callable[[str], Iterable[Egress]] | None = None,
    ) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._servers = servers
        self._looked_up = looked_up
        self._egresses = egresses or _egresses
        self._found: Sequence[_Found] = ()
        self._networks: dict[str, tuple[str, bool]] = {}

    def read(self) -> None:
        """Asks again; it may wait for the daemon and for names' addresses, in a thread of its own."""
        found: Sequence[_Found] = ()
        try:
            rules = {one.number: one for one in self._client.rules()}
            if rules and (found := list(self._applying(rules))):
                self._networks = {
                    each.interface: (each.name, each.metered) for each in self._client.networks()
                }
        except CedosError:  # none there, another version, not ours to ask
            found = ()
        self._found = found

    def may_use(self, interface: str) -> bool:
        """Whether an interface may be used, by what was read last."""
        if not self._found:
            return True
        if interface not in self._networks:
            # It came up after the daemon was asked.
            metered = [
                each.metered
                for found in self._found
                for address in found.addresses
                for each in self._egresses(address)
                if each.interface == interface
            ]
            if not metered:
                return False
            self._networks[interface] = interface, any(metered)
        name, is_metered = self._networks[interface]
        return all(each.rule.rule.allows(name, metered=is_metered) for each in self._found)

    @property
    def why(self) -> str:
        """What keeps sessions off some networks, for a person; "" where no rule applies."""
        rules = {each.rule.number: each.rule for each in self._found}
        return ", ".join(
            f"your rule {number} for {each.rule.host}: {each.rule.words}"
            for number, each in rules.items()
        )

    def _applying(self, rules: Mapping[int, RuleMessage]) -> Iterator[_Found]:
        for host, port in self._servers:
            found = self._looked_up(host)
            number = applies(rules.values(), host, port, partial(_same, found))
            if number is not None:
                yield _Found(rules[number], found)


def _same(found: Sequence[str], _host: str) -> Sequence[str]:
    return found


def _egresses(address: str) -> Sequence[Egress]:
    reader = EgressReader()
    try:
        return reader.egresses(ip_address(address))
    except CedosError:
        return ()
    finally:
        reader.close()
