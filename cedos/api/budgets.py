"""Messages about budgets: a budget that a person sets, the state of all, and the usage."""

from dataclasses import fields
from typing import Any

from cedos.api.messages import ControlMessage, parse
from cedos.errors import ConfigError
from cedos.model import Budget


class BudgetMessage(ControlMessage, frozen=True, kw_only=True):
    """The state of a budget; amounts are bytes, joules or money."""

    name: str
    resource: str
    supply: float
    spent: float
    begins_unix_s: float
    ends_unix_s: float
    # The use at the end if it goes on like lately, with a 90 % interval; None: too early.
    forecast: float | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    # Today's price; None: nothing may be spent any more (`spent_up`), or no daemon runs.
    s_per_unit: float | None = None
    spent_up: bool = False
    bought_s: float | None = None
    networks: tuple[str, ...] = ()
    every: str | None = None
    battery: bool = False
    over: bool = False
    suspended: str = ""  # why the budget has no price now; "": it has one
    source: str = "command"
    hard: bool = False
    # Networks that programs may not use, because the budget is `hard` and spent.
    barred: tuple[str, ...] = ()
    unkept: str = ""  # why these networks are still used
    controller: str | None = None

    @classmethod
    def of(
        cls,
        budget: Budget,
        *,
        spent: float,
        begins_unix_s: float,
        ends_unix_s: float,
        **standing: Any,
    ) -> "BudgetMessage":
        """Return the message of a budget; `standing` has the fields of its state."""
        return cls(
            name=budget.name,
            resource=budget.resource.value,
            supply=budget.supply,
            networks=budget.networks,
            every=budget.every.value if budget.every else None,
            battery=budget.battery,
            hard=bool(budget.hard),
            spent=spent,
            begins_unix_s=begins_unix_s,
            ends_unix_s=ends_unix_s,
            **standing,
        )


class NetworkUsage(ControlMessage, frozen=True, kw_only=True):
    """The bytes of all programs over one network in both directions.

    `metered_bytes` were carried while the network was metered. `radio_j` is the energy of its
    radio.
    """

    network: str
    metered_bytes: float
    free_bytes: float
    radio_j: float


class ServerUsage(ControlMessage, frozen=True, kw_only=True):
    """The bytes of connections with one server (its name or else its address), by network.

    `gateway` carried the connections; None: they were direct. The gateway's own entry excludes the
    bytes that it carried for other servers.
    """

    server: str
    bytes_by_network: dict[str, int]
    gateway: str | None = None


class UsageMessage(ControlMessage, frozen=True, kw_only=True):
    """The usage since `since_unix_s`, most metered bytes first.

    `counted_since_unix_s` is the start of the counters, if later. `radio_j` is the energy of all
    radios. `servers` has the finished connections in the history, from `flows_since_unix_s` on,
    and with `with_open` those that are open now.
    """

    since_unix_s: float
    counted_since_unix_s: float | None = None
    radio_j: float = 0.0
    networks: tuple[NetworkUsage, ...] = ()
    servers: tuple[ServerUsage, ...] = ()
    flows_since_unix_s: float | None = None
    with_open: bool = False


def parse_budget(body: bytes) -> Budget:
    """Parse a budget from JSON.

    ConfigError: the budget is not valid; the message says what would be.
    """
    content = parse(body, dict[str, Any], "budget")
    if strange := sorted(content.keys() - {field.name for field in fields(Budget)}):
        raise ConfigError(f"budget: it has no field `{strange[0]}`")
    return parse(body, Budget, "budget")
