"""A daemon that knows one network and one flow, its control socket, and the command line."""

import asyncio
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, ip_interface

import pytest
from click.testing import CliRunner
from kit import loop_watch

from cedos.api.budgets import BudgetMessage, UsageMessage
from cedos.api.messages import (
    DecisionMessage,
    DefaultMessage,
    FlowMessage,
    NetworkMessage,
    PhoneMessage,
    StatusMessage,
    SubflowMessage,
    flow_matches,
    flow_text,
)
from cedos.api.programs import HintAccepted, PrefetchingAnswer, PriceMessage, RadioMessage
from cedos.api.server import ControlServer
from cedos.commands.cedos import main
from cedos.controller.hint import program_mark
from cedos.errors import NotFoundError
from cedos.model import (
    Context,
    Decision,
    Evaluation,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
    NextHop,
    PhoneUse,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)

loop_watch.begin()

WIFI = Network(
    name="wlan0",
    interface="wlan0",
    index=3,
    kind=NetworkKind.WIFI,
    metered=False,
    addresses=(ip_interface("192.168.43.2/24"),),
    next_hops=(NextHop(4, IPv4Address("192.168.43.1")),),
)
KEY = FlowKey(IPv4Address("192.168.43.2"), 5000, IPv4Address("198.51.100.1"), 443)
ON_WIFI = Strategy(StrategyKind.SINGLE, ("wlan0",))
CONTEXT = Context(at_s=100.0, networks={"wlan0": {"rtt_s": Indicator(0.02, 98.5, active=True)}})


def decision(number):
    return Decision(
        number=number,
        made_unix_s=1.7e9,
        transfer=Transfer(
            size=SizeEstimate(1, 3000, 9000, "history"), flow=KEY, server_name="www.example.org"
        ),
        context=CONTEXT,
        evaluations=(Evaluation(ON_WIFI, 0.5, 0.25, 1.0, 2.0, 0.0, 0.5),),
        choice=ON_WIFI,
        objective="max-s",
        reason="shortest",
    )


