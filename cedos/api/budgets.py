"""Budgets over the control socket: what a person sets, and how it stands."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from cedos.api.messages import Message
from cedos.errors import ConfigError

_Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,30}$",
        description="a short name of letters, digits and . _ -",
    ),
]


class IncrementRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that is bought unit by unit (`selector.budget.Increment`)."""

    amount: Annotated[float, Meta(gt=0, le=1e15)]
    money: Annotated[float, Meta(ge=0, le=1e9)]
    s_per_money: Annotated[float, Meta(ge=0, le=1e9)]
    most: Annotated[int, Meta(ge=1, le=1_000_000)]


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget to set (`selector.budget.Budget`): bytes, joules or money until a local time."""

    name: _Name
    resource: Literal["data", "energy", "money"]
    supply: Annotated[float, Meta(ge=0, le=1e15)]
    until: str
    since: str = ""
    networks: list[_Name] = []
    every: Literal["day", "week", "month", "year"] | None = None
    increment: IncrementRequest | None = None
    battery: bool = False


class BudgetMessage(Message, frozen=True, kw_only=True):
    """How a budget stands; amounts are bytes, joules or money.

    `s_per_unit` is today's price, None where nothing may be spent any more (`spent_up`), or where it
    is not known (no daemon runs). `suspended` says why it has no price now; "": it has one.
    """

    name: str
    resource: str
    supply: float
    spent: float
    begins_unix_s: float
    ends_unix_s: float
    forecast: float | None = None
    s_per_unit: float | None = None
    spent_up: bool = False
    bought_s: float | None = None
    networks: tuple[str, ...] = ()
    every: str | None = None
    battery: bool = False
    over: bool = False
    suspended: str = ""
    source: str = "command"
    controller: str | None = None


def parse_budget(body: bytes) -> BudgetRequest:
    """Reads a request from JSON.

    Raises:
        ConfigError: with the field and what would be right.
    """
    try:
        return msgspec.json.decode(body, type=BudgetRequest)
    except msgspec.ValidationError as error:
        raise ConfigError(f"budget: {error}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"budget: not valid JSON: {error}") from error
