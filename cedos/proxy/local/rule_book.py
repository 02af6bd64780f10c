"""What the proxy asks of a user's rules (`cedos rule`)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cedos.model import Address

LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, for a port, by this host's own resolver; none where it finds none."""


class RuleBook(Protocol):
    """Says which hosts and ports are under a rule: their connections and datagrams go direct."""

    async def find(self, host: str, port: int, look_up: LookUp) -> bool:
        """Whether a rule is about it; may wait for a name."""
        ...

    def covers(self, host: str, port: int, look_up: LookUp) -> bool:
        """As far as that is known now."""
        ...

    def names(self, name: str) -> bool:
        """Whether a rule is for this name, or for one above it."""
        ...

    def learn(self, name: str, addresses: Sequence[Address]) -> None:
        """What a program was answered for such a name: connections to there are meant, too."""
        ...


class NoRules:
    """A user without rules."""

    async def find(self, _host: str, _port: int, _look_up: LookUp) -> bool:
        return False

    def covers(self, _host: str, _port: int, _look_up: LookUp) -> bool:
        return False

    def names(self, _name: str) -> bool:
        return False

    def learn(self, _name: str, _addresses: Sequence[Address]) -> None: ...
