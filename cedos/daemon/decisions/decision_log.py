"""Decisions that were carried out: the last in memory, all in the history."""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable

import structlog

from cedos.api.messages import flow_matches
from cedos.controller.flows.living_flows import LivingFlows
from cedos.model import Decision, Strategy
from cedos.storage.history import History

_log = structlog.get_logger(__name__)

_RECENT = 200


class DecisionLog:
    """Takes decisions and finds them again."""

    def __init__(self, history: History | None) -> None:
        self._history = history
        self._recent: dict[int, Decision] = {}
        self._choices: OrderedDict[Hashable, Strategy] = OrderedDict()

    @property
    def next_number(self) -> int:
        """Return the first number that no kept decision has."""
        return self._history.next_number if self._history is not None else 1

    def record(self, decision: Decision) -> None:
        if self._history is not None:
            self._history.add_decision(decision)
        self._recent[decision.number] = decision
        if len(self._recent) > _RECENT:
            del self._recent[next(iter(self._recent))]
        # At the usual level the log has changes only: programs ask every few seconds.
        log = _log.info if self._changes(decision) else _log.debug
        log("decided", choice=str(decision.choice), why=decision.reason)

    def _changes(self, decision: Decision) -> bool:
        """Return whether the last decision for the same destination and label chose otherwise.

        A decision about one flow changes nothing for others.
        """
        transfer = decision.transfer
        if transfer.flow is not None:
            return False
        subject = transfer.server_name, transfer.label, transfer.direction
        before = self._choices.pop(subject, None)
        self._choices[subject] = decision.choice
        if len(self._choices) > _RECENT:
            self._choices.popitem(last=False)
        return decision.choice != before

    async def find(self, flow: str | None, living: LivingFlows) -> Decision | None:
        """Return the latest decision about a flow (`Backend.explain` says how it is named), or of all."""
        if flow is None:
            if self._recent:
                return next(reversed(self._recent.values()))
            return await asyncio.to_thread(self._from_history, None)
        if _is_number(flow) and int(flow) in self._recent:
            return self._recent[int(flow)]
        meant = [
            each
            for each in living
            if any(flow_matches(flow, key, each.server_name) for key in each.paths)
        ]
        for number in [each.decision for each in meant if each.decision is not None]:
            found = await self.numbered(number)
            if found is not None:
                return found
        for decision in reversed(self._recent.values()):
            transfer = decision.transfer
            if transfer.flow and flow_matches(flow, transfer.flow, transfer.server_name):
                return decision
        # What was decided about an earlier flow of these ports does not explain one that lives.
        return None if meant else await asyncio.to_thread(self._from_history, flow)

    async def numbered(self, number: int) -> Decision | None:
        """Return the decision with this number, as far as it is remembered."""
        return self._recent.get(number) or await asyncio.to_thread(self._numbered, number)

    def choice(self, number: int) -> Strategy | None:
        """Return what one of the last decisions chose; None: it is not among them."""
        decision = self._recent.get(number)
        return decision.choice if decision is not None else None

    def reason(self, number: int | None) -> str | None:
        """Return the reason of one of the last decisions; None: it is not among them."""
        decision = self._recent.get(number or 0)
        return decision.reason if decision is not None else None

    def _numbered(self, number: int) -> Decision | None:
        if self._history is None:
            return None
        return next(iter(self._history.decisions(1, number=number)), None)

    def _from_history(self, flow: str | None) -> Decision | None:
        history = self._history
        if history is None:
            return None
        if flow is not None and _is_number(flow) and (numbered := self._numbered(int(flow))):
            return numbered
        for decision in history.decisions(1, flow=flow):
            return decision
        for record in history.flows(1, flow=flow) if flow else ():
            if record.decision is not None:
                return next(iter(history.decisions(1, number=record.decision)), None)
        return None


def _is_number(flow: str) -> bool:
    """Tell whether a text is a number that the history can have."""
    return flow.isdecimal() and len(flow) <= 18
