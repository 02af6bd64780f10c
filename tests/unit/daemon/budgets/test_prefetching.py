"""Answers to programs that prefetch, and what is refused."""

from types import SimpleNamespace

import msgspec
import pytest

from cedos.api.messages import NetworkMessage, parse
from cedos.budget_kinds import Resource
from cedos.config import Config, NetworkConfig
from cedos.controller.hint import PrefetchReport
from cedos.daemon.budgets.metering import radios_of
from cedos.daemon.budgets.prefetching import PrefetchingPrograms
from cedos.errors import ConfigError
from cedos.model import Budget
from cedos.selector.budgets.controller import PROHIBITIVE

from .conftest import LTE, WLAN, Host

DATA = Budget("data", Resource.DATA, 1e8, "2026-11-22T09:00:00")
ENERGY = Budget("energy", Resource.ENERGY, 1e4, "2026-11-22T09:00:00")


class Asked(Host):
    """A host with a budget of a day, which programs that prefetch ask."""

    def __init__(self, state):
        super().__init__(state, Config(networks={"lte0": NetworkConfig(money_per_mb=0.01)}))
        self.there = [WLAN, LTE]
        driver = SimpleNamespace(
            controller=self.controller, post=self.post, now_s=lambda: self.steady_s
        )
        self.programs = PrefetchingPrograms(
            *(driver, self.metering, radios_of(self.config)), lambda: self.now_s
        )

    def ask(self, *, uid=1000, **fields):
        request = PrefetchReport(
            **{"program": "mail", "pid": 7, "networks": ["wlan0", "lte0"], **fields}
        )
        known = [NetworkMessage.of(network, None, 0.0) for network in self.there]
        return self.programs.on_request(request, known, uid)

    def reports(self):
        """Return the reports of the programs that count, by process."""
        programs = self.controller.prefetching.programs(self.steady_s)
        return {pid: each.report for (pid, _), each in programs.items()}

    def rate(self):
        return self.known.keepers["data"].quote(self.now_s).rate


@pytest.fixture
async def host(tmp_path):
    host = Asked(tmp_path)
    await host.budgets.set(DATA)
    await host.budgets.set(ENERGY)
    host.tick(3600.0)
    return host


async def test_programs_are_told_prices_by_amount_and_the_radios_states(host):
    host.carry("lte0", 1000)
    host.tick(1.0)
    host.tick(3.0)
    answer = host.ask()
    prices = {each.resource: each for each in answer.prices}
    assert prices["data"].s_per_unit == host.rate()
    assert 5e7 < prices["data"].steps[-1][0] < 1e8  # a part is kept for the unforeseen
    lte = answer.radios["lte0"]
    assert lte.idle_s == 3.0
    assert lte.radio["states"][0]["linger_s"] > 0.0
    assert answer.radios["wlan0"].idle_s is None
    host.carry("lte0", 100_000_000)
    host.tick()
    prices = {each.resource: each for each in host.ask().prices}
    assert (prices["data"].s_per_unit, prices["data"].steps) == (None, ())
    assert host.rate() >= PROHIBITIVE


async def test_one_user_leaves_places_to_programs_of_others(host):
    for pid in range(100, 120):
        assert host.ask(pid=pid, uid=1001).prices
    host.ask(pid=7)
    host.ask(pid=7, uid=1001, program="mail", used_j=1.0)  # of another user's program
    known = host.reports()
    assert set(known) == {7, *range(100, 108)}
    assert known[7].used_j == 0.0
    host.tick(6.0)  # they have ended
    host.ask(pid=119, uid=1001)
    assert set(host.reports()) == {119}


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
def test_nonsense_is_refused_in_words(message, why):
    known = {"program": "mail", "pid": 7, "networks": ["wlan0", "lte0"]}
    with pytest.raises(ConfigError, match=why):
        parse(msgspec.json.encode(known | message), PrefetchReport, "prefetching")
