"""The user's rules (`cedos rule`) as the daemon reports them, for the proxy and for sessions."""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

from cedos.api.asking import changes
from cedos.api.client import ControlClient
from cedos.api.messages import NetworkMessage, RuleMessage
from cedos.config.directories import directories
from cedos.controller.decisions.named_addresses import is_below
from cedos.controller.decisions.user_rules import UserRules
from cedos.controller.outbox import Outbox
from cedos.controller.rule import MOST_ADDRESSES, RuleRequest, is_host_name
from cedos.errors import (
    CedosError,
    NoDaemonError,
    NotFoundError,
    PrivilegeError,
)
from cedos.host.monitor.resolvers import spellings
from cedos.limits import UsersTable
from cedos.model import Address, NetworkKind, address
from cedos.proxy.local.direct import LookUp, RuleBook
from cedos.session.io import driver
from cedos.session.io.links import Egress

# The time between two questions to a daemon that does not tell of changes, or does not run.
_ASK_S: Final = 2.0
# The pause between two readings.
_APART_S: Final = 0.1
# The pause between two questions about this instant, so that the daemon has time for others.
_PAUSE_S: Final = 0.003
# The longest wait for a look-up. Without its addresses, no rule for a prefix applies to a name.
_PATIENCE_S: Final = 1.0
_NAME_S: Final = 60.0
_NOT_FOUND_S: Final = 10.0
_MOST_NAMES: Final = 512
# The most look-ups of a user at once. One whose names no server answers for has none left, and no other
# user's connection thereby misses its rule.
_MOST_LOOKUPS: Final = 16


def index(rules: Iterable[RuleMessage]) -> UserRules:
    """Return the rules in a form that finds the one for a host; it takes 3 ms for 1,024 addresses."""
    return UserRules(Outbox(), {str(one.number): one.rule for one in rules})


def is_address(text: str) -> bool:
    try:
        return bool(ip_address(text))
    except ValueError:
        return False


def _plain(host: str) -> str:
    """Return a host as rules have it: lower case, no final dot, an IPv4 address as one."""
    host = host.strip().rstrip(".").lower()
    return str(address(ip_address(host).packed)) if is_address(host) else host


