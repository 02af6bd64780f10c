"""Decisions, flows and carried connections as rows of the history, and back.

Scalars that queries look at have columns of their own; the rest is JSON. To stay compact (a decision
takes about 1.2 KB) indicators and evaluations are arrays:

- `context`: `{"at_s": 1.0, "networks": {NETWORK: {INDICATOR: [value, measured_at_s, flags]}}}`, where
  flags is 1 for active, 2 for synthetic, 3 for both;
- `evaluations`: `[[kind, [network, ...], time_s, time_low_s, time_high_s, energy_j, metered_bytes,
  cost], ...]`.

JSON has no infinity and no NaN; an infinite cost and an unknown indicator become `null`.
"""

from collections.abc import Callable, Sequence
from ipaddress import ip_address
from math import inf, nan
from typing import Any

import msgspec

from cedos.model import (
    CarriedConnection,
    Context,
    Decision,
    Direction,
    Evaluation,
    FlowKey,
    FlowRecord,
    Indicator,
    Label,
    Prediction,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Subflow,
    Transfer,
)

DECISION_COLUMNS = (
    "number", "made_unix_s", "remote", "remote_port", "server_name", "direction", "size_bytes",
    "choice", "objective", "reason", "transfer", "context", "evaluations",
)  # fmt: skip
FLOW_COLUMNS = (
    "ended_unix_s", "remote", "remote_port", "server_name", "decision", "token", "bytes_down",
    "bytes_up", "record",
)  # fmt: skip
CARRIED_COLUMNS = (
    "ended_unix_s", "server", "port", "gateway", "addresses", "bytes_down", "bytes_up", "decision",
    "bytes_by_network",
)  # fmt: skip

Matcher = Callable[[str | None, int | None, str | None], bool]


def decision_row(decision: Decision) -> tuple[Any, ...]:
    """A decision as values of `DECISION_COLUMNS`."""
    transfer = decision.transfer
    context = {
        "at_s": decision.context.at_s,
        "networks": {
            network: {
                name: (each.value, each.measured_at_s, each.active + 2 * each.synthetic)
                for name, each in indicators.items()
            }
            for network, indicators in decision.context.networks.items()
        },
    }
    evaluations = [
        (*_strategy_items(each.strategy), each.time_s, each.time_low_s, each.time_high_s,
         each.energy_j, each.metered_bytes, each.cost)
        for each in decision.evaluations
    ]  # fmt: skip
    return (
        decision.number,
        decision.made_unix_s,
        *decision_target(decision),
        str(transfer.direction),
        transfer.size.median_bytes,
        _text(_strategy_items(decision.choice)),
        decision.objective,
        decision.reason,
        _text(transfer),
        _text(context),
        _text(evaluations),
    )


def decision_of(row: Sequence[Any]) -> Decision:
    """The decision that `decision_row` made the row from."""
    columns = dict(zip(DECISION_COLUMNS, row, strict=True))
    context = msgspec.json.decode(columns["context"])
    return Decision(
        number=columns["number"],
        made_unix_s=columns["made_unix_s"],
        transfer=_transfer(msgspec.json.decode(columns["transfer"])),
        context=Context(
            context["at_s"],
            {
                network: {
                    name: Indicator(_float(value, nan), at_s, bool(flags & 1), bool(flags & 2))
                    for name, (value, at_s, flags) in indicators.items()
                }
                for network, indicators in context["networks"].items()
            },
        ),
        evaluations=tuple(
            Evaluation(_strategy(each[:2]), *(_float(number, inf) for number in each[2:]))
            for each in msgspec.json.decode(columns["evaluations"])
        ),
        choice=_strategy(msgspec.json.decode(columns["choice"])),
        objective=columns["objective"],
        reason=columns["reason"],
    )


def flow_row(flow: FlowRecord) -> tuple[Any, ...]:
    """A finished flow as values of `FLOW_COLUMNS`."""
    return (
        flow.ended_unix_s,
        *flow_target(flow),
        flow.decision,
        flow.token,
        sum(subflow.bytes_down for subflow in flow.subflows),
        sum(subflow.bytes_up for subflow in flow.subflows),
        _text(flow),
    )


