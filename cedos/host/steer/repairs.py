"""Keeps what is ours in the kernel as it is to be: what others take out is back within a second.

Rules and routes are told of by the kernel, and so is a packet filter on nf_tables; sysctls and an
older packet filter are looked at once a second.

The sysctls that we hold at a value: the kernel sends no event when one is set, so they are read.

The packet filter as it is to be: put in, looked at and repaired, never in the event loop.

iptables is a program that may wait for its lock, or for a processor. One thread calls it, one call after
the other, so that what is asked for last is also done last, even if no caller waits for it any more.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

from cedos.errors import HostError
from cedos.host.steer.journal_records import (
    CONNTRACK_ACCOUNTING,
    RETRANSMISSION,
    TCP_IDLE_RESTART,
    TCP_RMEM,
    TCP_RTO_MAX,
    Append,
    Record,
    SysctlRecord,
    change_sysctl,
    is_marked,
)
from cedos.host.steer.kernel.interface import FilterPlan, SteeringKernel
from cedos.logs import get_logger

_log = get_logger(__name__)
_PERIOD_S: Final = 1.0
# The least time between two looks at the packet filter, which others may change often, and the
# same while a wall stands.
_REST_S, _BARRED_REST_S = 0.25, 0.02
# Not held: `ReceiveWindow` changes it all the time.
_OTHERS: Final = (TCP_RMEM,)
_OFTEN, _WITHIN_S = 3, 30.0
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

    async def bar(self, interfaces: Sequence[str], *, alone: bool = True) -> None:
        """Bar these interfaces; `alone`: open all others. OSError: refused; `repair` tries again."""
        wanted = tuple(interfaces)
        self._plan = replace(self._plan, barred=wanted)
        # At once. What lives is reset later, by what it sends again.
        self.raise_wall()

        def act() -> None:
            try:
                self._kernel.bar(wanted)
            finally:
                if alone:  # but those that were barred meanwhile
                    self._kernel.remove_wall(self._plan.barred or ())

        await self.do(act)

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

    async def repair(self) -> bool:
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
    try:
        kernel.track_flows()
    except OSError as error:
        raise HostError(
            f"iptables cannot be used ({error.strerror}), so flows are not counted"
        ) from error
    change_sysctl(kernel, append, CONNTRACK_ACCOUNTING, "1")


class HeldSysctls:
    """`append` is a journal's; `note` is one that remembers what it is told of."""

    def __init__(
        self,
        kernel: SteeringKernel,
        append: Append,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kernel = kernel
        self._append = append
        self._clock = clock
        self._held: dict[str, str] = {}
        self._repaired: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_OFTEN))

    def note(self, record: Record) -> None:
        """Journal a record, and hold its sysctl at the value that it is about to be given.

        What is marked needs no record.
        """
        if not isinstance(record, SysctlRecord) or record.key in _OTHERS:
            self._append(record)
        elif self._held.get(record.key) != record.after:
            if not is_marked(record.key):
                self._append(record)
            self._held[record.key] = record.after

    def release(self, key: str) -> None:
        """Give the sysctl back to the host."""
        self._held.pop(key, None)

    def repair(self) -> Sequence[str]:
        """Put back what another program has set; return what cannot be held, in words."""
        problems = []
        now_s = self._clock()
        for key, value in [*self._held.items()]:
            try:
                now = self._kernel.read_sysctl(key)
                if now is None and is_marked(key):  # the interface has gone, or has another name
                    self.release(key)
                elif now is not None and now.split() != value.split():
                    self._kernel.write_sysctl(key, value)
                    self._repaired[key].append(now_s)
                    _log.warning(
                        "a sysctl was set by another program; it is put back", key=key, to=now
                    )
            except OSError as error:
                problems.append(f"{key} cannot be put back to {value}: {error.strerror}")
            times = self._repaired[key]
            if len(times) == _OFTEN and now_s - times[0] < _WITHIN_S:
                problems.append(
                    f"another program keeps setting {key}, which cedos needs to be {value}: stop it"
                )
        return problems


def bound_retransmission(kernel: SteeringKernel, append: Append) -> bool:
    """Bound the retransmission time-out of new TCP sockets; return whether it was set.

    It doubles with each retransmission, up to two minutes: after an outage of 14 s the next one may be
    12 s away. Linux 6.15 and newer can bound it, and keep their patience by more retransmissions. A
    kernel without the bound, and one in which the user has set any of these sysctls, is left alone.
    """
    usual = all(kernel.read_sysctl(key) == default for key, (default, _) in RETRANSMISSION.items())
    if not usual:
        return False
    # The bound is set last: no connection is given up early in between.
    patience = [key for key in RETRANSMISSION if key != TCP_RTO_MAX]
    for key in (*patience, TCP_RTO_MAX):
        if not change_sysctl(kernel, append, key, RETRANSMISSION[key][1]):
            return False
    return True


def keep_windows(kernel: SteeringKernel, append: Append) -> None:
    """Let TCP connections keep their congestion window over idle times (docs/decisions/streams.md).

    The kernel halves it for each retransmission time-out, some 0.3 s, down to ten packets.
    """
    if kernel.read_sysctl(TCP_IDLE_RESTART) == "1":
        change_sysctl(kernel, append, TCP_IDLE_RESTART, "0")


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
                self._problem("sysctls", "; ".join(self._sysctls.repair()) or None)
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
            repaired = await self._filter.repair()
        except (OSError, HostError) as error:
            self._failing = True
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            self._problem("repair", f"the packet filter cannot be put back: {why}")
            return
        self._failing = False
        self._problem("repair", None)
        if repaired:
            _log.warning("another program took out chains of the packet filter; they are back")
