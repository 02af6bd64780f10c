"""Looks at the living flows: often while a transfer is under way, and tells when one is late.

Late is a network that is silent, a transfer that stands still, and one of which nothing has come for
twice the time that it was expected to take; that is told again with every look (dissertation, 4.4.3.1).

A look is one dump of the sockets (half a millisecond for a few). Between looks nothing is polled:
openings, ends and sizes come as events.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from cedos.daemon.aligned_sleep import aligned_sleep
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.daemon.networks.observer import Observer
from cedos.model import Context, Direction
from cedos.monitor.events import FlowSample, FlowSnapshots
from cedos.monitor.liveness.silence import RoundTrips, Silence
from cedos.profiler.profiler import Profiler

_log = structlog.get_logger(__name__)

CLOSE_S = 0.2
"""Between looks while a transfer is under way."""

_SHARE = 30.0
"""A look that took long is followed by a pause of so many times that: at most 3 % of a core."""


class FlowSampler:
    """Samples the flows, and finds what is late.

    Args:
        changed: called when there is a reason to decide again at once (True), or a look has passed.
        interval_s: between looks while nothing is under way, and between decisions while it is.
    """

    def __init__(
        self,
        source: FlowSnapshots,
        flows: LivingFlows,
        observer: Observer,
        profiler: Profiler,
        changed: Callable[[bool], None],
        interval_s: float,
    ) -> None:
        self._source = source
        self._flows = flows
        self._observer = observer
        self._profiler = profiler
        self._changed = changed
        self._interval_s = interval_s
        self._silence = Silence()
        self._silent: frozenset[str] = frozenset()
        self._stalled: frozenset[int] = frozenset()
        self._told_at_s = 0.0

    async def run(self) -> None:
        pause_s: float | None = None
        while True:
            await (aligned_sleep(self._interval_s) if pause_s is None else asyncio.sleep(pause_s))
            pause_s = None
            asked = self._observer.asked_at_s()
            if not (len(self._flows) or asked or self._silent):
                # What has ended since the last look counts from then, not from the next flow's on.
                self._observer.observe_delivery([], time.monotonic())
                continue
            began_s = time.monotonic()
            try:
                samples = await self._source.snapshot()
            except (OSError, TimeoutError) as error:
                _log.warning("the sockets cannot be looked at", why=str(error))
                continue
            now_s = time.monotonic()
            self._take(samples, asked, now_s)
            if asked or self._silent or any(flow.under_way for flow in self._flows):
                took_s = time.monotonic() - began_s
                pause_s = min(self._interval_s, max(CLOSE_S, _SHARE * took_s))

    def _take(
        self, samples: Sequence[FlowSample], asked_at_s: dict[str, float], now_s: float
    ) -> None:
        # A look that is a little early counts, or every second one would be late.
        told = now_s - self._told_at_s >= self._interval_s - CLOSE_S / 2
        at_home = self._flows.at_home(samples)
        self._observer.observe_delivery(at_home, now_s)
        self._observer.observe_answers(at_home)
        if len(at_home) < len(samples):
            self._observer.answered_elsewhere(self._flows.elsewhere(samples))
        if told:
            self._told_at_s = now_s
            self._observer.observe_flows(at_home)
        seen, context = self._flows.on_samples(samples, now_s), self._observer.context()
        for flow in seen:
            carried = flow.carried_bytes(Direction.DOWN), flow.carried_bytes(Direction.UP)
            for learned in self._profiler.progressed(flow.key, *carried, now_s):
                self._flows.on_size(learned)
            network, transfer = flow.small_on, flow.transfer
            if network is not None and transfer is not None and flow.alone_on(network, context):
                waited_s = now_s - flow.started_at_s
                self._observer.waits(network, transfer.size.median_bytes, waited_s)
        urgent = self._listen(asked_at_s, self._observer.context(), now_s)
        stalled = frozenset(id(flow) for flow in self._flows if flow.rate_bps == 0.0)
        urgent = urgent or not stalled <= self._stalled
        self._stalled = stalled
        overdue = [flow for flow in self._flows if flow.overdue(now_s)]
        urgent = urgent or bool(overdue)
        if urgent or told:
            self._changed(urgent)

    def _listen(self, asked_at_s: dict[str, float], context: Context, now_s: float) -> bool:
        """Note which networks are silent; return whether others are than before."""
        rtts = {
            name: known["rtt_s"] for name, known in context.networks.items() if "rtt_s" in known
        }
        silent = self._silence.check(
            self._flows.path_waits(),
            asked_at_s,
            {name: rtt.measured_at_s for name, rtt in rtts.items()},
            {
                name: RoundTrips(rtt.value, context.networks[name].get("rtt_min_s", rtt).value)
                for name, rtt in rtts.items()
            },
            now_s,
        )
        self._observer.silent(silent, self._silence.pauses(now_s), now_s)
        before, self._silent = self._silent, frozenset(silent)
        return before != self._silent
