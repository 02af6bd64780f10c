"""The addresses of ruled names, as this host's own resolvers and its hosts file say. Pure.

Only what was looked up counts. What a program claims (the name in a TLS hello, the answer of a resolver
of its own) is not known here before a look-up of ours confirms it: any local user can claim anything.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cedos.controller.events import DnsReply
from cedos.model import Address

_MOST_NAMES: Final = 4096
MOST_OF_A_NAME: Final = 64
# Names that lead to others, to 64 each: a service has many.
_MOST_LED: Final = 1024
_Table = OrderedDict[str, tuple[str, ...]]


def is_below(name: str, host: str) -> bool:
    """Return whether a name is a host or one of its subdomains."""
    return name == host or name.endswith(f".{host}")


class NamedAddresses:
    """The last answers by name: its addresses, and the names that it is an alias of."""

    def __init__(self) -> None:
        self._addresses: _Table = OrderedDict()
        self._leads_to: _Table = OrderedDict()
        self._hosts: Mapping[str, Sequence[Address]] = {}

    def on_answer(self, reply: DnsReply) -> None:
        """Note an answer, each record for its owner: who points to a name tells nothing of it."""
        for each in reply.names:
            _put(self._addresses, each.name, tuple(map(str, each.addresses)), _MOST_NAMES)
            _put(self._leads_to, each.name, each.aliases, _MOST_LED)

    def names_led_to(self, names: Iterable[str], most: int) -> list[str]:
        """Return names, and about `most` that they lead to, as earlier answers said.

        A resolver may ask for any part of a chain by itself, as long as it remembers the others.
        """
        found = dict.fromkeys(names)
        due = deque(found)
        most += len(found)
        while due and len(found) < most:
            for name in self._leads_to.get(due.popleft(), ()):
                if name not in found:
                    found[name] = None
                    due.append(name)
        return list(found)

    def hosts_read(self, hosts: Mapping[str, Sequence[Address]]) -> None:
        """Take the names of the hosts file."""
        self._hosts = hosts

    def of(self, name: str) -> Iterator[str]:
        """Yield the addresses of one name."""
        yield from self._addresses.get(name, ())
        yield from map(str, self._hosts.get(name, ()))

    def names_below(self, host: str) -> list[str]:
        """Return a host and all names below it, those that were told last at the end."""
        known = (*self._hosts, *self._leads_to, *self._addresses)
        youngest_first = dict.fromkeys(each for each in reversed(known) if is_below(each, host))
        return [*youngest_first][::-1]


def _put(table: _Table, name: str, news: Sequence[str], most: int) -> None:
    """Add to what a table has of a name; both the name and the news go last."""
    if news:
        table[name] = youngest(table.get(name, ()), news, MOST_OF_A_NAME)
        table.move_to_end(name)
    while len(table) > most:
        table.popitem(last=False)


def youngest(
    known: Iterable[str], news: Iterable[str], most: int, kept: Collection[str] = ()
) -> tuple[str, ...]:
    """Return texts with the news at the end; the oldest ones beyond `most` go, but those `kept`."""
    found = dict.fromkeys(known)
    for address in news:
        found.pop(address, None)
        found[address] = None
    old = [each for each in found if each not in kept]
    for address in old[: max(len(found) - most, 0)]:
        del found[address]
    return tuple(found)
