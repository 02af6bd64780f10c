"""Which finished flows tell the budgets of a choice."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from kit.controller import KEY

from cedos.daemon.loop.opportunities import LEAST_BYTES, Opportunities
from cedos.model import Context, FlowRecord, Strategy, StrategyKind, Subflow


class Told:
    """Budgets that are told of choices, which a megabyte over LTE in one second was."""

    def __init__(self, prefetched: bool = False) -> None:
        self.keepers: dict[str, object] = {"data": None}
        self.choices: list[tuple[Any, int]] = []
        self.subject = Opportunities(cast(Any, self), cast(Any, self), lambda *_: prefetched)

    def offered(self, options: Any, taken: int) -> None:
        self.choices.append((options, taken))

    def weighed(self, transfer: object, context: Context) -> list[Any]:
        return [
            SimpleNamespace(
                strategy=Strategy(StrategyKind.SINGLE, (name,)), time_s=time_s, energy_j=1.0
            )
            for name, time_s in (("wlan0", 2.0), ("lte0", 1.0))
        ]

    def finishes(
        self, size: int = 1_000_000, network: str | None = "lte0", at_s: float = 9.0
    ) -> None:
        record = FlowRecord((Subflow(KEY, network, size, 80),), None, 100.0, 102.0)
        self.subject.finished(record, lambda: Context(at_s, {}))


def test_a_choice_is_told_with_what_each_way_would_have_taken() -> None:
    told = Told()
    told.finishes()
    ((options, taken),) = told.choices
    assert options == [("wlan0", 2.0, 1.0, 1_000_000), ("lte0", 1.0, 1.0, 1_000_000)]
    assert taken == 1


@pytest.mark.parametrize(
    ("prefetched", "size", "network"),
    [(True, 10**6, "lte0"), (False, LEAST_BYTES - 81, "lte0"), (False, 10**6, None)],
    ids=["prefetched", "small", "of a VPN"],
)
def test_what_tells_nothing_is_left_out(prefetched: bool, size: int, network: str | None) -> None:
    told = Told(prefetched)
    told.finishes(size, network)
    assert told.choices == []


def test_on_a_busy_host_one_stands_for_those_just_before_it() -> None:
    told = Told()
    told.finishes(at_s=9.0)
    told.finishes(at_s=9.05)
    told.finishes(at_s=9.2)
    (_, (options, _)) = told.choices
    assert options == [("wlan0", 4.0, 2.0, 2_000_000), ("lte0", 2.0, 2.0, 2_000_000)]


def test_without_budgets_nothing_is_weighed() -> None:
    told = Told()
    told.keepers = {}
    told.finishes()
    assert told.choices == []
