"""Hosts under a user's rules (`cedos rule`): the proxy leaves their connections to the kernel."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cedos.api.client import ControlClient
from cedos.api.rules import RuleMessage
from cedos.commands.rule import applies
from cedos.errors import CedosError

_ASK_S: Final = 2.0
_TIMEOUT_S: Final = 1.0


class RuledHosts:
    """Follows the rules of the daemon behind a control socket, until `close`; none without a daemon.

    A session with a gateway carries everything over whatever networks are best for all of it, so what
    a rule is about has to go direct, where the daemon leads it as its rule says.
    """

    def __init__(self, socket: Path) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._rules: Sequence[RuleMessage] = ()
        self._following: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Returns when the rules are known; from then on it looks by itself."""
        await self._read()
        self._following = asyncio.get_running_loop().create_task(self._follow())

    def covers(self, host: str, port: int) -> bool:
        """Whether a rule is about this; a name's addresses are not looked up for it."""
        return bool(self._rules) and applies(self._rules, host, port, lambda _host: ()) is not None

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(_ASK_S)
            await self._read()

    async def _read(self) -> None:
        try:
            self._rules = await asyncio.to_thread(self._client.rules)
        except CedosError:  # none there, another version, not ours to ask
            self._rules = ()
