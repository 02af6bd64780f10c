"""Whatever happens, in whatever order: commands name what is there, nothing flaps, timers end."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.controller import KEY, LTE, MONTH, WLAN, Script, size_of, spent

from cedos.budget_kinds import Resource
from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.codec import encode_commands
from cedos.controller.commands import NOWHERE, Command
from cedos.controller.controller import Controller
from cedos.controller.events import Event, FlowSample, Witness
from cedos.controller.hint import HintRequest
from cedos.controller.rule import RuleRequest
from cedos.controller.snapshot import restore, snapshot
from cedos.model import Budget, Direction, FlowKey, Network

ETH = replace(WLAN, name="eth0", interface="eth0", index=4, addresses=())
NETWORKS = {"wlan0": WLAN, "lte0": LTE, "eth0": ETH}
KEYS = [
    replace(KEY, local=ip_address(local), local_port=4000 + number)
    for number in range(3)
    for local in ("10.0.0.2", "10.1.0.2")
]
MOST_MOVES, WITHIN_S = 6, 10.0
PLAN = Budget("plan", Resource.DATA, 1e9, "2033-06-21T00:00:00")
names = st.sampled_from(sorted(NETWORKS))
keys = st.sampled_from(KEYS)


@dataclass(frozen=True)
class Step:
    """Something that happens so many seconds after what came before it."""

    kind: str
    after_s: float
    network: str
    key: FlowKey
    amount: int
    yes: bool


steps = st.builds(
    Step,
    st.sampled_from(
        (
            *("network", "open", "close", "join", "size", "look", "ping", "lost", "heard"),
            *("rule", "unrule", "bar", "spend", "hint", "unhint", "defaults", "reply", "portal"),
            *("sleep", "refuse", "rates"),
        )
    ),
    st.sampled_from((0.0, 0.0, 0.05, 0.2, 1.0, 4.0)),
    names,
    keys,
    st.integers(0, 5_000_000),
    st.booleans(),
)


class World(Script):
    """A host on which anything happens; it carries commands out, or refuses them, and checks them."""

    def __init__(self) -> None:
        self.there: dict[str, Network] = {"wlan0": WLAN, "lte0": LTE}
        self.barred: dict[str, str] = {}
        self.uses: dict[str, on.BudgetUse] = {}
        self.bytes_: dict[FlowKey, int] = {}
        self.heard_s: dict[FlowKey, float] = {}
        self.tokens: dict[FlowKey, int] = {}
        self.refusing = False
        self.page = on.PortalFinding(on.PortalVerdict.FREE, "as it should be")
        self.tls: on.TlsAnswer | None = on.TlsAnswer.PROVEN
        self.pinged: dict[str, float] = {}
        self.moved_at_s: defaultdict[int, deque[float]] = defaultdict(
            lambda: deque(maxlen=MOST_MOVES + 1)
        )
        super().__init__(close_stuck="after", closes_after_s=1.0, close_stuck_ports=frozenset({80}))

    def up(self, name: str) -> bool:
        return name in self.there and self.there[name].up and name not in self.barred

    # -- what happens ---------------------------------------------------------------------------

    def happens(self, step: Step) -> None:
        self.wait(self.now_s + step.after_s, self.carry_out)
        waiting = self.tell(*self.events(step))
        rounds = 0
        while waiting:
            rounds += 1
            assert rounds < 100, f"commands and their events do not end: {waiting[:3]}"
            waiting = self.tell(*(event for each in waiting for event in self.carry_out(each)))

    def events(self, step: Step) -> Sequence[Event]:
        now_s, key, network = self.now_s, step.key, step.network
        match step.kind:
            case "network":
                if step.yes or network not in self.there:
                    self.there[network] = replace(NETWORKS[network], up=step.yes)
                else:
                    del self.there[network]
                return [on.NetworksChanged(tuple(self.there.values()))]
            case "open":
                self.bytes_.setdefault(key, 0)
                self.heard_s[key] = now_s
                return [on.FlowOpened(key, now_s, 100.0 + now_s)]
            case "close":
                carried = self.bytes_.pop(key, 0)
                self.tokens.pop(key, None)
                return [on.FlowClosed(key, 100.0 + now_s, carried, 300, at_s=now_s)]
            case "join":
                token = self.tokens[key] = key.local_port
                self.bytes_.setdefault(key, 0)
                self.heard_s.setdefault(key, now_s)
                return [on.SubflowJoined(token, key, step.yes)]
            case "size":
                size = size_of(step.amount)
                way = Direction.DOWN if step.yes else Direction.UP
                return [on.SizeLearned(key, way, size)]
            case "look":
                return [self.look(step)]
            case "ping":
                self.pinged.pop(network, None)
                return [on.PingEnded(network, 0.01 + step.amount / 1e7, now_s - 0.1, now_s)]
            case "lost":
                self.pinged[network] = now_s
                return [on.PingEnded(network, None, now_s - 1.0, now_s)]
            case "heard":
                witness = list(Witness)[step.amount % len(Witness)]
                return [on.Witnessed(network, step.yes, witness, now_s, now_s - 1.0)]
            case "rule":
                which = {"only" if step.yes else "never": (network,)}
                host = str(key.remote) if step.amount % 2 else "updates.example"
                return [on.RuleSet(1 + step.amount % 3, RuleRequest(host=host, **which))]
            case "unrule":
                return [on.RuleSet(1 + step.amount % 3, None)]
            case "bar":
                self.barred = {network: f"{network} is barred"} if step.yes else {}
                *told, counted = spent(*self.barred)
                self.uses.pop("data", None)
                return [*told, self.counted(*counted.uses)]
            case "spend":
                plan = replace(PLAN, supply=1e6 + step.amount)
                told = [on.BudgetSet(1e3 + now_s, plan, MONTH)] if step.yes else []
                if "plan" not in self.controller.budgets.keepers and not told:
                    return []
                use = on.BudgetUse("plan", float(step.amount), MONTH, "2034-01-01 00:00")
                return [*told, self.counted(use)]
            case "hint":
                about: dict[str, Any] = {"size_bytes": max(step.amount, 1), "lifetime_s": 5.0}
                hint = HintRequest(destination="203.0.113.0/24", port=443, **about)
                program = HintRequest(program="curl", **about)
                return [on.HintGiven(hint if step.yes else program, step.amount % 3)]
            case "unhint":
                return [on.HintWithdrawn(max(self.controller.hints.last - step.amount % 3, 0))]
            case "defaults":
                kept = {4: on.HostDefault("tun0", vpn=True, what="a tunnel")} if step.yes else {}
                return [on.HostDefaultsChanged(kept)]
            case "reply":
                reply = on.DnsReply(1, 0, False, "updates.example", 1, (key.remote,))
                if step.amount % 3 == 0:
                    return [on.NameLookedUp("updates.example", {4: reply} if step.yes else {})]
                replies = ((reply,), ()) if step.yes else ((), (reply,))
                number = step.amount if step.amount % 2 else None
                return [on.AnswersRead(number, *replies)]
            case "portal":
                hosts = {"portal": (key.remote,)}
                verdict = list(on.PortalVerdict)[step.amount % len(on.PortalVerdict)]
                self.page = on.PortalFinding(verdict, "as it is", hosts=hosts)
                self.tls = list(on.TlsAnswer)[step.amount % len(on.TlsAnswer)] if step.yes else None
                return [on.PortalDoubted()]
            case "sleep":
                return [on.HostSlept(step.amount / 1000), on.ClockRead(2e9 + now_s)]
            case "refuse":
                self.refusing = step.yes
            case "rates":
                self.model.rate_bps["wifi" if step.yes else "cellular"] = 1e5 + 10.0 * step.amount
        return []

    def counted(self, *uses: on.BudgetUse) -> on.BudgetsCounted:
        """The use of all budgets, of which that of these has changed."""
        self.uses |= {each.name: each for each in uses}
        return on.BudgetsCounted(1e3 + self.now_s, tuple(self.uses.values()))

    def look(self, step: Step) -> on.FlowsSampled:
        if step.yes and step.key in self.bytes_:
            self.bytes_[step.key] += step.amount
            self.heard_s[step.key] = self.now_s
        samples = tuple(
            FlowSample(
                *(key, self.now_s, 1, self.tokens.get(key), 0.02, 0.02, None, carried, 300, 0),
                idle_down_s=self.now_s - self.heard_s[key],
                unacknowledged=step.amount % 2,
                idle_ack_s=self.now_s - self.heard_s[key],
            )
            for key, carried in self.bytes_.items()
        )
        return on.FlowsSampled(samples, dict(self.pinged))

    # -- what is commanded ----------------------------------------------------------------------

    def carry_out(self, command: Command) -> Sequence[Event]:
        self.check(command)
        if self.refusing and isinstance(
            command, give.SetDefault | give.SetDestinations | give.SetMark | give.MoveConnection
        ):
            places = tuple(getattr(command, "wanted", ()))
            return [on.CommandFailed(command, places)]
        match command:
            case give.LookAtFlows():
                return [self.look(Step("look", 0.0, "", KEY, 0, False))]
            case give.SetFirstTimeouts():
                return [on.FirstTimeoutsSet(True)]
            case give.LookAtFirstPacket(key):
                waited_s = self.now_s - self.heard_s.get(key, self.now_s)
                if key not in self.bytes_ or self.bytes_[key]:
                    return [on.FirstPacketAnswered(key)]
                left_s = 0.25 - waited_s % 0.25
                return [on.FirstPacketSeen(key, left_s, int(waited_s / 0.25), {})]
            case give.BarNetworks():
                why = "it is refused" if self.refusing else ""
                failed = on.CommandFailed(command, why=why)
                return [failed if self.refusing else on.CommandDone(command)]
            case give.CheckPage(network, number):
                return [on.PageChecked(network, number, self.page)]
            case give.ShakeHands(network, number):
                return [on.HandshakeEnded(network, number, self.tls)]
            case give.RescueFlow() | give.CloseConnection():
                return [] if self.refusing else [on.CommandDone(command)]
        return []

    def check(self, command: Command) -> None:
        """A command that leads somewhere names a network that is there, is up and is not barred."""
        match command:
            case give.SetDefault(network, others):
                led = {network, *others.values()}
            case give.SetDestinations(wanted):
                led = {each for each in wanted.values() if each not in (None, NOWHERE)}
            case give.SetMark(_, network):
                led = {network} - {None}
            case give.MoveConnection(token, strategy):
                led = set(strategy.networks)
                moved = self.moved_at_s[token]
                moved.append(self.now_s)
                often = len(moved) > MOST_MOVES and self.now_s - moved[0] < WITHIN_S
                free = self.refusing or self.forced or bool(self.controller.networks.silent)
                assert not often or free, f"it flaps: {list(moved)}"
            case give.RescueFlow(_, network):
                led = {network}
            case _:
                return
        assert all(self.up(each) for each in led if each), command

    forced = False
    """Whether networks come and go, so that moving often is right."""


class Restored(World):
    """A world beside which a second controller gets the same events; it was restored in the middle."""

    def __init__(self) -> None:
        self.second: Controller | None = None
        super().__init__()

    def restore(self) -> None:
        """The controller's state is written, and read as another controller."""
        apart = {"model": self.model}
        written = msgspec.msgpack.encode(snapshot(self.controller, apart))
        self.second = restore(msgspec.msgpack.decode(written), apart)

    def tell(self, *events: Event, at_s: float | None = None) -> list[Command]:
        found: list[Command] = []
        for event in events:
            given = super().tell(event, at_s=at_s)
            found += given
            if self.second is not None:
                self.second.handle(event, self.now_s)
                assert encode_commands(self.second.commands()) == encode_commands(given)
                assert self.second.next_timer_s() == self.controller.next_timer_s()
                assert self.second.budgets.state() == self.controller.budgets.state()
                assert self.second.decider.objective == self.controller.decider.objective
        return found


