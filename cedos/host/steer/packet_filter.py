"""The packet filter as it is to be: put in, looked at and repaired, never in the event loop.

iptables is a program that may wait for its lock, or for a processor. One thread calls it, one call after
the other, so that what is asked for last is also done last, even if no caller waits for it any more.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import structlog

from cedos.errors import HostError
from cedos.host.steer.journal.records import FILTER, Append, change_sysctl
from cedos.host.steer.journal.sysctls import CONNTRACK_ACCOUNTING
from cedos.host.steer.kernel.interface import FilterPlan, SteeringKernel

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class PacketFilter:
    """The packet filter as the daemon wants it. Make it within the event loop.

    `told`: whether the kernel tells when something of it goes; else one has to look.
    """

    def __init__(self, kernel: SteeringKernel) -> None:
        self._kernel = kernel
        self._worker = ThreadPoolExecutor(1, "iptables")
        self._plan = FilterPlan()
        self.told = False

    @property
    def plan(self) -> FilterPlan:
        return self._plan

    async def do(self, act: Callable[[], _T]) -> _T:
        """Do something that may wait, after all that was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, act)

    async def stand(self, *, track: bool, rescue: bool, on_change: Callable[[], None]) -> None:
        """Put this much in, and watch it."""
        self._plan = replace(self._plan, track=track, rescue=rescue)
        try:
            self._kernel.watch_filter(on_change)
            self.told = await self.do(self._kernel.filter_is_told)
        except (OSError, HostError) as error:
            _log.debug("the packet filter is looked at", why=str(error))

    async def bar(self, interfaces: Sequence[str]) -> None:
        """Bar these interfaces and no others. OSError: refused; it is tried again by `repaired`."""
        wanted = tuple(interfaces)
        self._plan = replace(self._plan, barred=wanted)
        await self.do(lambda: self._kernel.bar(wanted))

    async def hold_answers(self, on: bool) -> None:
        """Let answers to look-ups wait to be read, or pass. OSError: the packet filter cannot."""
        before = self._plan.holds
        # The plan first: a repair that hears of the change would take it for another program's.
        self._plan = replace(self._plan, holds=on)
        try:
            await self.do(lambda: self._kernel.hold_answers(on))
        except (OSError, HostError):
            self._plan = replace(self._plan, holds=before)
            raise

    def raise_wall(self) -> str | None:
        """Put the second wall of barred networks back at once; return what keeps it away, in words."""
        if not self._plan.barred:
            return None
        try:
            if self._kernel.raise_wall(self._plan.barred):
                _log.debug("the second wall has been put up", at=self._plan.barred)
        except (OSError, HostError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return f"blocked networks have one wall only, which `iptables -F` opens: {why}"
        return None

    def leave(self) -> None:
        """Repair nothing any more: all of it is about to be undone."""
        self._plan = FilterPlan()

    async def repaired(self) -> bool:
        """Put back what others took out; return whether there was something. Errors: OSError."""
        if not self._plan:
            return False
        plan = self._plan
        return await self.do(lambda: self._kernel.repair_filter(plan))

    def close(self) -> None:
        """Do nothing any more once what was asked for is done."""
        self._worker.shutdown(wait=False)


def track_flows(kernel: SteeringKernel, append: Append) -> None:
    """Make the kernel track flows and count their bytes, for the monitor. HostError: no iptables."""
    append(FILTER)
    try:
        kernel.track_flows()
    except OSError as error:
        raise HostError(
            f"iptables cannot be used ({error.strerror}), so flows are not counted"
        ) from error
    change_sysctl(kernel, append, CONNTRACK_ACCOUNTING, "1")
