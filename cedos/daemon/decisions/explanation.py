"""The explanation of a flow: where it is now and why, and how it began."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from cedos.api.messages import DecisionMessage, NowMessage, flow_matches
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.decisions.decision_log import DecisionLog
from cedos.daemon.told_connections import ToldConnections
from cedos.errors import NotFoundError
from cedos.model import CarriedConnection, Context, Decision, Network
from cedos.selector.decision.liveness import silent_s, why_dead
from cedos.selector.decision.reason import seconds


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
        now = _now(lives.carriers, decision.choice.networks, context, networks)
        if lives.token is None and now.why:
            now = msgspec.structs.replace(now, why=f"{now.why}. {_STAYS}")
        return await self._standing(message, now, lives.first_decision)

    async def _standing(
        self, message: DecisionMessage, now: NowMessage, first: int | None
    ) -> DecisionMessage:
        began = None
        if first not in (None, message.number) and (found := await self.log.numbered(first or 0)):
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
        decision = await self.log.numbered(number)
        if decision is None:
            raise NotFoundError(
                f"{flow} is reached through {gateway}; decision {number} about such data is forgotten"
            )
        message = DecisionMessage.of(decision, gateway=gateway)
        lives = self.carried.lives(flow)
        if lives is None:
            return message
        now = _now(lives.carriers, decision.choice.networks, context, networks)
        return await self._standing(message, now, lives.first_decision)


_STAYS = "A connection that is not MPTCP stays on the network where it began"


def _is_meant(flow: LivingFlow, wanted: str) -> bool:
    return any(flow_matches(wanted, key, flow.server_name) for key in flow.paths)


def _now(
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
