"""Keeps what is ours in the kernel as it is to be: what others take out is back within a second.

Rules and routes are told of by the kernel, and so is a packet filter on nf_tables; sysctls and an
older packet filter are looked at once a second.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.host.steer.held_sysctls import HeldSysctls
from cedos.host.steer.packet_filter import PacketFilter

_log = structlog.get_logger(__name__)

_PERIOD_S: Final = 1.0
# The least time between two looks at the packet filter, which others may change often, and the
# same while a wall stands.
_REST_S, _BARRED_REST_S = 0.25, 0.02


class Repairs:
    """Runs until it is cancelled.

    Args:
        also: what else is looked at once a second.
        problem: told of a topic's problem, in words; None: it has none.
    """

    def __init__(
        self,
        packet_filter: PacketFilter,
        sysctls: HeldSysctls,
        also: Callable[[], None],
        problem: Callable[[str, str | None], None],
    ) -> None:
        self._filter = packet_filter
        self._sysctls = sysctls
        self._also = also
        self._problem = problem
        self._changed = asyncio.Event()
        self._failing = False

    def filter_changed(self) -> None:
        """Repair the second wall at once and the packet filter soon."""
        self._raise_wall()  # no matter of iptables, and thus of no time
        self._changed.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # On the beat on which others wake, too.
            rest_s = _PERIOD_S - loop.time() % _PERIOD_S
            try:
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()
            except TimeoutError:
                self._problem("sysctls", "; ".join(self._sysctls.repaired()) or None)
                self._raise_wall()
                self._also()
            if self._changed.is_set() or self._failing or not self._filter.told:
                self._changed.clear()
                await self._repair()
                await asyncio.sleep(_BARRED_REST_S if self._filter.plan.barred else _REST_S)

    def _raise_wall(self) -> None:
        self._problem("wall", self._filter.raise_wall())

    async def _repair(self) -> None:
        try:
            repaired = await self._filter.repaired()
        except (OSError, HostError) as error:
            self._failing = True
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._problem("repair", f"the packet filter cannot be put back: {why}")
            return
        self._failing = False
        self._problem("repair", None)
        if repaired:
            _log.warning("another program took out chains of the packet filter; they are back")
