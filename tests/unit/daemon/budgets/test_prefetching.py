"""What programs prefetch, as the daemon hears of it: paced, accounted for, shown, and forgotten."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.api.messages import NetworkMessage, parse
from cedos.api.programs import (
    ItemMessage,
    PrefetchingRequest,
    StartedMessage,
    TakingMessage,
)
from cedos.budget_kinds import Resource
from cedos.config import Config, NetworkConfig
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.metering import Metering, money_per_mb, radios_of
from cedos.daemon.budgets.prefetching import MOST_WAYS, Prefetching
from cedos.errors import ConfigError
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Network, NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE, Option
from cedos.selector.objective import MaxS
from cedos.storage.usage import Usage

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
NOW_S = datetime(2026, 11, 21, 9, 0).timestamp()
DATA = Budget("data", Resource.DATA, 1e8, "2026-11-22T09:00:00")
ENERGY = Budget("energy", Resource.ENERGY, 1e4, "2026-11-22T09:00:00")
LEFT = TakingMessage(3.0, 6.0, [0.0, 500_000.0])
OVER_WLAN = TakingMessage(0.0, 1.0, [1e6, 0.0])
OVER_LTE = TakingMessage(0.0, 8.0, [0.0, 1e6])


class Host:
    """The daemon's part, with a clock that a test turns."""

    def __init__(self, state: Path) -> None:
        config = Config(networks={"lte0": NetworkConfig(money_per_mb=0.01)})
        self.now_s, self.steady_s = NOW_S, 1000.0
        self.usage = Usage(state / "usage.sqlite", "boot")
        self.known = networks = [WLAN, LTE]
        self.metering = Metering(
            self.usage, "boot", networks, radios_of(config), money_per_mb(config)
        )
        self.budgets = HostBudgets(
            config, state, self.usage, self.metering, lambda: networks, lambda *_: None, MaxS(),
            clock=lambda: self.now_s, steady=lambda: self.steady_s,
        )  # fmt: skip
        self.prefetching = Prefetching(
            self.budgets, self.metering, radios_of(config),
            clock=lambda: self.now_s, steady=lambda: self.steady_s,
        )  # fmt: skip
        self.carried = 0

    def carry(self, size: int) -> None:
        self.carried += size
        self.metering.on_counters(LTE, Counters(self.carried, 0), self.steady_s)

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.steady_s += seconds
        self.budgets.tick()

    def ask(self, **fields: Any) -> Any:
        request = PrefetchingRequest(
            **{"program": "mail", "pid": 7, "networks": ["wlan0", "lte0"], **fields}
        )
        known = [NetworkMessage.of(network, None, 0.0) for network in self.known]
        return self.prefetching.on_request(request, known)

    def rate(self, name: str = "data") -> float:
        return self.budgets.keepers[name].quote(self.now_s).rate


@pytest.fixture
async def host(tmp_path: Path) -> Host:
    host = Host(tmp_path)
    host.carry(0)
    await host.budgets.set(DATA)
    await host.budgets.set(ENERGY)
    host.later(3600.0)
    return host


async def test_the_price_rises_with_what_programs_have_open_and_falls_when_they_end(
    host: Host,
) -> None:
    before = host.rate()
    host.ask(waiting=[[LEFT, OVER_LTE]] * 100)
    host.prefetching.update()
    assert host.rate() > 10 * before
    host.ask(pid=8, waiting=[[LEFT, OVER_LTE]] * 100)
    host.prefetching.update()
    both = host.rate()
    host.later(4.0)
    host.ask(pid=8, waiting=[[LEFT, OVER_LTE]] * 100)
    host.later(4.0)
    host.prefetching.update()  # the first one has not been heard of for 8 s
    assert before < host.rate() <= both
    assert [program.pid for program in host.prefetching.programs()] == [8]
    host.later(10.0)
    host.prefetching.update()
    assert host.rate() == pytest.approx(before, rel=0.1)
    assert host.prefetching.programs() == []


async def test_a_hint_without_measure_makes_nothing_dear_for_others(host: Host) -> None:
    before = host.rate()
    film = TakingMessage(900.0, 6.0, [0.0, 5e8])
    host.ask(waiting=[[film, TakingMessage(0.0, 8.0, [0.0, 1e9])], [LEFT, OVER_LTE]])
    assert host.rate() == before
    host.ask(waiting=[[LEFT, OVER_LTE]] * 400)  # 200 MB if nothing of it is chosen
    keeper = host.budgets.keepers["data"]
    quote: Any = keeper.quote(host.now_s)
    assert quote.capacity > 0.3 * keeper.budget.supply


async def test_what_was_prefetched_is_no_habit_of_the_host(host: Host) -> None:
    for _ in range(60):  # ten minutes in which 30 MB come for what was open
        host.ask(used_bytes=[0.0, 500_000.0])
        host.carry(530_000)
        host.later(10.0)
    keeper = host.budgets.keepers["data"]
    assert keeper.spent == 60 * 530_000
    told: Any = keeper.controller
    # A day of such minutes would be 4.5 GB; what goes on is what was never told of, which is nothing.
    assert told.set_aside(host.now_s) < 1e6


