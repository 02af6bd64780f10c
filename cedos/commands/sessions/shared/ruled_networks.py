"""Which networks a user's rules (`cedos rule`) leave to the sessions with one server."""

from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.rules import RuleMessage
from cedos.commands.rule import addresses, applies
from cedos.errors import CedosError
from cedos.session.io.links import Egress, EgressReader

_TIMEOUT_S: Final = 1.0


class RuledNetworks:
    """Asks the daemon behind a control socket. Without one there are no rules, as for other programs.

    Args:
        looked_up: a name's addresses.
        egresses: the interfaces that lead to an address, of those that the daemon did not know yet.
    """

    def __init__(
        self,
        socket: Path,
        host: str,
        port: int,
        *,
        looked_up: Callable[[str], Sequence[str]] = addresses,
        egresses: Callable[[str], Iterable[Egress]] | None = None,
    ) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._host, self._port = host, port
        self._looked_up = looked_up
        self._egresses = egresses or _egresses
        self._rule: RuleMessage | None = None
        self._networks: dict[str, tuple[str, bool]] = {}
        self._addresses: Sequence[str] = ()

    def read(self) -> None:
        """Asks again; it may wait for the daemon and for a name's addresses, in a thread of its own."""
        rule = None
        try:
            rules = {one.number: one for one in self._client.rules()}
            if rules:
                found = self._looked_up(self._host)
                number = applies(rules.values(), self._host, self._port, lambda _host: found)
                if number is not None:
                    self._networks = {
                        each.interface: (each.name, each.metered)
                        for each in self._client.networks()
                    }
                    rule, self._addresses = rules[number], found
        except CedosError:  # none there, another version, not ours to ask
            rule = None
        self._rule = rule

    def may_use(self, interface: str) -> bool:
        """Whether an interface may be used, by what was read last."""
        if self._rule is None:
            return True
        if interface not in self._networks:
            # It came up after the daemon was asked.
            metered = [
                each.metered
                for address in self._addresses
                for each in self._egresses(address)
                if each.interface == interface
            ]
            if not metered:
                return False
            self._networks[interface] = interface, any(metered)
        name, is_metered = self._networks[interface]
        return self._rule.rule.allows(name, metered=is_metered)

    @property
    def why(self) -> str:
        """What keeps sessions off some networks, for a person; "" where no rule applies."""
        if self._rule is None:
            return ""
        return f"your rule {self._rule.number} for {self._rule.rule.host}: {self._rule.rule.words}"


def _egresses(address: str) -> Sequence[Egress]:
    reader = EgressReader()
    try:
        return reader.egresses(ip_address(address))
    except CedosError:
        return ()
    finally:
        reader.close()
