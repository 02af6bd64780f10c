"""Decisions about exchanges: hedged where nothing costs, single where all does, again when silent."""

import pytest

from cedos.selector.decision.living import AGAIN_S
from cedos.selector.energy import RadioWatch
from cedos.storage.model_files import radios
from emu.experiments.meatballs.client import Usage
from emu.experiments.meatballs.exchange_policy import STYLES, ExchangePolicy, Request
from emu.experiments.meatballs.outcome import SETTINGS
from emu.experiments.meatballs.race import Chosen

BOTH = frozenset({"wifi", "cellular"})
TASK = Request(0, 0.0, 1000, 4000)


def deciding(style: str, setting: str) -> ExchangePolicy:
    known = radios()["nexus-one"]
    of = {"wifi": known["wifi"], "cellular": known["3g"]}
    usage = Usage({name: RadioWatch(radio) for name, radio in of.items()})
    policy = ExchangePolicy(STYLES[style], SETTINGS[setting], of, ["cellular"], usage)
    for name in of:
        policy.attached(name, 0.0)
    policy.connected("wifi", 0.02, 0.02)
    policy.connected("cellular", 0.06, 0.06)
    return policy


def used(policy: ExchangePolicy, count: int = 15, wifi_s: float = 0.022) -> float:
    """Some quiet exchanges over both; returns the time after them."""
    now_s = 10.0
    for _ in range(count):
        policy.measured(TASK, "wifi", wifi_s, now_s)
        policy.measured(TASK, "cellular", 0.063, now_s)
        now_s += 10.0
    return now_s


def reevaluate_after_s(chosen: Chosen) -> float:
    assert callable(chosen.reevaluate_after_s)
    found = chosen.reevaluate_after_s()
    assert found is not None
    return found


MEATBALLS = ["brute-force", "brute-force, as published", "error-bounds", "bayesian"]


@pytest.mark.parametrize("style", ["brute-force", "brute-force, as published", "error-bounds"])
def test_where_nothing_costs_an_unsure_one_hedges(style: str) -> None:
    assert deciding(style, "no").choose(TASK, 1.0, BOTH, {}).ways == BOTH


@pytest.mark.parametrize("style", [*MEATBALLS, "adaptive"])
def test_where_all_costs_much_the_free_network_is_used_alone(style: str) -> None:
    policy = deciding(style, "high")
    now_s = used(policy)
    assert policy.choose(TASK, now_s, BOTH, {}).ways == {"wifi"}


@pytest.mark.parametrize("style", MEATBALLS)
def test_silence_sends_it_over_the_other_network_too(style: str) -> None:
    policy = deciding(style, "low")
    now_s = used(policy, 30)
    first = policy.choose(TASK, now_s, BOTH, {})
    if first.ways == BOTH:
        # Those that do not know that they will reevaluate hedge from the start.
        assert not STYLES[style].foresees
        return
    waited_s, later = reevaluate_after_s(first), first
    while not later.ways >= {"cellular"}:
        assert waited_s < 10.0
        later = policy.choose(TASK, now_s + waited_s, BOTH, {"wifi": waited_s})
        assert later.reevaluate_after_s in (None, AGAIN_S)
        waited_s += 0.2
    assert waited_s < 2.0


def test_the_adaptive_one_never_hedges_and_never_thinks_again() -> None:
    policy = deciding("adaptive", "no")
    first = policy.choose(TASK, used(policy), BOTH, {})
    assert first.ways == {"wifi"}
    assert first.reevaluate_after_s is None
    assert policy.choose(TASK, 300.0, BOTH, {"wifi": 100.0}).ways == frozenset()


def test_one_network_is_no_choice() -> None:
    policy = deciding("brute-force", "mid")
    assert policy.choose(TASK, 1.0, frozenset({"wifi"}), {}).ways == {"wifi"}
    assert policy.choose(TASK, 1.0, frozenset(), {}).ways == frozenset()
    assert policy.choose(TASK, 1.0, BOTH, {"wifi": 1.0, "cellular": 0.5}).ways == frozenset()


def test_a_stall_is_an_error_and_no_latency() -> None:
    """After one, the published method leaves the network alone for good; ours goes on asking."""
    ways = {}
    for style in ("brute-force", "brute-force, as published"):
        policy = deciding(style, "mid")
        now_s = used(policy, 3)
        policy.measured(TASK, "wifi", 2.0, now_s)
        ways[style] = policy.choose(TASK, now_s + 20.0, BOTH, {}).ways
    assert ways["brute-force, as published"] == {"cellular"}
    assert "wifi" in ways["brute-force"]


def test_a_new_access_point_makes_unsure() -> None:
    policy = deciding("brute-force", "low")
    now_s = used(policy, 30)
    before = policy.choose(TASK, now_s, BOTH, {})
    before_s = reevaluate_after_s(before)
    policy.detached("wifi", now_s)
    policy.attached("wifi", now_s + 30.0)
    policy.connected("wifi", 0.02, now_s + 30.02)
    after = policy.choose(TASK, now_s + 31.0, BOTH, {})
    assert before.ways == {"wifi"}
    assert after.ways == BOTH or reevaluate_after_s(after) != before_s
