"""Hosts under a user's rules (`cedos rule`): the proxy leaves their connections to the kernel."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.rules import RuleMessage
from cedos.commands.rule import applies
from cedos.errors import CedosError
from cedos.model import Address
from cedos.proxy.local.direct import LookUp

_ASK_S: Final = 2.0
_TIMEOUT_S: Final = 1.0
_PATIENCE_S: Final = 1.0
"""A connection waits so long for its name; one that is not found in time is under no prefix's rule."""
_NAME_S: Final = 60.0
_NOT_FOUND_S: Final = 10.0
_MOST_NAMES: Final = 512
_MOST_LOOKUPS: Final = 32


class RuledHosts:
    """Follows the rules of the daemon behind a control socket, until `close`; none without a daemon.

    A session with a gateway carries everything over whatever networks are best for all of it, so what
    a rule is about has to go direct, where the daemon leads it as its rule says. A name is looked up
    only where a rule is about addresses: the proxy would not do it otherwise. `changed` is called when
    there are other rules, and every minute while there are any; nobody waits for it.
    """

    def __init__(self, socket: Path, changed: Callable[[], Awaitable[None]] | None = None) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._changed = changed
        self._rules: Sequence[RuleMessage] = ()
        self._told_s = float("-inf")
        self._due = False
        self._telling: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._names: OrderedDict[str, tuple[tuple[str, ...], float]] = OrderedDict()
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._meant: OrderedDict[str, str] = OrderedDict()

    async def follow(self) -> None:
        """Returns when the rules are known; from then on it looks by itself."""
        await self._read()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    async def find(self, host: str, port: int, look_up: LookUp) -> bool:
        """Whether a rule is about this."""
        looking = self._look_up(host, port, look_up)
        if looking is not None:
            await asyncio.wait({looking}, timeout=_PATIENCE_S)
        return self._covered(host, port)

    def covers(self, host: str, port: int, look_up: LookUp) -> bool:
        """The same at once; a name's addresses count as soon as they are known."""
        self._look_up(host, port, look_up)
        return self._covered(host, port)

    def names(self, name: str) -> bool:
        """Whether a rule is for this name, or for one above it."""
        name = name.strip().rstrip(".").lower()
        return any(
            each.rule.prefix is None
            and (name == each.rule.host or name.endswith(f".{each.rule.host}"))
            for each in self._rules
        )

    def learn(self, name: str, addresses: Sequence[Address]) -> None:
        """A program was told these for such a name: who connects to them means it."""
        for address in addresses:
            self._meant[str(address)] = name
            self._meant.move_to_end(str(address))
        while len(self._meant) > _MOST_NAMES:
            self._meant.popitem(last=False)

    async def close(self) -> None:
        own = (self._following, self._telling)
        tasks = [*self._looking.values(), *(each for each in own if each is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _covered(self, host: str, port: int) -> bool:
        def known(name: str) -> Sequence[str]:
            return self._names.get(name, ((), 0.0))[0]

        hosts = [host, *([self._meant[host]] if host in self._meant else [])]
        return bool(self._rules) and any(
            applies(self._rules, each, port, known) is not None for each in hosts
        )

    def _look_up(self, host: str, port: int, look_up: LookUp) -> asyncio.Task[None] | None:
        """Begins to, or has begun; None where there is no need, or too much is looked up already."""
        name = host.strip().rstrip(".").lower()
        if not any(
            each.rule.prefix is not None and each.rule.port in (None, port) for each in self._rules
        ):
            return None
        with suppress(ValueError):
            ip_address(name)
            return None
        loop = asyncio.get_running_loop()
        if name in self._names and loop.time() < self._names[name][1]:
            return None
        looking = self._looking.get(name)
        if looking is None and len(self._looking) < _MOST_LOOKUPS:
            looking = self._looking[name] = loop.create_task(self._learn(name, port, look_up))
            looking.add_done_callback(lambda _done: self._looking.pop(name))
        return looking

    async def _learn(self, name: str, port: int, look_up: LookUp) -> None:
        found = tuple(await look_up(name, port))
        until_s = asyncio.get_running_loop().time() + (_NAME_S if found else _NOT_FOUND_S)
        self._names[name] = found, until_s
        self._names.move_to_end(name)
        while len(self._names) > _MOST_NAMES:
            self._names.popitem(last=False)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            await self._read()

    async def _read(self) -> None:
        before, now = self._rules, asyncio.get_running_loop().time()
        try:
            self._rules = await asyncio.to_thread(self._client.rules)
        except CedosError:  # none there, another version, not ours to ask
            self._rules = ()
        other = [each.rule for each in before] != [each.rule for each in self._rules]
        old = bool(self._rules) and now - self._told_s > _NAME_S
        self._due |= other or old
        # Whoever is told looks a name up, perhaps, while there is no network yet.
        free = self._telling is None or self._telling.done()
        if self._changed is not None and self._due and free:
            self._due, self._told_s = False, now
            self._telling = asyncio.get_running_loop().create_task(self._tell(self._changed))

    @staticmethod
    async def _tell(changed: Callable[[], Awaitable[None]]) -> None:
        await changed()
