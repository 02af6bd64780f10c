"""A loop that decides again when the observer's facts changed, a network died or a caller asks for it."""

import asyncio
import math
import time
from collections.abc import Iterable

import structlog

from cedos.config import Config
from cedos.daemon.decisions.director import Director
from cedos.daemon.decisions.rescue import Rescuer
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.daemon.networks.observer import Observer
from cedos.errors import CedosError
from cedos.model import Context
from cedos.selector.decision.features import RATES
from cedos.selector.decision.liveness import dead_networks
from cedos.selector.objective import Objective
from cedos.steer.steering import Steering


def measured_paths(
    context: Context, flows: Iterable[LivingFlow] = ()
) -> dict[str, tuple[float, float]]:
    """Return network -> (highest recent rate in bit/s, round trip in s), where both are known.

    The round trip is the least one of the network, or that of a living flow which receives data, if that
    is longer: servers are often farther away than the host that answers pings.
    """
    longest_s: dict[str, float] = {}
    for flow in flows:
        for path in flow.paths.values():
            sample = path.sample
            if path.network and sample and sample.rtt_min_s and sample.bytes_down:
                longest_s[path.network] = max(sample.rtt_min_s, longest_s.get(path.network, 0.0))
    found = {}
    for name, known in context.networks.items():
        rates = [known[key].value for key in RATES if key in known]
        if rates and "rtt_min_s" in known:
            rtt_s = max(known["rtt_min_s"].value, longest_s.get(name, 0.0))
            found[name] = (max(rates), rtt_s)
    return found


_log = structlog.get_logger(__name__)

_CHANGED_AT_MOST_S = 0.1
"""The least time between two looks at the facts, so that a burst of changes is one look."""


class Wakeup:
    """A signal to the decision loop that there may be a reason to decide again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._urgent = False

    def wake(self, urgent: bool = False) -> None:
        """Wake the loop, which judges whether to decide; `urgent`: it decides in any case."""
        self._urgent = self._urgent or urgent
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()

    def clear(self) -> None:
        """Make `wait` wait for the next `wake`. Urgency stays until `take_urgent`."""
        self._event.clear()

    def take_urgent(self) -> bool:
        """Return whether an urgent wake came since the last call."""
        urgent, self._urgent = self._urgent, False
        return urgent


class DecisionLoop:
    """The loop: at each wake it looks at the context, and decides again if there is a reason."""

    def __init__(
        self,
        wakeup: Wakeup,
        config: Config,
        observer: Observer,
        flows: LivingFlows,
        director: Director,
        rescuer: Rescuer,
        steering: Steering,
    ) -> None:
        self._idle_interval_s = config.decision.idle_interval_s
        self._short_queues = config.steering.short_queues
        self._observer = observer
        self._flows = flows
        self._director = director
        self._rescuer = rescuer
        self._steering = steering
        self._wakeup = wakeup
        self._dead: frozenset[str] = frozenset()
        self._decided_at_s = -math.inf

    def prefer(self, objective: Objective, urgent: bool) -> None:
        """Take the objective of later decisions.

        Decide at once if `urgent`, or if the objective changed and its prices did not.
        """
        decider = self._director.decider
        before = decider.objective
        decider.prefer(objective)
        # Prices change all the time. A change of prices waits for the next decision.
        if urgent or (objective.prices == before.prices and objective != before):
            self._wakeup.wake(urgent=True)

    async def run(self) -> None:
        woken_at_s = -math.inf
        while True:
            await self._wakeup.wait()
            # Wait before the look. A wait after it would wake a host at rest, for nothing.
            if (early_s := woken_at_s + _CHANGED_AT_MOST_S - time.monotonic()) > 0.0:
                await asyncio.sleep(early_s)
            woken_at_s = time.monotonic()
            self._wakeup.clear()
            context = self._observer.context()
            self._rescuer.context_changed(context)
            portals = self._director.ruled.rules.portals(self._observer.portals.on_the_way())
            if self._due(context, urgent=portals):
                async with self._director.turn:
                    await self._director.reconsider(context)
                    if self._short_queues:
                        await self._bound_queues(context)

    def _due(self, context: Context, *, urgent: bool) -> bool:
        """Return whether to decide now; if so, note the time.

        While no flow lives, there is a decision every `idle_interval_s`, and at once if a network died or
        came back, or there is an urgent reason.
        """
        dead = frozenset(dead_networks(context, self._director.networks))
        urgent = self._wakeup.take_urgent() or urgent or dead != self._dead
        self._dead = dead
        interval_s = 0.0 if len(self._flows) else self._idle_interval_s
        if not urgent and context.at_s - self._decided_at_s < interval_s:
            return False
        self._decided_at_s = context.at_s
        return True

    async def _bound_queues(self, context: Context) -> None:
        """Limit the receive buffers to the measured rates (`[steering] short_queues`)."""
        try:
            await self._steering.paths_measured(measured_paths(context, self._flows))
        except CedosError as error:
            _log.warning("the queues cannot be bounded", why=str(error))