@settings(max_examples=20)
@given(st.lists(steps, max_size=25), st.integers(0, 24))
def test_a_controller_restored_in_the_middle_commands_the_same_from_then_on(
    happened: list[Step], middle: int
) -> None:
    world = Restored()
    for number, step in enumerate(happened):
        if number == middle:
            world.restore()
        world.happens(step)
    world.wait(world.now_s + 10.0, world.carry_out)


@settings(max_examples=20)
@given(st.lists(steps, max_size=25))
def test_whatever_happens_commands_name_networks_that_are_up(happened: list[Step]) -> None:
    world = World()
    world.forced = True
    for step in happened:
        world.happens(step)
    # Once nothing happens any more, timers do not fire without end.
    world.wait(world.now_s + 10.0, world.carry_out)


CALM = st.sampled_from(("look", "look", "look", "ping", "rates", "size", "hint"))


@settings(max_examples=10)
@given(st.lists(steps.flatmap(lambda it: st.builds(replace, st.just(it), kind=CALM)), max_size=25))
def test_while_networks_stay_no_connection_moves_more_than_six_times_in_ten_seconds(
    happened: list[Step],
) -> None:
    world = World()
    for key in KEYS[:2]:
        for kind in ("open", "join", "size"):
            world.happens(Step(kind, 0.1, "wlan0", key, 50_000_000, True))
    for step in happened:
        world.happens(step)
