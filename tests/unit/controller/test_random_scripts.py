"""Whatever happens, in whatever order: commands name what is there, nothing flaps, timers end."""

from collections import defaultdict, deque
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_interface
from random import Random
from typing import get_args

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.controller import KEY, LTE, MONTH, ONLY_LTE, ONLY_WLAN, WLAN, Script, size_of, spent

from cedos.budget_kinds import Resource
from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.codec import encode_commands
from cedos.controller.commands import NOWHERE
from cedos.controller.events import Event, Witness
from cedos.controller.hint import HintRequest, PrefetchReport, StartedMessage, TakingMessage
from cedos.controller.rule import RuleRequest
from cedos.controller.snapshot import restore, snapshot
from cedos.model import (
    Budget,
    Direction,
    FlowKey,
    FlowSample,
    Indicator,
    Network,
    NetworkKind,
    PhoneUse,
    Transfer,
)
from cedos.selector.deadlines.transfer_table import TableTransfer
from cedos.selector.decision.case import Sent
from cedos.selector.decision.sessions import Detour

ETH = replace(WLAN, name="eth0", interface="eth0", index=4, addresses=())
RESOLVERS = {"wlan0": ip_address("10.0.0.53"), "lte0": ip_address("10.1.0.53")}
NETWORKS = {
    each.name: replace(each, resolvers=(RESOLVERS.get(each.name, ip_address("10.2.0.53")),))
    for each in (WLAN, LTE, ETH)
}
HELPER = Network(
    *("helper-1", "wlan0", 2, NetworkKind.HELPER, True, (ip_interface("10.0.0.9/32"),)),
    leads_to=ip_address("192.0.2.1"),
    money_per_mb=0.01,
)
KEYS = [
    replace(KEY, local=ip_address(local), local_port=4000 + number, remote=ip_address(remote))
    for number, remote in enumerate(("198.51.100.1", "198.51.100.1", "198.51.100.2"))
    for local in ("10.0.0.2", "10.1.0.2")
]
MOST_MOVES, WITHIN_S = 6, 10.0
PLANS = (
    Budget("plan", Resource.DATA, 1e9, "2033-06-21T00:00:00"),
    Budget("money", Resource.MONEY, 5.0, "2033-06-21T00:00:00", hard=True),
    Budget("charge", Resource.ENERGY, 1e5, "2033-06-21T00:00:00", battery=True),
)
TIMES_S = (0.3, 1.0, 5.0)


@dataclass(frozen=True)
class Step:
    """Something that happens so many seconds after what came before it."""

    kind: str
    after_s: float
    network: str
    key: FlowKey
    amount: int
    yes: bool


KINDS = (
    *("network", "open", "close", "join", "steerable", "size", "sizes", "look", "mark"),
    *("ping", "lost", "heard", "indicators", "counters", "attach", "providers"),
    *("rule", "unrule", "bar", "spend", "unbudget", "hint", "unhint", "defaults", "reply"),
    *("portal", "sleep", "refuse", "rates", "late", "choose", "made", "transfer", "ended"),
    *("battery", "phone", "prefetch", "hosts", "lookup", "answered"),
)
# Without these little else happens.
USUAL = ("network", "open", "look")


def steps(kinds):
    """Return steps of these kinds."""
    pauses = st.sampled_from((0.0, 0.0, 0.05, 0.2, 1.0, 4.0))
    names, keys = st.sampled_from(sorted(NETWORKS)), st.sampled_from(KEYS)
    return st.builds(Step, kinds, pauses, names, keys, st.integers(0, 5_000_000), st.booleans())


# A script has few kinds of steps, so that these meet often.
scripts = st.sets(st.sampled_from(KINDS), min_size=1, max_size=6).flatmap(
    lambda some: st.lists(steps(st.sampled_from(sorted({*some, *USUAL}))), max_size=30)
)