def addresses(name: str) -> tuple[str, ...]:
    """Return the addresses of a name by this host's resolver; none if it does not answer."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    found = (ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers)
    return tuple(dict.fromkeys(str(address(each.packed)) for each in found))[:MOST_ADDRESSES]


class RuledHosts(RuleBook):
    """Hosts under the rules that `told` follows.

    A session with a gateway carries everything over the best networks for all of it. Therefore
    connections under a rule go direct, where the daemon applies the rule. While there are rules, names
    are looked up here: one may be an alias of a ruled name, or lead to a ruled address. While there are
    rules for names, the daemon is asked for their addresses before each connection. While it is too busy
    to answer, the last rules hold.
    """

    def __init__(self, told: "RuledNetworks") -> None:
        self._told = told
        # By user and name: one's look-up that fails, or is late, counts for no other.
        self._names: UsersTable[tuple[int, str], tuple[tuple[str, ...], float]]
        self._names = UsersTable(_MOST_NAMES)
        self._looking: dict[tuple[int, str], asyncio.Task[None]] = {}  # by user and name
        # By address or other name: the name that is meant.
        self._meant: UsersTable[str, str] = UsersTable(_MOST_NAMES)

    @property
    def stands(self) -> bool:
        return bool(self._told.rules)

    async def find(self, host: str, port: int, user: int, look_up: LookUp) -> bool:
        """Return whether a rule applies, after a lookup of the name if needed.

        A program that looked a name up itself connects to an address that only the daemon knows yet.
        """
        host = _plain(host)
        about = [each.rule for each in self._told.rules if each.rule.port in (None, port)]
        if not about:
            return False
        looking = self._look_up(host, port, user, look_up)
        if looking is not None:
            await asyncio.wait({looking}, timeout=_PATIENCE_S)
        if not self._is_covered(host, port, user) and any(each.prefix is None for each in about):
            await asyncio.wait({self._told.fresh()}, timeout=_PATIENCE_S)
        return self._is_covered(host, port, user)

    def names(self, name: str) -> bool:
        """Return whether a rule is for this name, or for a parent domain."""
        name = _plain(name)
        return any(
            each.rule.prefix is None and is_below(meant, each.rule.host)
            for meant in spellings(self._means(name))
            for each in self._told.rules
        )

    def learn(self, name: str, leads_to: Sequence[Address | str], user: int) -> None:
        """Note the addresses and other names that a user's program got for a name, if that is ruled.

        Any name may lead to a ruled one, and does not take it over by that.
        """
        if not self.names(name):
            return
        name = self._means(name)
        for each in leads_to:
            self._meant.put(str(each), name, user)

    async def close(self) -> None:
        tasks = list(self._looking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _means(self, host: str) -> str:
        return self._meant.get(host) or host

    def _is_covered(self, host: str, port: int, user: int) -> bool:
        known, _ = self._names.get((user, host)) or ((), 0.0)
        every = map(_plain, (host, *spellings(self._means(host)), *known))
        # (No rule could have any other name.)
        possible = (each for each in every if is_host_name(each) or is_address(each))
        return any(self._told.index.applies(each, port) is not None for each in possible)

    def _look_up(
        self, name: str, port: int, user: int, look_up: LookUp
    ) -> asyncio.Task[None] | None:
        """Return the task of the lookup; None: it is not needed, or too many of the user run."""
        if is_address(name):
            return None
        loop = asyncio.get_running_loop()
        asked = user, name
        if (known := self._names.get(asked)) is not None and loop.time() < known[1]:
            return None
        looking = self._looking.get(asked)
        if looking is None and sum(each == user for each, _ in self._looking) < _MOST_LOOKUPS:
            looking = loop.create_task(self._learn(name, port, user, look_up))
            self._looking[asked] = looking
            looking.add_done_callback(lambda _done: self._looking.pop(asked))
        return looking

    async def _learn(self, name: str, port: int, user: int, look_up: LookUp) -> None:
        found = tuple(await look_up(name, port, user))
        until_s = asyncio.get_running_loop().time() + (_NAME_S if found else _NOT_FOUND_S)
        if not found:  # perhaps no resolver answers
            found, _ = self._names.get((user, name)) or ((), 0.0)
        self._names.put((user, name), (found, until_s), user)


@dataclass(frozen=True, slots=True)
class _ToldNetwork:
    """The daemon's word on a network, with the addresses that this host had there then.

    `barred`: why its wall stands; "": it has none.
    """

    name: str
    kind: NetworkKind
    metered: bool
    addresses: frozenset[str]
    barred: str = ""

    @classmethod
    def of(cls, told: NetworkMessage) -> "_ToldNetwork":
        addresses = frozenset(each.partition("/")[0] for each in told.addresses)
        return cls(told.name, told.kind, told.metered, addresses, told.barred)


_Told = tuple[int | None, Sequence[RuleMessage], Mapping[str, _ToldNetwork]]


class RuledNetworks:
    """The networks that rules allow, as the daemon behind a control socket tells; without one, all.

    The daemon tells of each change, and `changed` is then called in the event loop. An
    interface that came up, or has none of its addresses any more, since the daemon told of it is another
    network by now: a rule forbids it until the daemon has told again. While the daemon is too busy to
    answer, what it told last holds. Who may not ask it has no rules.
    """

    def __init__(
        self,
        socket: Path,
        changed: Callable[[], None] = driver.check_networks,
        # Returns the interfaces to an address, also those that the daemon does not know.
        egresses: Callable[[str], Iterable[Egress]] = driver.egresses,
    ) -> None:
        self._socket, self._client = socket, ControlClient(socket)
        self._changed, self._egresses = changed, egresses
        self.rules: Sequence[RuleMessage] = ()
        self.index = index(())
        self._networks: Mapping[str, _ToldNetwork] = {}
        self._number: int | None = None
        self._told = self._behind = False
        self._asked_s = self._read_at_s = float("-inf")
        self._reading = asyncio.Lock()
        self._soon = asyncio.Event()
        self._next: asyncio.Task[None] | None = None
        self._following: list[asyncio.Task[None]] = []

    async def follow(self) -> None:
        """Read the rules of this instant, and follow them in the background from then on.

        CedosError: the daemon is too busy, and has told none yet.
        """
        await asyncio.shield(self.fresh())  # others wait for it, too
        if not self._following:
            self._following = [*map(asyncio.ensure_future, (self._hear(), self._follow()))]

    def fresh(self) -> asyncio.Task[None]:
        """Return a task that takes the rules of this instant; all who ask meanwhile wait for one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_next())
        return self._next

    def refusal(self, egress: str, server: tuple[str, int], address: str) -> str:
        """Return the rule that forbids an egress to a server, which has an address there; "": none."""
        host, port = server
        address = _plain(address.partition("%")[0])
        numbers = self.index.holding(ip_address(address), port, _plain(host))
        network = self._network(egress, address) if numbers else None
        for number in numbers:
            rule = self.index.rules[number]
            if network is None or not rule.allows(
                network.name, network.kind, metered=network.metered
            ):
                return f"your rule {number} for {rule.host}: {rule.words}"
        return ""

    def _network(self, egress: str, address: str) -> _ToldNetwork | None:
        """Return the network of an egress; None: it is gone, or another one than the daemon told of."""
        there = [each for each in self._egresses(address) if each.name == egress]
        if (told := self._networks.get(egress)) is None and there:
            metered = any(each.metered for each in there)
            told = _ToldNetwork(egress, there[0].kind, metered, there[0].addresses)
        if told is not None and there and self._is_new(there[0], told):
            self._behind = True
            self._soon.set()
            return None
        return told

    async def close(self) -> None:
        tasks = [*self._following, *([self._next] if self._next is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_new(self, egress: Egress, told: _ToldNetwork) -> bool:
        # Any network may have a link-local address.
        own = {each for each in egress.addresses if not ip_address(each).is_link_local}
        return egress.came_s >= self._asked_s or (bool(own) and own.isdisjoint(told.addresses))

    async def _hear(self) -> None:
        while True:
            with suppress(OSError):
                async for _ in changes(self._socket):
                    self._soon.set()
            self._soon.set()
            await asyncio.sleep(_ASK_S)

    async def _follow(self) -> None:
        while True:
            await self._soon.wait()
            self._soon.clear()
            await self.fresh()
            await asyncio.sleep(_APART_S)

    async def _read_next(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._reading:
            await asyncio.sleep(self._read_at_s + _PAUSE_S - loop.time())
            self._next = None  # what is asked from here on may have another answer
            await self._read()
            self._read_at_s = loop.time()

    def _ask(self) -> _Told:
        """Return the rules, the networks and their number; CedosError: they are not known."""
        number = None
        with suppress(NotFoundError):  # it is a daemon of an earlier version
            number = self._client.changes()
        if number is not None and number == self._number:
            return number, self.rules, self._networks
        rules, networks = self._client.rules(), self._client.networks()
        return number, rules, {each.egress: _ToldNetwork.of(each) for each in networks}

    async def _read(self) -> None:
        now = asyncio.get_running_loop().time()
        behind, self._behind = self._behind, False
        told: _Told = None, (), {}
        try:
            told = await asyncio.to_thread(self._ask)
            self._asked_s = now  # before the answer: what came meanwhile is new
        except NoDaemonError:
            self._asked_s = float("-inf")
        except CedosError as error:  # it is busy, of another version, or not ours to ask
            if self._told:
                self._behind |= behind
                return
            if not isinstance(error, PrivilegeError):
                raise
        rules_before, networks_before = self.rules, self._networks
        self._number, self.rules, self._networks = told
        self._told = True
        others = _number_rules(rules_before) != _number_rules(self.rules)
        if others:
            self.index = index(self.rules)
        if others or behind or networks_before != self._networks:
            asyncio.get_running_loop().call_soon(self._changed)


def _number_rules(rules: Iterable[RuleMessage]) -> list[tuple[int, RuleRequest]]:
    return [(each.number, each.rule) for each in rules]


_followed: WeakKeyDictionary[asyncio.AbstractEventLoop, RuledNetworks] = WeakKeyDictionary()


def of_sessions() -> RuledNetworks:
    """Return the networks that rules allow to all sessions of this event loop."""
    loop = asyncio.get_running_loop()
    if (known := _followed.get(loop)) is None:
        known = _followed[loop] = RuledNetworks(directories().socket)
    return known
