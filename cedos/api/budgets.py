"""Budgets over the control socket: what a person sets, and how it stands."""

import re
from math import isfinite
from typing import Final, Literal

import msgspec

from cedos.api.messages import Message
from cedos.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")
_MOST: Final = 1e15
EveryName = Literal["day", "week", "month", "year"]
_MOST_MONEY: Final = 1e9
_MOST_UNITS: Final = 1_000_000


def is_name(text: str) -> bool:
    """Whether a budget or a network can be called so."""
    return _NAME.fullmatch(text) is not None


class IncrementRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that is bought unit by unit (`selector.budget.Increment`)."""

    amount: float
    money: float
    s_per_money: float
    most: int

    def wrong(self) -> str:
        """What cannot be, in words; "": all can."""
        if not 0.0 < self.amount <= _MOST:
            return f"a unit of {self.amount:g} bytes cannot be; more than 0 would be right"
        if not 0.0 <= self.money <= _MOST_MONEY:
            return (
                f"a unit for {self.money:g} of money cannot be; 0 to {_MOST_MONEY:g} would be right"
            )
        if not 0.0 <= self.s_per_money <= _MOST_MONEY:
            return (
                f"{self.s_per_money:g} seconds per money cannot be;"
                f" 0 to {_MOST_MONEY:g} would be right"
            )
        if not 1 <= self.most <= _MOST_UNITS:
            return f"{self.most} units cannot be; 1 to {_MOST_UNITS} would be right: larger ones"
        return ""


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget to set (`selector.budget.Budget`): bytes, joules or money until a local time.

    Errors: ValueError with what would be right, whoever makes one.
    """

    name: str
    resource: Literal["data", "energy", "money"]
    supply: float
    until: str
    since: str = ""
    networks: list[str] = []
    every: EveryName | None = None
    increment: IncrementRequest | None = None
    battery: bool = False
    hard: bool = False

    def __post_init__(self) -> None:
        """Checks what a type cannot say."""
        for what, name in (("budget", self.name), *(("network", each) for each in self.networks)):
            if not is_name(name):
                raise ValueError(
                    f'"{name}" cannot be the name of a {what}: 1 to 31 letters, digits, and . _ -'
                    " behind the first would be right"
                )
        if not isfinite(self.supply) or not 0.0 <= self.supply <= _MOST:
            raise ValueError(
                f"a supply of {self.supply:g} cannot be; more than 0, and {_MOST:g} at most,"
                " would be right"
            )
        if not self.supply and not self.battery:
            raise ValueError(
                'a supply of 0 would forbid everything; more, such as "1MB", would be right'
            )
        if self.hard and self.resource == "energy":
            raise ValueError(
                f"a budget of {'the battery' if self.battery else 'energy'} cannot be hard: programs"
                " use energy whether they are let on a network or not; data and money can be"
            )
        if self.increment is not None and (wrong := self.increment.wrong()):
            raise ValueError(wrong)


class UnitsMessage(Message, frozen=True, kw_only=True):
    """Data that is bought unit by unit: how many are, of how many, and what each has and costs."""

    bought: int
    most: int
    amount: float
    money: float


class BudgetMessage(Message, frozen=True, kw_only=True):
    """How a budget stands; amounts are bytes, joules or money.

    `s_per_unit` is today's price, None where nothing may be spent any more (`spent_up`), or where it
    is not known (no daemon runs). `suspended` says why it has no price now; "": it has one. `barred`
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
