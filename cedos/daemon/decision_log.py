"""Decisions that were carried out: the last in memory, all in the history.

The explanation of a flow: where it is now and why, and how it began.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from cedos.api.messages import DecisionMessage, NowMessage, flow_matches
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.told_connections import ToldConnections
from cedos.errors import NotFoundError
from cedos.logs import get_logger
from cedos.model import CarriedConnection, Context, Decision, Network, Strategy
from cedos.selector.decision.liveness import silent_s, why_dead
from cedos.selector.decision.reason import seconds
from cedos.storage.history import History

_log = get_logger(__name__)
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
            found = await self.with_number(number)
            if found is not None:
                return found
        for decision in reversed(self._recent.values()):
            transfer = decision.transfer
            if transfer.flow and flow_matches(flow, transfer.flow, transfer.server_name):
                return decision
        # What was decided about an earlier flow of these ports does not explain one that lives.
        return None if meant else await asyncio.to_thread(self._from_history, flow)

    async def with_number(self, number: int) -> Decision | None:
        """Return the decision with this number, as far as it is remembered."""
        return self._recent.get(number) or await asyncio.to_thread(self._with_number, number)

    def recent(self, number: int) -> Decision | None:
        """Return one of the last decisions; None: it is not among them."""
        return self._recent.get(number)

    def _with_number(self, number: int) -> Decision | None:
        if self._history is None:
            return None
        return next(iter(self._history.decisions(1, number=number)), None)

    def _from_history(self, flow: str | None) -> Decision | None:
        history = self._history
        if history is None:
            return None
        if flow is not None and _is_number(flow) and (numbered := self._with_number(int(flow))):
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


@dataclass(frozen=True, slots=True)
class Explanations:
    """The explanations of flows and of connections through gateways, by what the daemon keeps."""

    log: DecisionLog
    living: LivingFlows
    carried: ToldConnections
    ruled: Callable[[str], Decision | None] = lambda _: None
    """Returns the decision of the user's rule for a host, as a person names it; None: no rule."""

    async def of(
        self, flow: str | None, now_unix_s: float, context: Context, networks: Sequence[Network]
    ) -> DecisionMessage:
        """Return the decision about `flow` (named as in `Backend.explain`); None: the latest one.

        A living flow of this host comes first, then the rule of the host that is named, then what is
        known last. The decision of a living one has `now`, and `began` where the first decision was
        another one.

        Raises:
            NotFoundError: there is none.
        """
        decision = await self.log.find(flow, self.living)
        if flow is None or (decision is not None and flow == str(decision.number)):
            if decision is None:
                raise NotFoundError("nothing was decided yet")
            return DecisionMessage.of(decision)
        lives = next((each for each in self.living if _is_meant(each, flow)), None)
        if lives is not None and decision is None:
            raise NotFoundError(
                f"nothing was decided about {flow}: it began before this daemon did, its program"
                " chose the network itself, or the host's own default carries it (`cedos status`)"
            )
        if lives is None:
            rule = self.ruled(flow) if self.carried.lives(flow) is None else None
            if rule is not None:
                return DecisionMessage.of(rule)
            through = await self.carried.find(flow, now_unix_s)
            if through and (
                decision is None or decision.made_unix_s < (through.ended_unix_s or now_unix_s)
            ):
                return await self._through_a_gateway(flow, through, context, networks)
        if decision is None:
            raise NotFoundError(
                f"no decision about {flow} is known. `cedos status` lists the flows that live;"
                " `cedos explain` alone shows the latest decision"
            )
        message = DecisionMessage.of(decision)
        if lives is None or lives.decision != decision.number:
            return message
        now = _describe_now(lives.carriers, decision.choice.networks, context, networks)
        if lives.token is None and now.why:
            now = msgspec.structs.replace(now, why=f"{now.why}. {_STAYS}")
        return await self._standing(message, now, lives.first_decision)

    async def _standing(
        self, message: DecisionMessage, now: NowMessage, first: int | None
    ) -> DecisionMessage:
        began = None
        if first not in (None, message.number) and (
            found := await self.log.with_number(first or 0)
        ):
            began = DecisionMessage.of(found)
        return msgspec.structs.replace(message, now=now, began=began)

    async def _through_a_gateway(
        self,
        flow: str,
        connection: CarriedConnection,
        context: Context,
        networks: Sequence[Network],
    ) -> DecisionMessage:
        gateway, number = connection.gateway, connection.decision
        if number is None:
            raise NotFoundError(
                f"{flow} is reached through {gateway}; nothing was decided yet about such data there"
            )
        decision = await self.log.with_number(number)
        if decision is None:
            raise NotFoundError(
                f"{flow} is reached through {gateway}; decision {number} about such data is forgotten"
            )
        message = DecisionMessage.of(decision, gateway=gateway)
        if (lives := self.carried.lives(flow)) is None:
            return message
        carriers, first_decision = lives
        now = _describe_now(carriers, decision.choice.networks, context, networks)
        return await self._standing(message, now, first_decision)


_STAYS = "A connection that is not MPTCP stays on the network where it began"


def _is_meant(flow: LivingFlow, wanted: str) -> bool:
    return any(flow_matches(wanted, key, flow.server_name) for key in flow.paths)


def _describe_now(
    carriers: Sequence[str],
    chosen: Iterable[str],
    context: Context,
    networks: Sequence[Network],
) -> NowMessage:
    """Return the networks of a flow now, and why it is not on those that were chosen, or stands still.

    `carriers`: those over which data came lately.
    """
    up = {each.name for each in networks if each.up}
    faults = []
    for name in dict.fromkeys([*chosen, *carriers]):
        if name not in up:
            faults.append(f"{name} is not up")
        elif (silence_s := silent_s(context, name)) > 0.0:
            faults.append(f"{name} has not replied for {seconds(silence_s)}")
        elif (dead := why_dead(context, name)) is not None:
            faults.append(dead)
    return NowMessage(networks=list(carriers), why=". ".join(faults))
