"""Explain a flow, or a connection through a gateway, by its decision or why there is none."""

from cedos.api.messages import DecisionMessage, flow_matches
from cedos.daemon.decisions.decision_log import DecisionLog
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.daemon.flows.told_connections import ToldConnections
from cedos.errors import NotFoundError
from cedos.model import CarriedConnection


async def explained(
    flow: str | None,
    now_unix_s: float,
    *,
    log: DecisionLog,
    living: LivingFlows,
    carried: ToldConnections,
) -> DecisionMessage:
    """Return the decision about `flow` (named as in `Backend.explain`); None: the latest one.

    A flow of this host that lives comes first, then what is known last.

    Raises:
        NotFoundError: there is none.
    """
    decision = await log.find(flow, living)
    if flow is None or (decision is not None and flow == str(decision.number)):
        if decision is None:
            raise NotFoundError("nothing was decided yet")
        return DecisionMessage.of(decision)
    lives = any(flow_matches(flow, key, each.server_name) for each in living for key in each.paths)
    if lives and decision is None:
        raise NotFoundError(
            f"nothing was decided about {flow}: it began before this daemon did, or its program"
            " chose the network itself"
        )
    if not lives:
        through = await carried.find(flow, now_unix_s)
        if through and (
            decision is None or decision.made_unix_s < (through.ended_unix_s or now_unix_s)
        ):
            return await _through_a_gateway(flow, through, log)
    if decision is None:
        raise NotFoundError(
            f"no decision about {flow} is known. `cedos status` lists the flows that live;"
            " `cedos explain` alone shows the latest decision"
        )
    return DecisionMessage.of(decision)


async def _through_a_gateway(
    flow: str, connection: CarriedConnection, log: DecisionLog
) -> DecisionMessage:
    gateway, number = connection.gateway, connection.decision
    if number is None:
        raise NotFoundError(
            f"{flow} is reached through {gateway}; nothing was decided yet about such data there"
        )
    decision = await log.numbered(number)
    if decision is None:
        raise NotFoundError(
            f"{flow} is reached through {gateway}; decision {number} about such data is forgotten"
        )
    return DecisionMessage.of(decision, gateway=gateway)
