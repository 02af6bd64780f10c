"""The kinds of budget: resources, each with the unit that people read and the meter of its use.

A new kind of budget needs:

- here, a `Meter` and a member of `Resource`;
- a parser of its amounts in `READERS` of `cedos/config/amounts.py`, and a key in `BudgetConfig` of
  `cedos/config/sections.py`;
- unless its meter counts by network: a price in `Prices` (`cedos/selector/budgets/prices.py`), which
  `WeightedCost` in `cedos/selector/objective.py` adds to a strategy's cost, and a sentence in
  `cedos/selector/budgets/prices.py`.

Keepers and controllers count plain units and know no kind. Of a resource, the daemon asks how much was
used, and the commands how to write an amount.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

# The counter of joules of all radios together.
RADIOS: Final = "radios"

# The counter of the money that helpers are to be paid, each byte at its price of that time.
PAID: Final = "paid"

# Before a network's name: the odometers of its joules, its metered bytes, its other bytes, and of the
# bytes of helpers, which are metered, and none of this host's own plan.
RADIO, METERED, FREE, HELPED = "radio/", "metered/", "free/", "helped/"

_PER_MB: Final = 1e6


class Odometers(Protocol):
    """The use of this host since its installation, by odometer."""

    @property
    def totals(self) -> Mapping[str, float]: ...

    def sum_since(self, keys: Iterable[str], begin_s: float) -> float:
        """Return the sum of these odometers since an instant."""


@dataclass(frozen=True, slots=True)
class Tariff:
    """The costs of this host's networks."""

    # By network, where it is configured; by helper, what it asks.
    money_per_mb: Mapping[str, float] = field(default_factory=dict)
    metered: Collection[str] = ()  # the networks that are metered now

    @property
    def priced(self) -> list[str]:
        """The networks whose bytes cost money."""
        return sorted(name for name, price in self.money_per_mb.items() if price > 0.0)


class Unit(NamedTuple):
    """The form in which people read amounts of a resource, and its price."""

    symbols: tuple[str, ...]  # units in steps of 1000, the smallest first; none: a plain number
    priced: float  # so many of the smallest have the price that people read
    priced_symbol: str  # the symbol of so many; "": none
    priced_name: str  # the name of so many, without its article


class Meter(ABC):
    """A meter of a resource: its past use, and the use of a way to carry a transfer."""

    by_network = False
    """True if only named networks count; the price is then one of their bytes."""

    can_bar = False
    """True if a budget can be hard: barring programs from networks then stops its use."""

    @abstractmethod
    def measure_use(
        self, odometers: Odometers, networks: Collection[str], begin_s: float, tariff: Tariff
    ) -> float:
        """Return the units used since an instant; `networks`: those the budget names."""

    @abstractmethod
    def amount(
        self,
        energy_j: float,
        carried: Iterable[tuple[str, float]],
        networks: Collection[str],
        tariff: Tariff,
    ) -> float:
        """Return the units that these joules, and bytes by network, are."""

    def blind(self, tariff: Tariff) -> str:
        """Say why nothing can be counted on this host; "": it can."""
        return ""

    def list_barred(
        self, networks: Collection[str], tariff: Tariff, gone: Collection[str]
    ) -> list[str]:
        """Return the networks that a hard budget bars once it is spent.

        `gone`: networks that it barred and that are unplugged; they find their bar again.
        """
        return []

    def usual_per_s(self, bytes_per_s: float, tariff: Tariff) -> float:
        """Return the units that networks of this rate use in a second."""
        return bytes_per_s


class DataMeter(Meter):
    """Bytes of all programs, by the interfaces' counters."""

    by_network = True
    can_bar = True

    def measure_use(
        self, odometers: Odometers, networks: Collection[str], begin_s: float, tariff: Tariff
    ) -> float:
        if networks:
            keys = of_networks(networks)
        else:
            keys = [key for key in odometers.totals if key.startswith(METERED)]
        return odometers.sum_since(keys, begin_s)

    def amount(
        self,
        energy_j: float,
        carried: Iterable[tuple[str, float]],
        networks: Collection[str],
        tariff: Tariff,
    ) -> float:
        counted = networks or tariff.metered
        return sum(size for network, size in carried if network in counted)

    def list_barred(
        self, networks: Collection[str], tariff: Tariff, gone: Collection[str]
    ) -> list[str]:
        return list(networks) if networks else sorted({*tariff.metered, *gone})


class EnergyMeter(Meter):
    """Joules of the radios, by their traffic."""

    def measure_use(
        self, odometers: Odometers, networks: Collection[str], begin_s: float, tariff: Tariff
    ) -> float:
        return odometers.sum_since([RADIOS], begin_s)

    def amount(
        self,
        energy_j: float,
        carried: Iterable[tuple[str, float]],
        networks: Collection[str],
        tariff: Tariff,
    ) -> float:
        return energy_j


class MoneyMeter(Meter):
    """Money for the bytes of networks with a configured price, and for those of helpers."""

    can_bar = True

    def measure_use(
        self, odometers: Odometers, networks: Collection[str], begin_s: float, tariff: Tariff
    ) -> float:
        return odometers.sum_since([PAID], begin_s) + sum(
            odometers.sum_since([f"{METERED}{name}", f"{FREE}{name}"], begin_s) * price / _PER_MB
            for name, price in tariff.money_per_mb.items()
        )

    def amount(
        self,
        energy_j: float,
        carried: Iterable[tuple[str, float]],
        networks: Collection[str],
        tariff: Tariff,
    ) -> float:
        prices = tariff.money_per_mb
        return sum(size * prices.get(network, 0.0) / _PER_MB for network, size in carried)

    def blind(self, tariff: Tariff) -> str:
        return "" if tariff.money_per_mb else "no network has a money_per_mb"

    def list_barred(
        self, networks: Collection[str], tariff: Tariff, gone: Collection[str]
    ) -> list[str]:
        return tariff.priced

    def usual_per_s(self, bytes_per_s: float, tariff: Tariff) -> float:
        return bytes_per_s * (max(tariff.money_per_mb.values(), default=0.0) / _PER_MB)


class Resource(StrEnum):
    """A resource that can be budgeted; its value is its name in configurations and messages."""

    DATA = "data"
    ENERGY = "energy"
    MONEY = "money"

    @property
    def unit(self) -> Unit:
        return _KINDS[self][0]

    @property
    def meter(self) -> Meter:
        return _KINDS[self][1]


_KINDS: Final[Mapping[Resource, tuple[Unit, Meter]]] = {
    Resource.DATA: (Unit(("B", "kB", "MB", "GB", "TB"), 1e6, "MB", "megabyte"), DataMeter()),
    Resource.ENERGY: (Unit(("J", "kJ", "MJ", "GJ", "TJ"), 1.0, "J", "joule"), EnergyMeter()),
    Resource.MONEY: (Unit((), 1.0, "", "unit of money"), MoneyMeter()),
}


def of_networks(names: Iterable[str]) -> list[str]:
    """Return the odometers of all bytes over these networks."""
    return [f"{kind}{name}" for name in names for kind in (METERED, FREE, HELPED)]
