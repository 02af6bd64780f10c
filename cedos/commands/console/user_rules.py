"""The user's rules (`cedos rule`) as the daemon reports them, for the proxy and for sessions."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.messages import RuleMessage
from cedos.controller.decisions.named_addresses import is_below
from cedos.controller.decisions.user_rules import UserRules
from cedos.controller.outbox import Outbox
from cedos.controller.rule import MOST_ADDRESSES, RuleRequest, is_host_name
from cedos.errors import (
    CedosError,
    ConfigError,
    NoDaemonError,
    NotFoundError,
    PrivilegeError,
)
from cedos.host.monitor.resolvers import spellings
from cedos.limits import UsersTable
from cedos.model import Address, NetworkKind, address
from cedos.proxy.local.direct import LookUp, RuleBook
from cedos.session.io.links import Egress, EgressReader

_ASK_S: Final = 2.0
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


def applies(
    rules: UserRules,
    host: str,
    port: int | None,
    looked_up: Callable[[str], Sequence[str]] = lambda _: (),
) -> int | None:
    """Return the number of the rule for a host, by its name or by one of its addresses.

    ConfigError: it is neither a name nor an address.
    """
    host = host.strip().rstrip(".").lower()
    if not is_host_name(host) and not is_address(host):
        raise ConfigError(f'"{host}" is no name and no address; a port is given by --port')
    return rules.applies(host, port, looked_up)


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
    """Hosts under the rules of the daemon behind a control socket; without a daemon there are none.

    A session with a gateway carries everything over the best networks for all of it. Therefore
    connections under a rule go direct, where the daemon applies the rule. While there are rules, names
    are looked up here: one may be an alias of a ruled name, or lead to a ruled address. While there are
    rules for names, the daemon is asked for their addresses before each connection. While it is too busy
    to answer, the last rules hold. `changed` is called when the rules change, and every minute while
    there are any.
    """

    def __init__(self, socket: Path, changed: Callable[[], Awaitable[None]] | None = None) -> None:
        self._client = ControlClient(socket)
        self._changed = changed
        self._rules: Sequence[RuleMessage] = ()
        self._digest: str | None = None
        self._index = index(())
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None
        self._told_s = self._read_at_s = float("-inf")
        self._due = False
        self._telling: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        # By user and name: one's look-up that fails, or is late, counts for no other.
        self._names: UsersTable[tuple[int, str], tuple[tuple[str, ...], float]]
        self._names = UsersTable(_MOST_NAMES)
        self._looking: dict[tuple[int, str], asyncio.Task[None]] = {}  # by user and name
        # By address or other name: the name that is meant.
        self._meant: UsersTable[str, str] = UsersTable(_MOST_NAMES)

    async def follow(self) -> None:
        """Read the rules and follow them in the background. Errors of the first reading: `_told`."""
        await self._fresh()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    @property
    def stands(self) -> bool:
        return bool(self._rules)

    async def find(self, host: str, port: int, user: int, look_up: LookUp) -> bool:
        """Return whether a rule applies, after a lookup of the name if needed.

        A program that looked a name up itself connects to an address that only the daemon knows yet.
        """
        host = _plain(host)
        about = [each.rule for each in self._rules if each.rule.port in (None, port)]
        if not about:
            return False
        looking = self._look_up(host, port, user, look_up)
        if looking is not None:
            await asyncio.wait({looking}, timeout=_PATIENCE_S)
        if not self._covered(host, port, user) and any(each.prefix is None for each in about):
            await asyncio.wait({self._fresh()}, timeout=_PATIENCE_S)
        return self._covered(host, port, user)

    def names(self, name: str) -> bool:
        """Return whether a rule is for this name, or for a parent domain."""
        name = _plain(name)
        return any(
            each.rule.prefix is None and is_below(meant, each.rule.host)
            for meant in spellings(self._means(name))
            for each in self._rules
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
        own = (self._following, self._telling, self._next)
        tasks = [*self._looking.values(), *(each for each in own if each is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _means(self, host: str) -> str:
        return self._meant.get(host) or host

    def _covered(self, host: str, port: int, user: int) -> bool:
        known, _ = self._names.get((user, host)) or ((), 0.0)
        for each in (host, *spellings(self._means(host)), *known):
            with suppress(ConfigError):  # it is no name that a rule could have
                if applies(self._index, each, port) is not None:
                    return True
        return False

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

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            await self._fresh()

    def _fresh(self) -> asyncio.Task[None]:
        """Return a task that takes the rules of this instant; all who ask meanwhile wait for one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read_next())
        return self._next

    async def _read_next(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._reading:
            await asyncio.sleep(self._read_at_s + _PAUSE_S - loop.time())
            self._next = None  # what is asked from here on may have another answer
            await self._read()
            self._read_at_s = loop.time()

    def _told(self) -> tuple[str | None, Sequence[RuleMessage]]:
        """Return the rules with their digest; CedosError: one does not know whether there are any."""
        digest = None
        with suppress(NotFoundError):  # it is a daemon of an earlier version
            digest = self._client.rules_digest()
        if digest is not None and digest == self._digest:
            return digest, self._rules
        return digest, self._client.rules()

    async def _read(self) -> None:
        before, now = self._rules, asyncio.get_running_loop().time()
        try:
            self._digest, self._rules = await asyncio.to_thread(self._told)
        except NoDaemonError:
            self._digest, self._rules = None, ()
        except CedosError as error:  # it is busy, of another version, or not ours to ask
            if self._following is None and not isinstance(error, PrivilegeError):
                raise
        other = [each.rule for each in before] != [each.rule for each in self._rules]
        if other:
            self._index = index(self._rules)
        old = bool(self._rules) and now - self._told_s > _NAME_S
        self._due |= other or old
        # The callee may look a name up, while there is no network yet.
        free = self._telling is None or self._telling.done()
        if self._changed is not None and self._due and free:
            self._due, self._told_s = False, now
            self._telling = asyncio.get_running_loop().create_task(self._tell(self._changed))

    @staticmethod
    async def _tell(changed: Callable[[], Awaitable[None]]) -> None:
        await changed()


class RuledNetworks:
    """The networks that rules allow for sessions. Without a daemon there are no rules."""

    def __init__(
        self,
        socket: Path,
        # Returns the interfaces to an address, also those that the daemon does not know.
        egresses: Callable[[str], Iterable[Egress]] | None = None,
    ) -> None:
        self._client = ControlClient(socket)
        self._egresses = egresses or _egresses
        self._rules = index(())
        self._networks: dict[str, tuple[str, NetworkKind, bool]] = {}
        self._applied: dict[int, RuleRequest] = {}
        self._told = False

    def read(self) -> None:
        """Read the rules again in a thread, which may wait for the daemon.

        While the daemon is too busy to answer, the last rules hold. CedosError: it has told none yet.
        Who may not ask it has no rules.
        """
        try:
            rules = index(self._client.rules())
            if rules.rules:
                self._networks = {
                    each.egress: (each.name, each.kind, each.metered)
                    for each in self._client.networks()
                }
        except NoDaemonError:
            rules = index(())
        except CedosError as error:  # it is busy, of another version, or not ours to ask
            if self._told:
                return
            if not isinstance(error, PrivilegeError):
                raise
            rules = index(())
        self._rules, self._applied, self._told = rules, {}, True

    def may_use(self, interface: str, server: tuple[str, int], address: str) -> bool:
        """Return whether the last rules allow an interface to a server, which has an address there."""
        host, port = server
        address = _plain(address.partition("%")[0])
        # (A thread may read others meanwhile.)
        rules, networks, applied = self._rules, self._networks, self._applied
        number = rules.applies(_plain(host), port, lambda _host: (address,))
        if number is None:
            return True
        rule = applied[number] = rules.rules[number]
        if interface not in networks:
            # The interface came up after the request.
            there = [each for each in self._egresses(address) if each.interface == interface]
            if not there:
                return False
            metered = any(each.metered for each in there)
            networks[interface] = interface, there[0].kind, metered
        name, kind, metered = networks[interface]
        return rule.allows(name, kind, metered=metered)

    @property
    def why(self) -> str:
        """Return the reason why some networks are not used; "": no rule applies."""
        return ", ".join(
            f"your rule {number} for {rule.host}: {rule.words}"
            for number, rule in self._applied.items()
        )


def _egresses(address: str) -> Sequence[Egress]:
    reader = EgressReader()
    try:
        return reader.egresses(ip_address(address))
    except CedosError:
        return ()
    finally:
        reader.close()