async def test_what_it_bought_is_accounted_for(host: Host) -> None:
    host.ask(started=[StartedMessage([LEFT, OVER_LTE], 1)])
    bought = {each.budget.name: each.bought_s for each in host.budgets.standings()}
    assert bought["data"] == pytest.approx(3.0, abs=0.2)
    assert bought["energy"] == pytest.approx(3.0, abs=0.2)
    host.ask(started=[StartedMessage([LEFT, OVER_WLAN], 1)])  # no metered byte was spent for that
    assert host.budgets.standings()[0].bought_s == bought["data"]


async def test_a_flow_that_carried_a_prefetch_is_no_choice_of_its_own(host: Host) -> None:
    assert not host.prefetching.account("lte0", 1_000_000)
    host.ask(used_bytes=[0.0, 1_000_000.0])
    assert not host.prefetching.account("wlan0", 1_000_000)
    assert not host.prefetching.account("lte0", 5_000_000)
    assert host.prefetching.account("lte0", 1_050_000)
    assert not host.prefetching.account("lte0", 1_050_000)


async def test_programs_are_told_prices_by_amount_and_the_radios_states(host: Host) -> None:
    host.carry(1000)
    host.later(3.0)
    answer = host.ask()
    prices = {each.resource: each for each in answer.prices}
    assert prices["data"].s_per_unit == host.rate()
    assert 5e7 < prices["data"].steps[-1][0] < 1e8  # a part is kept for the unforeseen
    lte = answer.radios["lte0"]
    assert lte.idle_s == 3.0
    assert lte.radio["states"][0]["linger_s"] > 0.0
    assert answer.radios["wlan0"].idle_s is None
    host.carry(100_000_000)
    host.later(1.0)
    prices = {each.resource: each for each in host.ask().prices}
    assert (prices["data"].s_per_unit, prices["data"].steps) == (None, ())
    assert host.rate() >= PROHIBITIVE


async def test_each_network_that_is_told_has_its_radio_though_it_has_just_gone(host: Host) -> None:
    host.known = [WLAN, LTE, replace(LTE, name="usb0", interface="usb0", index=9)]
    answer = host.ask()
    assert {network.name for network in answer.networks} == set(answer.radios)
    assert answer.radios["usb0"].radio == answer.radios["lte0"].radio


async def test_names_that_a_program_makes_up_are_not_kept(host: Host) -> None:
    """64 new ones in each request filled the memory, 2 MB a second."""
    for number in range(50):
        host.ask(networks=[f"made-up-{number}", "lte0"], used_bytes=[1e15, 1e3])
    assert host.prefetching._received == {"lte0": 50e3}
    for _ in range(4000):  # 50 kB is nothing after an hour
        host.prefetching.update()
    assert host.prefetching._received == {}


async def test_many_programs_with_many_ways_do_not_hold_the_daemon(host: Host) -> None:
    """100 programs of one user with 400 items each held it for minutes, once a request."""
    asked = Counter[str]()
    for name, keeper in host.budgets.keepers.items():
        waiting = keeper.controller.waiting

        def counted(
            choices: Sequence[Sequence[Option]],
            name: str = name,
            waiting: Callable[[Sequence[Sequence[Option]]], None] = waiting,
        ) -> None:
            asked[name] += sum(map(len, choices))
            waiting(choices)

        setattr(keeper.controller, "waiting", counted)  # noqa: B010  # as mypy wants it
    for pid in range(1, 101):
        host.ask(pid=pid, waiting=[[LEFT, OVER_LTE] * 5] * 300)
    assert not asked
    host.prefetching.update()
    assert 0 < asked["data"] <= MOST_WAYS
    assert asked.total() <= MOST_WAYS


async def test_people_are_shown_what_it_said(host: Host) -> None:
    item = ItemMessage(title="page", cls="news", size_bytes=1e5, likely=0.5, why="waits")
    host.ask(counts={"waiting": 1}, items=[item])
    host.later(2.0)
    (program,) = host.prefetching.programs()
    assert (program.program, program.age_s, program.items) == ("mail", 2.0, [item])


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"waiting": [[[1.0, 2.0, [3.0]]]]}, "told by 2 networks"),
        ({"used_bytes": [1.0]}, "told by 2 networks"),
        ({"started": [{"ways": [[1.0, 2.0, [3.0, 4.0]]], "chosen": 1}]}, "one of the ways"),
        ({"started": [{"ways": [[-1.0, 2.0, [3.0, 4.0]]], "chosen": 0}]}, ">= 0"),
        ({"used_j": "many"}, "used_j"),
        ({"program": ""}, "program"),
        ({"pid": 0}, "pid"),
        ({"wating": []}, "wating"),
        ({"waiting": [[]] * 401}, "400"),
    ],
)
def test_nonsense_is_refused_in_words(message: dict[str, Any], why: str) -> None:
    known = {"program": "mail", "pid": 7, "networks": ["wlan0", "lte0"]}
    with pytest.raises(ConfigError, match=why):
        parse(msgspec.json.encode(known | message), PrefetchingRequest, "prefetching")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_anything_else_is_refused_too(body: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(body, PrefetchingRequest, "prefetching")