def flow_of(row: Sequence[Any]) -> FlowRecord:
    """The flow that `flow_row` made the row from."""
    record = msgspec.json.decode(row[-1])
    size = record.pop("size")
    prediction = record.pop("prediction", None)
    return FlowRecord(
        subflows=tuple(
            Subflow(key=_key(each.pop("key")), **each) for each in record.pop("subflows")
        ),
        size=None if size is None else SizeEstimate(**size),
        switches=tuple(
            (at_s, _strategy(strategy.values())) for at_s, strategy in record.pop("switches")
        ),
        prediction=None if prediction is None else msgspec.convert(prediction, Prediction),
        **record,
    )


def carried_row(carried: CarriedConnection) -> tuple[Any, ...]:
    """A carried connection as values of `CARRIED_COLUMNS`."""
    return (
        carried.ended_unix_s,
        carried.server,
        carried.port,
        carried.gateway,
        _text(carried.addresses),
        carried.bytes_down,
        carried.bytes_up,
        carried.decision,
        _text(carried.bytes_by_network),
    )


def carried_of(row: Sequence[Any]) -> CarriedConnection:
    """The carried connection that `carried_row` made the row from."""
    columns = dict(zip(CARRIED_COLUMNS, row, strict=True))
    return CarriedConnection(
        addresses=tuple(msgspec.json.decode(columns.pop("addresses"))),
        bytes_by_network=msgspec.json.decode(columns.pop("bytes_by_network")),
        **columns,
    )


def decision_target(decision: Decision) -> tuple[str | None, int | None, str | None]:
    """What a decision is found by: remote address, remote port, server name."""
    flow = decision.transfer.flow
    address = (None, None) if flow is None else (str(flow.remote), flow.remote_port)
    return (*address, decision.transfer.server_name)


def flow_target(flow: FlowRecord) -> tuple[str | None, int | None, str | None]:
    """What a flow is found by: remote address, remote port, server name."""
    if not flow.subflows:
        return None, None, flow.server_name
    key = flow.subflows[0].key
    return str(key.remote), key.remote_port, flow.server_name


def matcher(flow: str) -> Matcher:
    """Whether a target is the one that a person means.

    Args:
        flow: a part of a server name or of an address, a port (`443` or `:443`), or both
            (`example.org:443`, `[2001:db8::1]:443`); case does not matter.
    """
    wanted = flow.strip().lower()
    host, port = wanted, None
    head, colon, tail = wanted.rpartition(":")
    if (colon or not head) and tail.isdecimal() and (":" not in head or head.endswith("]")):
        host, port = head, int(tail)
    host = host.strip("[]")

    def matches(remote: str | None, remote_port: int | None, server_name: str | None) -> bool:
        if port is not None and port != remote_port:
            return False
        return not host or host in (remote or "") or host in (server_name or "").lower()

    return matches


def _text(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _strategy_items(strategy: Strategy) -> tuple[str, tuple[str, ...]]:
    return strategy.kind.value, strategy.networks


def _strategy(items: Any) -> Strategy:
    kind, networks = items
    return Strategy(StrategyKind(kind), tuple(networks))


def _float(value: float | None, unknown: float) -> float:
    return unknown if value is None else value


def _transfer(record: dict[str, Any]) -> Transfer:
    flow = record["flow"]
    return Transfer(
        size=SizeEstimate(**record["size"]),
        direction=Direction(record["direction"]),
        label=msgspec.convert(record["label"], Label),
        deadline_s=record["deadline_s"],
        flow=None if flow is None else _key(flow),
        server_name=record["server_name"],
    )


def _key(record: dict[str, Any]) -> FlowKey:
    record["local"] = ip_address(record["local"])
    record["remote"] = ip_address(record["remote"])
    return FlowKey(**record)