class World(Script):
    """A host on which anything happens; it carries commands out, or refuses them, and checks them."""

    def __init__(self):
        self.there = {name: NETWORKS[name] for name in ("wlan0", "lte0")}
        self.barred = {}
        self.uses = {}
        self.bytes_ = {}
        self.heard_s = {}
        self.tokens = {}
        self.refusing = False
        # Answers that take their time come with the next step of this kind; None: at once.
        self.late = None
        self.step = Step("", 0.0, "wlan0", KEY, 0, True)
        self.page = on.PortalFinding(on.PortalVerdict.FREE, "as it should be")
        self.tls = on.TlsAnswer.PROVEN
        self.pinged = {}
        self.told = set()
        self.moved_at_s = defaultdict(lambda: deque(maxlen=MOST_MOVES + 1))
        super().__init__(
            close_stuck="after",
            closes_after_s=1.0,
            short_queues=True,
        )
        self.tell(on.ClockRead(2e9))

    def up(self, name):
        return name in self.there and self.there[name].up and name not in self.barred

    def tell(self, *events, at_s=None):
        self.told |= {type(each) for each in events}
        return super().tell(*events, at_s=at_s)

    # -- what happens ---------------------------------------------------------------------------

    def happens(self, step):
        self.wait(self.now_s + step.after_s, self.carry_out)
        self.step = step
        waiting = self.tell(*self.events(step))
        rounds = 0
        while waiting:
            rounds += 1
            assert rounds < 100, f"commands and their events do not end: {waiting[:3]}"
            waiting = self.tell(*(event for each in waiting for event in self.carry_out(each)))

    def events(self, step):
        now_s, key, network = self.now_s, step.key, step.network
        match step.kind:
            case "network":
                if step.yes or network not in self.there:
                    self.there[network] = replace(NETWORKS[network], up=step.yes)
                else:
                    del self.there[network]
                helpers = (HELPER,) if step.amount % 3 == 0 else ()
                return [on.NetworksChanged(tuple(self.there.values()), helpers)]
            case "open":
                self.bytes_.setdefault(key, 0)
                self.heard_s[key] = now_s
                return [on.FlowOpened(key, now_s, 100.0 + now_s)]
            case "mark":
                self.bytes_.setdefault(key, 0)
                self.heard_s[key] = now_s
                marks = [None, *self.controller.programs.marks]
                mark = marks[step.amount % len(marks)]
                return [on.FlowOpened(key, now_s, 100.0 + now_s, mark=mark)]
            case "close":
                carried = self.bytes_.pop(key, 0)
                self.tokens.pop(key, None)
                return [on.FlowClosed(key, 100.0 + now_s, carried, 300, at_s=now_s)]
            case "join":
                token = self.tokens[key] = key.local_port
                self.bytes_.setdefault(key, 0)
                self.heard_s.setdefault(key, now_s)
                return [on.SubflowJoined(token, key, step.yes)]
            case "steerable":
                return [on.Steerable(key.local_port, step.yes)]
            case "size":
                size = size_of(step.amount)
                way = Direction.DOWN if step.yes else Direction.UP
                return [on.SizeLearned(key, way, size)]
            case "sizes":
                way = Direction.DOWN if step.yes else Direction.UP
                return [on.SizesKnown(key.remote, key.remote_port, {way: size_of(step.amount)})]
            case "look":
                return [self.look(step)]
            case "defaults":
                kept = {4: on.HostDefault("tun0", vpn=True, what="a tunnel")} if step.yes else {}
                return [on.HostDefaultsChanged(kept)]
            case "refuse":
                self.refusing = step.yes
            case "late":
                answers, self.late = self.late or [], [] if step.yes else None
                return answers
            case "rates":
                self.model.rate_bps["wifi" if step.yes else "cellular"] = 1e5 + 10.0 * step.amount
            case "rule" | "unrule" | "hint" | "unhint" | "choose" | "made" | "prefetch":
                return self.asked(step)
            case "bar" | "spend" | "unbudget" | "phone" | "battery" | "transfer" | "ended":
                return self.spent(step)
            case "reply" | "hosts" | "lookup" | "answered":
                return self.looked_up(step)
            case _:
                return self.observed(step)
        return []

    def observed(self, step):
        """Return facts about a network, and about the host."""
        now_s, network = self.now_s, step.network
        match step.kind:
            case "ping":
                self.pinged.pop(network, None)
                return [on.PingEnded(network, 0.01 + step.amount / 1e7, now_s - 0.1, now_s)]
            case "lost":
                self.pinged[network] = now_s
                return [on.PingEnded(network, None, now_s - 1.0, now_s)]
            case "heard":
                witness = list(Witness)[step.amount % len(Witness)]
                return [on.Witnessed(network, step.yes, witness, now_s, now_s - 1.0)]
            case "indicators":
                name = ("past5_bps", "past1_up_bps", "rtt_s", "rssi_dbm")[step.amount % 4]
                value = -50.0 if name == "rssi_dbm" else 0.01 + step.amount / 10
                return [on.IndicatorsRead(network, {name: Indicator(value, now_s, step.yes)})]
            case "counters":
                return [on.CountersRead(network, step.amount, step.amount // 10)]
            case "attach":
                return [on.Attached(network, f"02:00:00:00:00:0{step.amount % 3}", "home")]
            case "providers":
                return [on.ProvidersRead()]
            case "portal":
                hosts = {"portal": (step.key.remote,)}
                verdict = list(on.PortalVerdict)[step.amount % len(on.PortalVerdict)]
                self.page = on.PortalFinding(verdict, "as it is", hosts=hosts)
                self.tls = list(on.TlsAnswer)[step.amount % len(on.TlsAnswer)] if step.yes else None
                return [on.HostSlept(0.0)]  # all networks are checked again
        assert step.kind == "sleep"
        return [on.HostSlept(step.amount / 1000), on.ClockRead(2e9 + now_s)]

    def asked(self, step):
        """Return wishes of people and programs about connections."""
        key, network = step.key, step.network
        size = size_of(step.amount)
        match step.kind:
            case "rule":
                which = {"only" if step.yes else "never": (network,)}
                host = str(key.remote) if step.amount % 2 else "updates.example"
                return [on.RuleSet(1 + step.amount % 3, RuleRequest(host=host, **which))]
            case "unrule":
                return [on.RuleSet(1 + step.amount % 3, None)]
            case "hint":
                about = {"size_bytes": max(step.amount, 1)}
                about["lifetime_s"] = TIMES_S[step.amount % len(TIMES_S)]
                place = f"198.51.100.{1 + step.amount % 8}/32"  # so many wait for their turns
                hint = HintRequest(destination=place, port=80, **about)
                program = HintRequest(program="curl", **about)
                return [on.HintGiven(hint if step.yes else program, step.amount % 3)]
            case "unhint":
                return [on.HintWithdrawn(max(self.controller.hints.last - step.amount % 3, 0))]
            case "choose":
                sent = Sent(network, 0.3) if step.amount % 3 == 0 else None
                detour = Detour(0.05, 443) if step.amount % 3 == 1 else None
                again = step.amount % 5 > 2
                return [on.ChoiceAsked(Transfer(size), again, step.yes, sent, detour)]
            case "made":
                choice = ONLY_WLAN if step.yes else ONLY_LTE
                return [on.DecisionMade(Transfer(size), choice, "as it was decided")]
        way = TakingMessage(1.0 + step.amount / 1e6, 2.0, [float(step.amount)])
        report = PrefetchReport(
            program="mail" if step.yes else "news",
            pid=1 + step.amount % 2,
            networks=[network],
            waiting=[[way]] * (step.amount % 3),
            started=[StartedMessage([way], 0)] * (step.amount % 2),
            used_bytes=[step.amount / 2],
            used_j=0.5,
        )
        return [on.PrefetchingChanged(report)]

    def spent(self, step):
        """Return events of budgets, the battery and transfers with deadlines."""
        now_s, network = self.now_s, step.network
        plan = PLANS[step.amount % len(PLANS)]
        match step.kind:
            case "bar":
                self.barred = {network: f"{network} is barred"} if step.yes else {}
                *told, counted = spent(*self.barred)
                self.uses.pop("data", None)
                if "data" not in self.controller.budgets.keepers and not step.yes:
                    return []
                return [*told, self.counted(*counted.uses)]
            case "spend":
                if not plan.battery:
                    plan = replace(plan, supply=1e6 + step.amount)
                told = []
                if step.yes:
                    stamped = plan.name in self.controller.budgets.keepers and step.amount % 2 == 0
                    told = [on.BudgetSet(1e3 + now_s, plan, MONTH, stamped)]
                if plan.name not in self.controller.budgets.keepers and not told:
                    return []
                spent_ = 0.0 if plan.battery else float(step.amount)
                if plan.hard:
                    spent_ /= 1e7  # it bars nothing
                use = on.BudgetUse(plan.name, spent_, MONTH, "2034-01-01 00:00")
                return [*told, self.counted(use)]
            case "unbudget":
                if plan.name not in self.controller.budgets.keepers:
                    return []
                self.uses.pop(plan.name, None)
                return [on.BudgetRemoved(plan.name), self.counted()]
            case "phone":
                uses = (None, *PhoneUse)
                return [on.PhoneUseChanged(uses[step.amount % len(uses)])]
            case "battery":
                level = step.amount / 5e6
                read = on.BatteryRead(level, step.yes, 1e5 * level)
                return [on.BatteryRead() if step.amount % 5 == 0 else read]
            case "ended":
                return [on.TransferEnded(f"film-{step.amount % 3}", step.amount % 2, now_s)]
        size = step.amount if step.amount % 4 else None
        unix_s = self.controller.decider.unix_s(now_s)
        transfer = TableTransfer(
            *(f"film-{step.amount % 3}", step.amount % 2, "film", "files.example"),
            Direction.DOWN if step.yes else Direction.UP,
            size,
            step.amount // 2,
            unix_s + (-8 * 86_400.0 if step.amount % 7 == 0 else 60.0),
            again_unix_s=unix_s + 5.0 if step.amount % 5 == 0 else None,
        )
        used = {network: step.amount // 4}
        return [on.TransferReported(transfer, now_s, used, 1.0)]

    def looked_up(self, step):
        """Return look-ups of programs, and answers that carry names."""
        reply = on.DnsReply(1, 0, False, "updates.example", 1, (step.key.remote,))
        match step.kind:
            case "reply" if step.amount % 3 == 0:
                return [on.NameLookedUp("updates.example", {4: reply} if step.yes else {})]
            case "reply":
                replies = ((reply,), (), ()) if step.yes else ((), (reply,), ())
                if step.amount % 5 == 0:
                    replies = replies[::-1]
                number = step.amount if step.amount % 2 else None
                return [on.AnswersRead(number, *replies)]
            case "hosts":
                return [
                    on.HostsFileRead({"updates.example": [step.key.remote]} if step.yes else {})
                ]
        resolver = RESOLVERS.get(step.network, ip_address("9.9.9.9"))
        asked = replace(step.key, remote=resolver, remote_port=53, protocol="udp")
        number, name = step.amount % 3, f"name-{step.amount % 2}.example"
        if step.kind == "lookup":
            return [on.LookupAsked(asked, number, name, step.network, public=step.yes)]
        return [on.LookupAnswered(asked, number, failed=step.yes)]

    def counted(self, *uses):
        """Return the use of all budgets, of which that of these has changed."""
        self.uses |= {each.name: each for each in uses}
        return on.BudgetsCounted(1e3 + self.now_s, tuple(self.uses.values()))

    def look(self, step):
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

    def carry_out(self, command):
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
            case give.RescueFlow() | give.CloseConnection():
                return [] if self.refusing else [on.CommandDone(command)]
            case give.SetRuled(wanted):
                places = tuple(wanted)[:1]
                return [
                    on.CommandFailed(command, places) if self.refusing else on.CommandDone(command)
                ]
        answers = list(self.answers(command))
        if self.late is None:
            return answers
        self.late += answers
        return []

    def answers(self, command):
        """Yield the events of a command that takes its time."""
        now_s, yes = self.now_s, self.step.yes
        match command:
            case give.BarNetworks() | give.HoldAnswers():
                failed = on.CommandFailed(command, why="it is refused")
                yield failed if self.refusing else on.CommandDone(command)
            case give.KeepAwake() | give.LeaveSpares() if self.refusing:
                yield on.CommandFailed(command, why="it is refused")
            case give.CheckPage(network, number):
                yield on.PageChecked(network, number, self.page)
            case give.ShakeHands(network, number):
                yield on.HandshakeEnded(network, number, self.tls)
            case give.AskNetwork(network) if yes:
                yield on.PingEnded(network, 0.02, now_s - 0.1, now_s)
            case give.AskName(network):
                yield on.Witnessed(network, yes, Witness.NAME, now_s, now_s - 0.5)
            case give.AskResolver(key, number, attempt):
                refused = (None, True, False)[self.step.amount % 3]
                yield on.ResolverReplied(key, number, attempt, refused)
            case give.LookUpName(name):
                reply = on.DnsReply(1, 0, False, name, 1, (self.step.key.remote,))
                yield on.NameLookedUp(name, {4: reply} if yes else {})
            case give.CountUse():
                yield self.counted()
            case give.TurnsChanged(keys):
                for _ in keys:
                    yield on.DecisionMade(self.controller.decider.unknown(), ONLY_WLAN, "its turn")

    def check(self, command):
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
                verdicts = self.controller.networks.keeper.verdicts(self.now_s).values()
                leaves = bool(self.controller.networks.silent) or any(v.condemned for v in verdicts)
                free = self.refusing or self.forced or leaves
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

    def __init__(self):
        self.second = None
        super().__init__()

    def restore(self):
        """The controller's state is written, and read as another controller."""
        apart = {"model": self.model}
        written = msgspec.msgpack.encode(snapshot(self.controller, apart))
        self.second = restore(msgspec.msgpack.decode(written), apart)

    def tell(self, *events, at_s=None):
        found = []
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
@given(scripts, st.integers(0, 24))
def test_a_controller_restored_in_the_middle_commands_the_same_from_then_on(happened, middle):
    world = Restored()
    for number, step in enumerate(happened):
        if number == middle:
            world.restore()
        world.happens(step)
    world.wait(world.now_s + 10.0, world.carry_out)


@settings(max_examples=20)
@given(scripts)
def test_whatever_happens_commands_name_networks_that_are_up(happened):
    world = World()
    world.forced = True
    for step in happened:
        world.happens(step)
    # Once nothing happens any more, timers do not fire without end.
    world.wait(world.now_s + 10.0, world.carry_out)


CALM = st.sampled_from(("look", "look", "look", "ping", "rates", "size", "hint"))


# Both networks die by turns: a connection leaves the dead one at once, however often it has moved.
DYING = [
    *(Step("look", 0.0, "eth0", KEYS[0], 0, False) for _ in range(4)),
    Step("look", 0.0, "eth0", KEYS[1], 1, True),
    *(Step("look", after_s, "eth0", KEYS[0], 0, False) for after_s in (1.0, 4.0, 4.0)),
]


@settings(max_examples=10)
@given(st.lists(steps(CALM), max_size=25))
@example(DYING)
def test_while_networks_stay_no_connection_moves_more_than_six_times_in_ten_seconds(happened):
    world = World()
    for key in KEYS[:2]:
        for kind in ("open", "join", "size"):
            world.happens(Step(kind, 0.1, "wlan0", key, 50_000_000, True))
    for step in happened:
        world.happens(step)


def test_scripts_draw_each_kind_of_event():
    world, draw = World(), Random(1)
    world.forced = True
    for _ in range(20):
        for kind in draw.sample(KINDS, len(KINDS)):
            about = draw.choice(sorted(NETWORKS)), draw.choice(KEYS)
            world.happens(Step(kind, 0.05, *about, draw.randrange(5_000_000), draw.random() < 0.5))
    assert world.told == set(get_args(Event))
