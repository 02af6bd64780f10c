"""Scripts for the controller: events at given times go in, commands come out. No clock, no kernel."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import Any, TypeVar

from cedos.budget_kinds import Resource
from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.commands import Command
from cedos.controller.config import Choices, ControllerConfig
from cedos.controller.controller import Controller
from cedos.controller.flows.living_flow import LivingFlow
from cedos.model import (
    Budget,
    Context,
    Decision,
    Direction,
    FlowKey,
    FlowRecord,
    FlowSample,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
    StrategyKind,
)
from cedos.selector.budgets.keeper import Period
from cedos.selector.objective import MaxS
from cedos.selector.uncertainty.times import CompletionModel
from predictors.base import Distribution

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
SERVER = ip_address("198.51.100.1")
KEY = FlowKey(ip_address("10.0.0.2"), 4000, SERVER, 80)
TOKEN = 7
ONLY_WLAN = Strategy(StrategyKind.SINGLE, ("wlan0",))
ONLY_LTE = Strategy(StrategyKind.SINGLE, ("lte0",))

STEERING = (
    give.SetDefault, give.SetDestinations, give.SetRuled, give.SetMark, give.MoveConnection,
    give.ReleasePath,
)  # fmt: skip
C = TypeVar("C", bound=Command)


class Rates:
    """Predictors to play with: a round trip and a rate per network; MPTCP adds the rates."""

    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = ("size_bytes",)

    def __init__(self) -> None:
        self.rtt_s = {"wifi": 0.02, "cellular": 0.08}
        self.rate_bps = {"wifi": 1e6, "cellular": 20e6}
        self.alone = False

    def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
        bits = 8 * features["size_bytes"]
        times = {name: 2 * self.rtt_s[name] + bits / self.rate_bps[name] for name in self.rtt_s}
        if self.alone:  # no MPTCP
            return {name: Distribution((time_s,)) for name, time_s in times.items()}
        both = bits / sum(self.rate_bps.values())
        times["mptcp_wifi"] = 3 * self.rtt_s["wifi"] + both + 0.1
        times["mptcp_cellular"] = 3 * self.rtt_s["cellular"] + both + 0.1
        return {name: Distribution((time_s,)) for name, time_s in times.items()}


def size_of(bytes_: int, source: str = "content-length") -> SizeEstimate:
    """A size that is known."""
    return SizeEstimate(bytes_, bytes_, bytes_, source)


class Script:
    """A controller with Wi-Fi and LTE, which came at 8 s, and what it has commanded."""

    def __init__(
        self,
        model: Any = None,
        *,
        rules: object = None,
        transfers: object = None,
        budgets: object = None,
        records: Sequence[FlowRecord] = (),
        **settings: Any,
    ) -> None:
        # Its predictors: `Rates`, if nothing else is given.
        self.model: Any = Rates() if model is None else model
        predictors: CompletionModel = self.model
        choices = Choices(MaxS(), predictors, 3000)
        config = ControllerConfig(choices, first_number=5)
        # To be read.
        self.controller = Controller(
            replace(config, **settings), rules, transfers, budgets, records
        )
        self.now_s = 8.0  # the time of the last event
        self.decisions: list[Decision] = []  # all that were recorded
        self._given: list[Command] = []
        self.tell(on.NetworksChanged((WLAN, LTE)))

    # -- events ---------------------------------------------------------------------------------

    def tell(self, *events: on.Event, at_s: float | None = None) -> list[Command]:
        """Events happen, at an instant; returns the commands. Timers do not fire."""
        self.now_s = self.now_s if at_s is None else at_s
        found: list[Command] = []
        for event in events:
            self.controller.handle(event, self.now_s)
            found += self.controller.commands()
        self.decisions += [each.decision for each in found if isinstance(each, give.RecordDecision)]
        self._given += found
        return found

    def decide(self, at_s: float | None = None) -> list[Command]:
        """Decide on everything again, from an instant on; return the commands."""
        now_s = self.now_s if at_s is None else at_s
        urgent = on.HostDefaultsChanged(self.controller.decider.host_defaults)
        found = self.tell(urgent, on.TimerFired(), at_s=now_s)
        # What is decided in turn follows at once.
        while (self.controller.next_timer_s() or math.inf) <= now_s:
            found += self.tell(on.TimerFired())
        return found

    def wait(
        self, until_s: float, answer: Callable[[Command], Sequence[on.Event]] = lambda _: ()
    ) -> list[Command]:
        """Time passes until an instant: each timer fires; returns the commands.

        `answer`: the events that come of a command at once, such as a look at the flows.
        """
        found: list[Command] = []
        fired = 0
        while (at_s := self.controller.next_timer_s()) is not None and at_s <= until_s:
            fired += 1
            assert fired < 10_000, f"timers do not end at {at_s}"
            waiting = self.tell(on.TimerFired(), at_s=max(at_s, self.now_s))
            while waiting:
                found += waiting
                waiting = self.tell(*(event for each in waiting for event in answer(each)))
        self.now_s = until_s
        return found

    def networks(self, *networks: Network, at_s: float | None = None) -> list[Command]:
        """These networks are there, and no others."""
        return self.tell(on.NetworksChanged(networks), at_s=at_s)

    def known(
        self, at_s: float | None = None, measured_s: float = 0.0, **said: Mapping[str, float]
    ) -> None:
        """Indicators are read: network -> name -> value; `measured_s`: so long ago."""
        now_s = self.now_s if at_s is None else at_s
        for network, values in said.items():
            indicators = {
                name: Indicator(value, now_s - measured_s) for name, value in values.items()
            }
            self.tell(on.IndicatorsRead(network, indicators), at_s=now_s)

    def barred(self, *names: str, at_s: float | None = None) -> list[Command]:
        """A hard budget of these networks is used up, and programs are kept off them; none: of none."""
        return self.tell(*spent(*names), at_s=at_s)

    def connection(
        self, key: FlowKey = KEY, *, token: int = TOKEN, movable: bool = False, at_s: float = 9.0
    ) -> LivingFlow:
        """An MPTCP connection begins over Wi-Fi; a `movable` one has a spare path."""
        self.tell(
            on.FlowOpened(key, at_s, 100.0 + at_s), on.SubflowJoined(token, key, movable), at_s=at_s
        )
        return self.flow(key)

    def flow(self, key: FlowKey = KEY) -> LivingFlow:
        """The living flow of a key."""
        found = self.controller.flows.find(key)
        assert found is not None
        return found

    def told(
        self,
        size: int,
        source: str = "content-length",
        *,
        key: FlowKey = KEY,
        direction: Direction = Direction.DOWN,
        at_once: bool = False,
        at_s: float | None = None,
    ) -> list[Command]:
        """Tell the controller how much a connection carries; `at_once`: it also decides."""
        estimate = size_of(size, source)
        return self.tell(
            on.SizeLearned(key, direction, estimate, progressed=not at_once), at_s=at_s
        )

    def sampled(
        self, *samples: FlowSample, at_s: float | None = None, **asked_at_s: float
    ) -> list[Command]:
        """A look at the sockets, at the instant of its samples; `asked_at_s`: of pending pings."""
        now_s = samples[0].at_s if at_s is None else at_s
        return self.tell(on.FlowsSampled(samples, asked_at_s), at_s=now_s)

    def checked(
        self, network: str, finding: on.PortalFinding, tls: on.TlsAnswer | None = None
    ) -> list[Command]:
        """A check for a portal begins and ends now: with this page, and this end of a handshake."""
        self.controller.portals.recheck(self.now_s)
        found = self.tell(on.TimerFired())
        (begun,) = [each for each in of_kind(give.CheckPage, found) if each.network == network]
        found += self.tell(on.PageChecked(network, begun.number, finding))
        for asked in of_kind(give.ShakeHands, found):
            answer = tls if asked.network == network else on.TlsAnswer.PROVEN
            found += self.tell(on.HandshakeEnded(asked.network, asked.number, answer))
        return found

    # -- commands -------------------------------------------------------------------------------

    def given(self, kind: type[C]) -> list[C]:
        """The commands of one kind since the last call of this or `steering`; others are forgotten."""
        given, self._given = self._given, []
        return [each for each in given if isinstance(each, kind)]

    def steering(self) -> list[Command]:
        """The commands since the last call of this or `given` that steer new or living connections."""
        given, self._given = self._given, []
        return [each for each in given if isinstance(each, STEERING)]

    def recorded(self) -> Decision:
        """The decision that was recorded last."""
        return self.decisions[-1]


def of_kind(kind: type[C], commands: Sequence[Command]) -> list[C]:
    """The commands of a kind."""
    return [each for each in commands if isinstance(each, kind)]


def led(commands: Sequence[Command]) -> dict[give.Place, str | None]:
    """Return where these commands lead destinations in the end."""
    found: dict[give.Place, str | None] = {}
    for each in commands:
        if isinstance(each, give.SetDestinations | give.SetRuled):
            found |= each.wanted
    return found


WHY_BARRED = 'because the hard budget "data" is used up (1 GB of 1 GB)'


MONTH = Period(0.0, 1e9)


def spent(*names: str) -> tuple[*tuple[on.Event, ...], on.BudgetsCounted]:
    """A hard budget of these networks is used up; none: it was taken back."""
    data = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=names, hard=True)
    use, told = on.BudgetUse("data", 1e9, MONTH, "2026-12-01 00:00"), on.BudgetSet(1e3, data, MONTH)
    if names:
        return told, on.BudgetsCounted(1e3, (use,))
    return told, on.BudgetRemoved("data"), on.BudgetsCounted(1e3, ())


class ScriptedDriver:
    """A script in the place of `ControllerDriver`: what is posted is handled, nothing is carried out."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.posted: list[on.Event] = []  # the events
        self._commands: list[Command] = []

    @property
    def controller(self) -> Controller:
        return self.script.controller

    def post(self, event: on.Event) -> None:
        self.posted.append(event)
        self._commands += self.script.tell(event)

    def now_s(self) -> float:
        return self.script.now_s

    def context(self) -> Context:
        return self.controller.context(self.script.now_s)

    def choose(self, asked: on.ChoiceAsked) -> give.AnswerChoice:
        self.post(asked)
        return self.commands(give.AnswerChoice)[-1]

    def commands(self, kind: type[C]) -> list[C]:
        """The commands of a kind since the last call; others are forgotten."""
        found, self._commands = self._commands, []
        return of_kind(kind, found)
