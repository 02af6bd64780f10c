"""The decision log: a flow is explained by its own decision, however many came after it."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from structlog.testing import capture_logs

from cedos.controller.events import FlowOpened
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon import decision_log
from cedos.daemon.decision_log import DecisionLog
from cedos.model import FlowKey, Strategy, StrategyKind
from cedos.storage.history import History

HERE, THERE = ip_address("192.0.2.1"), ip_address("198.51.100.1")
KEY = FlowKey(HERE, 1111, THERE, 443)


def about(decision, key, name=None):
    return replace(decision, transfer=replace(decision.transfer, flow=key, server_name=name))


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "history.sqlite")


async def test_a_living_flow_has_the_decision_that_led_it_though_many_came_after(
    history, make_decision, monkeypatch
):
    monkeypatch.setattr(decision_log, "_RECENT", 3)
    log, flows = DecisionLog(history), LivingFlows()
    flow = flows.on_open(FlowOpened(KEY, 1.0, 1.0))
    led = about(make_decision(1), None)
    log.record(led)
    flow.on_decision(led)
    for number in range(2, 9):
        log.record(about(make_decision(number), replace(KEY, local_port=number), "b.example"))
    for name in ("1111", str(THERE), "198.51.100.1:443"):
        found = await log.find(name, flows)
        assert found.number == 1, name
    history.close()


async def test_an_earlier_flow_to_the_same_server_explains_none_that_lives(history, make_decision):
    before = DecisionLog(history)
    before.record(about(make_decision(1), KEY))
    history.flush()
    log, flows = DecisionLog(history), LivingFlows()
    found = await log.find("198.51.100.1:443", flows)
    assert found.number == 1, "nothing lives there: it is the last one that did"
    flows.on_open(FlowOpened(replace(KEY, local_port=2222), 1.0, 1.0))
    assert await log.find("198.51.100.1:443", flows) is None, "this one began before the daemon"
    assert await log.find("1", flows) is not None, "by its number"
    history.close()


async def test_a_number_that_no_history_can_have_is_about_nothing(history):
    log = DecisionLog(history)
    assert await log.find("9" * 19, LivingFlows()) is None
    history.close()


async def test_the_log_has_changes_at_the_usual_level(make_decision):
    log = DecisionLog(None)
    first, second = make_decision(1), make_decision(2)
    other = replace(second, choice=Strategy(StrategyKind.SINGLE, ("lte0",)))
    subjects = [
        (about(first, None), "info"),  # the default
        (about(second, None), "debug"),
        (about(other, None), "info"),
        (about(other, None, "a.example"), "info"),  # a destination
        (about(other, None, "a.example"), "debug"),
        (about(other, None), "debug"),
        (about(first, KEY), "debug"),  # one flow
        (about(other, KEY), "debug"),
    ]
    with capture_logs() as entries:
        for decision, _ in subjects:
            log.record(decision)
    assert [entry["log_level"] for entry in entries] == [level for _, level in subjects]


def test_the_log_names_what_waits(make_decision):
    log = DecisionLog(None)
    with capture_logs() as lines:
        log.record(replace(make_decision(1), choice=Strategy(StrategyKind.DEFER, ())))
    assert [line["choice"] for line in lines] == ["defer"]