class FakeDaemon:
    """A real backend, though of a daemon that does nothing."""

    def __init__(self):
        self.hints = {}
        self.budgets = {}
        self.budget_problems = []
        self.said_phone = None
        self.choices = []
        self.direct = False
        self.prefetching_said = []
        self.told_carrying = []
        self.usage_since = None
        self.told = None
        self.fault = None
        self.delay_s = 0.0
        self.marks = True
        self.number = 7

    async def _before(self):
        await asyncio.sleep(self.delay_s)
        if self.fault:
            raise self.fault

    async def networks(self):
        await self._before()
        return [NetworkMessage.of(WIFI, CONTEXT, 101.0)]

    async def flows(self):
        await self._before()
        subflow = SubflowMessage(flow=flow_text(KEY), network="wlan0")
        return [FlowMessage(flow=flow_text(KEY), strategy=ON_WIFI, subflows=[subflow])]

    async def status(self):
        return self.told or StatusMessage(
            version="1",
            pid=7,
            uptime_s=3.0,
            dry_run=False,
            objective="max-s",
            networks=await self.networks(),
            default=DefaultMessage(network="wlan0", reason="fastest"),
            flows=await self.flows(),
            problems=[],
            budget_problems=self.budget_problems,
        )

    async def explain(self, flow):
        await self._before()
        if flow is None or flow == "7" or flow_matches(flow, KEY, "www.example.org"):
            return DecisionMessage.of(decision(7))
        raise NotFoundError(f"no decision about {flow} is known")

    async def choose(self, request):
        await self._before()
        self.choices.append(request)
        direct = None if request.detour is None else self.direct
        return DecisionMessage.of(replace(decision(8), transfer=request.transfer), direct=direct)

    async def prefetching(self, request, uid):
        self.prefetching_said.append(request)
        state = {"name": "on", "active_w": 2.0, "linger_w": 1.0, "linger_s": 4.0}
        radio = {
            "source": "a test", "idle_w": 0.0, "promotion_w": 1.0, "promotion_s": 1.0,
            "states": [state],
        }  # fmt: skip
        return PrefetchingAnswer(
            networks=await self.networks(),
            radios={"wlan0": RadioMessage(radio=radio, shares={"on": 0.5}, idle_s=3.0)},
            prices=[PriceMessage(resource="energy", s_per_unit=0.2, steps=((10.0, 0.3),))],
        )

    async def report_carried(self, report, uid):
        self.told_carrying.append((report, uid))

    async def _nothing(self, *_asked): ...

    transfer = transfers = rules = add_rule = remove_rule = recording = record = _nothing

    async def changes(self, seen=-1, wait_s=0.0):
        until_s = time.monotonic() + wait_s
        while self.number == seen and time.monotonic() < until_s:
            await asyncio.sleep(0.005)
        return self.number

    async def hint(self, hint, uid):
        await self._before()
        number = len(self.hints) + 1
        self.hints[number] = hint
        mark = program_mark(number) if hint.program and self.marks else None
        return HintAccepted(number=number, network="wlan0", mark=mark)

    async def unhint(self, number, uid):
        if self.hints.pop(number, None) is None:
            raise NotFoundError(f"there is no hint {number}")

    async def standing_budgets(self):
        return list(self.budgets.values())

    async def usage(self, since_unix_s):
        return self.usage_since or UsageMessage(since_unix_s=since_unix_s)

    async def set_budget(self, budget):
        await self._before()
        earlier = self.budgets.get(budget.name)
        hard = earlier is not None and earlier.hard if budget.hard is None else budget.hard
        self.budgets[budget.name] = BudgetMessage.of(
            replace(budget, hard=hard),
            spent=0.25 * budget.supply,
            begins_unix_s=1.79e9,
            ends_unix_s=1.8e9,
            forecast=0.9 * budget.supply,
            forecast_low=0.8 * budget.supply,
            forecast_high=1.1 * budget.supply,
            s_per_unit=3e-7,
            bought_s=120.0,
        )
        return self.budgets[budget.name]

    async def phone(self):
        said = self.said_phone
        source = "configuration" if said is None else "command"
        return PhoneMessage(phone=said or PhoneUse.TO_SAVE_TIME, source=source)

    async def prefer(self, phone):
        self.said_phone = phone
        return await self.phone()

    async def remove_budget(self, name):
        if self.budgets.pop(name, None) is None:
            raise NotFoundError(f"there is no budget {name}")


@contextmanager
def serving(daemon, path):
    """Serves `daemon` on `path` from a thread; yields what runs a function in that thread's loop."""
    started, stop = threading.Event(), asyncio.Event()
    failed = []
    loop = asyncio.new_event_loop()

    async def serve():
        try:
            async with ControlServer(daemon, path):
                started.set()
                await stop.wait()
        except BaseException as error:
            failed.append(error)
            started.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        if failed:
            raise failed[0]
        yield loop.call_soon_threadsafe
    finally:
        if not failed:
            loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@pytest.fixture(autouse=True)
def no_call_blocks_an_event_loop():
    """Fail a test in which our code had an event loop, and all that it serves, wait."""
    yield
    assert loop_watch.unknown() == {}


@pytest.fixture
def fake_daemon():
    """The daemon behind `control`; set its `fault` or `delay_s` to make it fail or dawdle."""
    return FakeDaemon()


@pytest.fixture
def serve():
    """`with serve(daemon, path):` for tests that start and stop servers themselves."""
    return serving


@pytest.fixture
def control(fake_daemon, tmp_path):
    """The path of a control socket on which `fake_daemon` answers."""
    path = tmp_path / "run" / "control.sock"
    with serving(fake_daemon, path):
        yield path


@pytest.fixture
def make_decision():
    """Makes a decision of a given number."""
    return decision


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The folder that holds `state` and `run`."""
    monkeypatch.setenv("CEDOS_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


@pytest.fixture
def cedos(folders):
    """Runs `cedos` with arguments; the result has exit_code, stdout and stderr."""

    def run(*arguments):
        result = CliRunner().invoke(main, arguments, prog_name="cedos")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
