"""What the daemon answers on its control socket."""

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from cedos.api.broadcast import Broadcast
from cedos.api.budgets import BudgetMessage
from cedos.api.choosing import ChoiceRequest
from cedos.api.hints import HintAccepted, HintRequest, program_mark
from cedos.api.messages import (
    DecisionMessage,
    DefaultMessage,
    FlowMessage,
    NetworkMessage,
    ProbesMessage,
    StatusMessage,
    SubflowMessage,
    flow_matches,
    flow_text,
)
from cedos.api.prefetching import PrefetchingAnswer, PrefetchingRequest, ProgramMessage
from cedos.api.probing import ProbingMessage
from cedos.daemon.budgets import messages
from cedos.daemon.budgets.hard_budgets import HardBudgets
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.prefetching import Prefetching
from cedos.daemon.decisions.director import Director
from cedos.daemon.flows.living_flow import LivingFlow
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.daemon.networks.adaptive_probing import AdaptiveProbing
from cedos.errors import ConfigError, NotFoundError
from cedos.model import Budget, Context, Decision, SizeEstimate, Transfer
from cedos.monitor.flows.own_flows import is_own
from cedos.monitor.probing.costs import ProbeCosts
from cedos.profiler.hints import HintMatch, TransferHint
from cedos.profiler.profiler import Profiler
from cedos.storage.history import History

_RECENT = 1000


