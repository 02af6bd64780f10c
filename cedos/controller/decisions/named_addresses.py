"""The addresses of ruled names, as this host's own resolvers and its hosts file say. Pure.

Only what was looked up counts. What a program claims (the name in a TLS hello, the answer of a resolver
of its own) is not known here before a look-up of ours confirms it: any local user can claim anything.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from cedos.controller.events import DnsReply
from cedos.model import Address

_MOST_NAMES: Final = 4096
_MOST_OF_A_NAME: Final = 64
LONGEST_CHAIN: Final = 16
_T = TypeVar("_T")


def is_below(name: str, host: str) -> bool:
    """Return whether a name is a host or one of its subdomains."""
    return name == host or name.endswith(f".{host}")


class NamedAddresses:
    """The last answers by name, and the names that are aliases of others."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, dict[str, None]] = OrderedDict()
        self._alias_of: OrderedDict[str, str] = OrderedDict()
        self._hosts: Mapping[str, Sequence[Address]] = {}

    def on_answer(self, reply: DnsReply) -> frozenset[str]:
        """Note an answer; return all names that its addresses belong to."""
        before = reply.name
        for alias in reply.aliases[:LONGEST_CHAIN]:
            if alias != before:
                _put(self._alias_of, alias, before)
                before = alias
        names = self.names(reply)
        for name in names if reply.addresses else ():
            known = self._addresses.get(name, {})
            for address in map(str, reply.addresses):
                known.pop(address, None)
                known[address] = None
            while len(known) > _MOST_OF_A_NAME:
                del known[next(iter(known))]
            _put(self._addresses, name, known)
        return names

    def names(self, reply: DnsReply) -> frozenset[str]:
        """Return the names of an answer: the one asked for, its aliases, and what it is an alias of.

        A resolver may ask for the end of a chain by itself, as long as it remembers the beginning.
        """
        found = {reply.name, *reply.aliases[:LONGEST_CHAIN]}
        name = reply.name
        for _ in range(LONGEST_CHAIN):
            if (name := self._alias_of.get(name, "")) in found or not name:
                break
            found.add(name)
        return frozenset(found)

    def hosts_read(self, hosts: Mapping[str, Sequence[Address]]) -> None:
        """Take the names of the hosts file."""
        self._hosts = hosts

    def of(self, name: str) -> Iterator[str]:
        """Yield the addresses of one name."""
        yield from self._addresses.get(name, ())
        yield from map(str, self._hosts.get(name, ()))

    def below(self, host: str) -> Iterator[str]:
        """Yield the addresses of a host and all below it, those that were told last at the end."""
        for name, known in self._addresses.items():
            if is_below(name, host):
                yield from known
        for name, addresses in self._hosts.items():
            if is_below(name, host):
                yield from map(str, addresses)


def _put(table: OrderedDict[str, _T], key: str, value: _T) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > _MOST_NAMES:
        table.popitem(last=False)


def youngest(known: Iterable[str], news: Iterable[str], most: int) -> tuple[str, ...]:
    """Return addresses with the news at the end; the oldest ones beyond `most` are left out."""
    found = dict.fromkeys(known)
    for address in news:
        found.pop(address, None)
        found[address] = None
    return tuple(found)[-most:]
