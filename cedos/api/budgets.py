"""Budgets over the control socket: a person sets a `Budget`, is told how all stand, and what was used."""

from dataclasses import fields
from typing import Any

from cedos.api.messages import ControlMessage, parse
from cedos.errors import ConfigError
from cedos.model import Budget


class UnitsMessage(ControlMessage, frozen=True, kw_only=True):
    """Data that is bought unit by unit: how many are, of how many, and what each has and costs."""

    bought: int
    most: int
    amount: float
    money: float

    @classmethod
    def of(cls, budget: Budget) -> "UnitsMessage | None":
        """The units of a budget whose supply is that of those bought so far; None: it has none."""
        one = budget.increment
        if one is None:
            return None
        bought = round(budget.supply / one.amount)
        return cls(bought=bought, most=one.most, amount=one.amount, money=one.money)


class BudgetMessage(ControlMessage, frozen=True, kw_only=True):
    """How a budget stands; amounts are bytes, joules or money.

    `s_per_unit` is today's price, None where nothing may be spent any more (`spent_up`), or where it
    is not known (no daemon runs). `forecast` is the use at the end if it goes on as lately, within its
    90 % range; None: too early to say. `suspended` says why it has no price now; "": it has one. `barred`
    are the networks that programs are kept off now, as it is `hard` and spent; `unkept` says why they
    are not though they should be. With `units` the `supply` is that of those that are bought.
    """

    name: str
    resource: str
    supply: float
    spent: float
    begins_unix_s: float
    ends_unix_s: float
    forecast: float | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    s_per_unit: float | None = None
    spent_up: bool = False
    bought_s: float | None = None
    networks: tuple[str, ...] = ()
    every: str | None = None
    battery: bool = False
    over: bool = False
    suspended: str = ""
    source: str = "command"
    hard: bool = False
    barred: tuple[str, ...] = ()
    unkept: str = ""
    units: UnitsMessage | None = None
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
        """The message of a budget; `standing`: the fields that say how it stands."""
        return cls(
            name=budget.name,
            resource=budget.resource.value,
            supply=budget.supply,
            networks=budget.networks,
            every=budget.every.value if budget.every else None,
            battery=budget.battery,
            hard=budget.hard,
            spent=spent,
            begins_unix_s=begins_unix_s,
            ends_unix_s=ends_unix_s,
            **standing,
        )


class NetworkUsage(ControlMessage, frozen=True, kw_only=True):
    """What went over one network, of all programs, both ways.

    `metered_bytes` are those of the time while it was metered. `radio_j` are its radio's joules, by its
    traffic.
    """

    network: str
    metered_bytes: float
    free_bytes: float
    radio_j: float


class ServerUsage(ControlMessage, frozen=True, kw_only=True):
    """What connections with one server (its name, else its address) have carried, by network.

    `gateway`: through which they went; None: they went directly. A gateway's own entry is without what
    it carried for others.
    """

    server: str
    bytes_by_network: dict[str, int]
    gateway: str | None = None


class UsageMessage(ControlMessage, frozen=True, kw_only=True):
    """What was used since `since_unix_s`, most metered bytes first.

    `counted_since_unix_s`: counting began then, where that was later. `radio_j` is of all radios.
    `servers` are those of finished connections that the history still has, from `flows_since_unix_s` on,
    and of those that are open now, where a daemon knew them (`with_open`).
    """

    since_unix_s: float
    counted_since_unix_s: float | None = None
    radio_j: float = 0.0
    networks: tuple[NetworkUsage, ...] = ()
    servers: tuple[ServerUsage, ...] = ()
    flows_since_unix_s: float | None = None
    with_open: bool = False


def parse_budget(body: bytes) -> Budget:
    """A budget from JSON, without unknown fields. Errors: ConfigError, with what would be right."""
    content = parse(body, dict[str, Any], "budget")
    if strange := sorted(content.keys() - {field.name for field in fields(Budget)}):
        raise ConfigError(f"budget: it has no field `{strange[0]}`")
    return parse(body, Budget, "budget")