class ApiBackend:
    """The control socket's backend (`cedos.api.backend.Backend`).

    Attributes:
        budgets: those of this host, once they are there.
        hard_budgets: the hard ones among them, likewise.
        prefetched_by: what programs prefetch, likewise.
        probed_by: who probes, likewise.

    Args:
        director: where new connections go, and why.
        flows: the living flows.
        profiler: takes hints.
        history: what is no longer in memory; None: nothing is kept.
        context: what is known now.
        problems: what is degraded, in words, asked anew each time.
        dry_run: whether nothing is changed.
        config_file: the configuration in use.
        ledger: what probes have cost.
    """

    def __init__(
        self,
        director: Director,
        flows: LivingFlows,
        profiler: Profiler,
        history: History | None,
        context: Callable[[], Context],
        problems: Callable[[], Sequence[str]],
        *,
        dry_run: bool,
        config_file: Path | None = None,
        ledger: ProbeCosts | None = None,
    ) -> None:
        self.decided: Broadcast[DecisionMessage] = Broadcast()
        self.budgets: HostBudgets | None = None
        self.hard_budgets: HardBudgets | None = None
        self.prefetched_by: Prefetching | None = None
        self.probed_by: AdaptiveProbing | None = None
        self._director = director
        self._flows = flows
        self._profiler = profiler
        self._history = history
        self._context = context
        self._problems = problems
        self._dry_run = dry_run
        self._config_file = config_file
        self._ledger = ledger or ProbeCosts()
        self._started_at_s = time.monotonic()
        self._recent: dict[int, Decision] = {}
        self._programs: dict[int, int] = {}
        self._hinted: dict[int, tuple[str, int | None]] = {}
        self._last_program = 0

    def recorded(self, decision: Decision) -> None:
        """Takes a decision that was just made."""
        self._recent[decision.number] = decision
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        if self.decided.subscribers:
            self.decided.publish(DecisionMessage.of(decision))

    async def status(self) -> StatusMessage:
        """See `Backend.status`."""
        return StatusMessage(
            version=version("cedos"),
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._started_at_s,
            dry_run=self._dry_run,
            objective=self._director.decider.objective.name,
            networks=await self.networks(),
            default=self._default(),
            flows=await self.flows(),
            problems=list(self._problems()),
            budget_problems=[
                *(self.budgets.problems if self.budgets else ()),
                *(self.hard_budgets.problems if self.hard_budgets else ()),
            ],
            decisions=self._director.decider.decisions,
            probes=[
                ProbesMessage(
                    network=network,
                    kind=kind,
                    probes=total.probes,
                    failed=total.failed,
                    bytes_up=total.bytes_up,
                    bytes_down=total.bytes_down,
                    seconds=total.seconds,
                    energy_j=total.energy_j,
                )
                for network, kind, total in self._ledger
            ],
            config_file=str(self._config_file) if self._config_file else None,
        )

    async def networks(self) -> list[NetworkMessage]:
        """See `Backend.networks`."""
        context = self._context()
        barred = self._director.decider.barred
        return [
            NetworkMessage.of(network, context, context.at_s, barred.get(network.name, ""))
            for network in self._director.networks
        ]

    async def flows(self) -> list[FlowMessage]:
        """See `Backend.flows`."""
        now_s = time.monotonic()
        return [_message(flow, now_s) for flow in self._flows if not is_own(flow.key)]

    async def explain(self, flow: str | None) -> DecisionMessage:
        """See `Backend.explain`."""
        decision = await self._find(flow)
        if decision is None:
            about = f"about {flow!r}" if flow else "yet"
            raise NotFoundError(f"no decision {about} is known; `cedos status` lists living flows")
        return DecisionMessage.of(decision)

    async def standing_budgets(self) -> list[BudgetMessage]:
        """See `Backend.standing_budgets`."""
        if self.budgets is None:
            return []
        if self.hard_budgets is None:
            return messages.messages(self.budgets)
        hard = self.hard_budgets
        return messages.messages(self.budgets, hard.barred_by, hard.unkept)

    async def set_budget(self, budget: Budget) -> BudgetMessage:
        """See `Backend.set_budget`."""
        if self.budgets is None:
            raise ConfigError("the daemon has only just started; try again")
        await self.budgets.set(budget)
        if self.hard_budgets is not None:
            self.hard_budgets.look()  # at once, so that the answer tells of it
        return next(each for each in await self.standing_budgets() if each.name == budget.name)

    async def remove_budget(self, name: str) -> None:
        """See `Backend.remove_budget`."""
        if self.budgets is not None:
            self.budgets.remove(name)
        if self.hard_budgets is not None:
            self.hard_budgets.look()

    async def choose(self, request: ChoiceRequest) -> DecisionMessage:
        """See `Backend.choose`."""
        async with self._director.turn:
            decision = self._director.decider.choose(
                request.transfer,
                self._context(),
                redundant=request.redundant,
                multipath=request.multipath,
            )
        return DecisionMessage.of(decision)

    async def prefetching(self, request: PrefetchingRequest) -> PrefetchingAnswer:
        """See `Backend.prefetching`."""
        if self.prefetched_by is None:
            raise ConfigError("the daemon has only just started; try again")
        return self.prefetched_by.asked(request, await self.networks())

    async def prefetched(self) -> list[ProgramMessage]:
        """See `Backend.prefetched`."""
        return self.prefetched_by.programs() if self.prefetched_by is not None else []

    async def probing(self) -> list[ProbingMessage]:
        """See `Backend.probing`."""
        return self.probed_by.explained() if self.probed_by is not None else []

    async def hint(self, hint: HintRequest) -> HintAccepted:
        """See `Backend.hint`."""
        mark = hint.mark
        if hint.program is not None:
            self._last_program += 1
            mark = program_mark(self._last_program)
        match = HintMatch(
            destination=hint.destination,
            port=hint.port,
            server_name=hint.server_name,
            local_port=hint.local_port,
            mark=mark,
        )
        now_s = time.monotonic()
        number, changed = self._profiler.hint(
            TransferHint(
                match,
                size_bytes=hint.size_bytes,
                direction=hint.direction,
                label=hint.label,
                deadline_s=hint.deadline_s,
                until_s=None if hint.lifetime_s is None else now_s + hint.lifetime_s,
            ),
            now_s,
        )
        for event in changed:
            self._flows.learned(event)
        network = None
        size_bytes = hint.size_bytes
        async with self._director.turn:
            if hint.destination is not None and size_bytes is not None:
                self._hinted[number] = (hint.destination, hint.port)
                network = await self._director.destinations.hinted(
                    hint.destination,
                    hint.port,
                    SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"),
                    hint.direction,
                    math.inf if hint.lifetime_s is None else now_s + hint.lifetime_s,
                    self._context(),
                )
            if hint.program is not None and mark is not None:
                self._programs[number] = mark
                size_bytes = size_bytes or self._director.decider.choices.default_size_bytes
                transfer = Transfer(
                    SizeEstimate(size_bytes, size_bytes, size_bytes, "hint"),
                    hint.direction,
                    hint.label,
                    hint.deadline_s,
                    server_name=hint.program,
                )
                network = await self._director.programs.began(mark, transfer, self._context())
        return HintAccepted(number=number, network=network, mark=mark)

    async def unhint(self, number: int) -> None:
        """See `Backend.unhint`."""
        if not self._profiler.unhint(number):
            raise NotFoundError(f"there is no hint {number}")
        async with self._director.turn:
            if (mark := self._programs.pop(number, None)) is not None:
                await self._director.programs.ended(mark)
            if (place := self._hinted.pop(number, None)) is not None:
                await self._director.destinations.hint_ended(*place, self._context())

    def decisions(self) -> AsyncGenerator[DecisionMessage, None]:
        """See `Backend.decisions`."""
        return self.decided.subscribe()

    def _default(self) -> DefaultMessage:
        decision = self._director.default.decision
        if decision is None:
            return DefaultMessage(network=None, reason="nothing has been decided yet")
        networks = decision.choice.networks
        return DefaultMessage(
            network=networks[0] if networks else None,
            reason=decision.reason,
            age_s=max(0.0, time.monotonic() - decision.context.at_s),
            decision=decision.number,
        )

    async def _find(self, flow: str | None) -> Decision | None:
        if flow is None:
            if self._recent:
                return next(reversed(self._recent.values()))
            return await self._from_history()
        if flow.isdecimal() and int(flow) in self._recent:
            return self._recent[int(flow)]
        for living in self._flows:
            meant = any(flow_matches(flow, key, living.server_name) for key in living.paths)
            if meant and living.decision in self._recent:
                return self._recent[living.decision]
        for decision in reversed(self._recent.values()):
            transfer = decision.transfer
            if transfer.flow and flow_matches(flow, transfer.flow, transfer.server_name):
                return decision
        return await self._from_history(flow)

    async def _from_history(self, flow: str | None = None) -> Decision | None:
        history = self._history
        if history is None:
            return None

        def look() -> Decision | None:
            if flow is not None and flow.isdecimal():
                for decision in history.decisions(1, number=int(flow)):
                    return decision
            for decision in history.decisions(1, flow=flow):
                return decision
            for record in history.flows(1, flow=flow) if flow else ():
                if record.decision is not None:
                    return next(iter(history.decisions(1, number=record.decision)), None)
            return None

        return await asyncio.to_thread(look)


def _message(flow: LivingFlow, now_s: float) -> FlowMessage:
    primary = flow.strategy.networks if flow.strategy else ()
    return FlowMessage(
        flow=flow_text(flow.key),
        strategy=flow.strategy,
        subflows=[
            SubflowMessage(
                flow=flow_text(path.key),
                network=path.network,
                backup=flow.token is not None and path.network not in primary,
                rtt_s=path.sample.rtt_s if path.sample else None,
                delivery_rate_bps=path.sample.delivery_rate_bps if path.sample else None,
            )
            for path in flow.paths.values()
            if path.closed is None
        ],
        token=flow.token,
        server_name=flow.server_name,
        age_s=now_s - flow.started_at_s,
        bytes_down=sum(path.bytes_down for path in flow.paths.values()),
        bytes_up=sum(path.bytes_up for path in flow.paths.values()),
        size=flow.transfer.size if flow.transfer else None,
        decision=flow.decision,
    )
