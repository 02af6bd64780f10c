"""Times at which the controller decides again and looks at flows: at once, each second, or every ten."""

from dataclasses import replace
from itertools import pairwise

import pytest
from kit.controller import KEY, LTE, WLAN, Script, of_kind, size_of, spent

from cedos.budget_kinds import Resource
from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.controller import CLOSE_S
from cedos.controller.rule import RuleRequest
from cedos.model import Budget, Direction, FlowSample, Transfer
from cedos.selector.deadlines.transfer_table import TableTransfer

SAMPLE = FlowSample(KEY, 10.0, 1, None, 0.02, 0.02, None, 0, 300, 0, 0.01, 0, idle_ack_s=0.1)


class Deciding(Script):
    """Remembers when all was decided on again. No flow is looked at."""

    def __init__(self, **settings):
        self.decided_at_s = []
        super().__init__(**settings)
        self.wait(8.5)
        reconsider = self.controller.reconsider

        def noted(context):
            self.decided_at_s.append(round(context.at_s, 3))
            reconsider(context)

        self.controller.reconsider = noted

    def decided(self, until_s):
        """Timers fire until then; the times of decisions since the last call."""
        self.wait(until_s)
        found, self.decided_at_s = self.decided_at_s, []
        return found


@pytest.fixture
def script():
    return Deciding()


@pytest.mark.parametrize(
    ("flow", "seconds"),
    [(False, range(9, 30, 5)), (True, range(9, 30))],
    ids=["idle", "a flow lives"],
)
def test_each_second_while_a_flow_lives_and_every_five_without(script, flow, seconds):
    if flow:
        script.tell(on.FlowOpened(KEY, 8.9, 1.0), at_s=8.9)
    for second in range(9, 30):
        script.tell(on.ProvidersRead(), at_s=float(second))
        script.wait(second + 0.5)
    assert script.decided_at_s == [float(second) for second in seconds]


def test_flows_that_send_nothing_are_not_looked_at_and_wait_for_a_decision(script):
    """An idle laptop with a terminal open was looked at and decided on each second."""
    known = script.controller

    def second(at_s, sent_bytes):
        script.tell(on.CountersRead("wlan0", 0, sent_bytes), on.ProvidersRead(), at_s=at_s)
        worth = known.worth_a_look({})
        script.tell(on.FlowsSampled((), {}, looked=worth), at_s=at_s)
        script.wait(at_s + 0.5)
        return worth

    script.tell(on.FlowOpened(KEY, 8.9, 1.0), at_s=8.9)
    assert [second(9.0, 500), second(10.0, 500), second(11.0, 500)] == [True, False, False]
    assert script.decided(11.5) == [9.0]
    assert [second(12.0, 552), second(13.0, 600)] == [True, True], "it sends again"
    assert script.decided(13.5) == [12.0, 13.0]


def test_a_flow_is_looked_at_until_nothing_has_come_for_a_second(script):
    """The bytes that it carried count as competition until a look shows that it rests."""
    known = script.controller
    script.tell(on.FlowOpened(KEY, 8.9, 1.0), on.CountersRead("wlan0", 0, 600), at_s=9.0)
    worth = []
    for at_s, idle_s in ((9.0, 0.1), (10.0, 0.6), (11.0, 1.6)):
        seen = replace(SAMPLE, at_s=at_s, idle_down_s=idle_s, idle_ack_s=idle_s)
        script.tell(on.FlowsSampled((seen,), {}), at_s=at_s)
        worth.append(known.worth_a_look({}))
    assert worth == [True, True, False]
    script.tell(on.CountersRead("wlan0", 0, 652))
    assert known.worth_a_look({}), "it sends"


URGENT = {
    "a spent budget": [*spent("lte0")],
    "another default": [on.HostDefaultsChanged({})],
}


@pytest.mark.parametrize("events", URGENT.values(), ids=URGENT.keys())
def test_what_a_person_or_a_budget_changes_counts_at_once(events):
    script = Deciding()
    script.tell(on.BudgetsCounted(1e3, ()), on.ProvidersRead(), at_s=9.0)
    script.decided(9.0)
    script.tell(*events, at_s=9.5)
    assert script.decided(9.5) == [9.5]


DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00")


def test_changed_networks_are_decided_on_within_the_event(script):
    script.networks(WLAN, replace(LTE, up=False), at_s=9.0)
    assert script.decided_at_s == [9.0]


def test_a_burst_is_one_decision_a_tenth_of_a_second_after_the_last(script):
    lost = on.PingEnded("wlan0", None, 8.9, 9.0)
    urgent = on.HostDefaultsChanged({})
    script.tell(lost, urgent, lost, urgent, at_s=9.0)
    assert script.decided(9.0) == [9.0], "one that rests answers at once"
    script.tell(urgent, at_s=9.03)
    script.tell(urgent, lost, at_s=9.05)
    assert script.decided(9.09) == []
    assert script.decided(9.3) == [9.1]
    script.tell(urgent, at_s=9.3)
    assert script.decided(9.3) == [9.3]


# -- looks ------------------------------------------------------------------------------------


class Looking(Script):
    """A controller whose looks at the sockets are answered at once."""

    def __init__(self):
        super().__init__(rescue=False)
        # When was looked, and whether there was something to look at.
        self.looks = []
        # What is seen of each flow; one that downloads gets 50 kB more with each look.
        self.samples = []
        self.asked_at_s = {}  # of pending pings
        self.took_s = 0.0  # how long a look takes
        self.downloads = True

    def run(self, until_s):
        return self.wait(until_s, self.answer)

    def answer(self, command):
        if not isinstance(command, give.LookAtFlows):
            return []
        silent = self.controller.networks.silent
        looked = bool(self.samples or self.asked_at_s or silent)
        self.looks.append((round(self.now_s, 3), looked))
        more = 50_000 if self.downloads else 0
        self.samples = [
            replace(each, at_s=self.now_s, bytes_down=each.bytes_down + more)
            for each in self.samples
        ]
        return [on.FlowsSampled(tuple(self.samples), dict(self.asked_at_s), self.took_s, looked)]

    def pauses_s(self):
        at_s = [each for each, _ in self.looks]
        return {round(b - a, 3) for a, b in pairwise(at_s)}


def downloading(size=10**9):
    script = Looking()
    script.run(9.0)
    script.tell(on.FlowOpened(KEY, 9.0, 1.0))
    script.told(size)
    script.samples = [SAMPLE]
    script.run(9.05)
    script.looks.clear()
    return script


def test_a_transfer_under_way_is_looked_at_closely_and_decided_on_each_second():
    script = downloading()
    given = script.run(20.0)
    assert script.pauses_s() == {CLOSE_S}
    known = script.controller.context(20.0).networks["wlan0"]
    assert known["delivery_down_bps"].value > 1e6, "what it carries is measured with each look"
    assert of_kind(give.NoteUse, given)[-1].networks == {"wlan0"}
    assert 10 <= len(of_kind(give.NoteUse, given)) <= 12, (
        "round trips and use are taken each second"
    )
    assert script.controller.networks.heard_at_s["wlan0"] == pytest.approx(20.0, abs=0.3)


def test_a_flow_that_rests_is_looked_at_each_second_and_no_flow_never():
    script = Looking()
    script.run(20.0)
    assert {looked for _, looked in script.looks} == {False}
    assert script.pauses_s() <= {1.0, 0.025, 0.975, 1.025}
    script.tell(on.FlowOpened(KEY, 20.0, 1.0))
    script.samples, script.downloads = [SAMPLE], False
    script.looks.clear()
    script.run(30.0)
    assert script.pauses_s() == {1.0}
    assert {round(at_s % 1.0, 3) for at_s, _ in script.looks} == {0.025}, "an idle host wakes once"


def test_receive_buffers_are_bounded_by_what_was_measured():
    script = Script(short_queues=True)
    script.known(9.0, wlan0={"past1_bps": 8e6})
    script.tell(on.PingEnded("wlan0", 0.03, 9.0, 9.03), at_s=9.03)
    (bound,) = of_kind(give.BoundQueues, script.decide(9.1))
    assert bound.paths == {"wlan0": (8e6, 0.03)}


# -- the rest ---------------------------------------------------------------------------------


def free(command):
    """No network has a portal."""
    if not isinstance(command, give.CheckPage):
        return ()
    finding = on.PortalFinding(on.PortalVerdict.FREE, "as it should be")
    return (on.PageChecked(command.network, command.number, finding),)


def test_a_sleep_makes_all_that_is_known_older_and_portals_are_looked_for():
    script = Script()
    script.known(9.0, wlan0={"rssi_dbm": -60.0})
    script.wait(9.5, free)
    script.tell(on.HostSlept(7200.0), at_s=10.0)
    checked = {each.network for each in of_kind(give.CheckPage, script.wait(10.3))}
    assert checked == {"wlan0", "lte0"}
    (found,) = [script.controller.context(10.0).networks["wlan0"]["rssi_dbm"]]
    assert found.measured_at_s == 9.0 - 7200.0


def test_a_rule_leads_at_once_and_is_kept():
    script = Script()
    rule = RuleRequest(host="192.0.2.1", only=("lte0",))
    kinds = [type(each).__name__ for each in script.tell(on.RuleSet(3, rule), at_s=9.0)]
    assert kinds == ["KeepRules", "RecordDecision", "ForbidPlaces", "SetRuled"]


def test_what_witnesses_say_is_a_reason_to_look_but_an_answer_is_none(script):
    script.tell(on.ProvidersRead(), at_s=9.0)
    script.decided(9.0)
    script.tell(on.Witnessed("wlan0", True, on.Witness.NAME, 9.5), at_s=9.5)
    timer_s = script.controller.next_timer_s()
    assert timer_s is None or timer_s > 9.6
    script.tell(on.Witnessed("wlan0", False, on.Witness.NAME, 9.7, 9.6), at_s=9.7)
    timer_s = script.controller.next_timer_s()
    assert timer_s <= 9.7


def test_the_next_plan_is_a_beat_away_where_the_context_is_milliseconds_old(script):
    transfers = script.controller.transfers
    transfers.begin(9.5)
    beat_s = transfers.next_timer_s()
    assert beat_s is not None
    script.controller.context(beat_s - 0.002)  # a flow that opened asked for it
    script.controller.handle(on.TimerFired(), beat_s)
    assert transfers.next_timer_s() == pytest.approx(beat_s + 1.0)


def test_what_a_reader_asks_between_two_events_changes_no_decision():
    """A log holds the events alone: its replay must find the same contexts."""
    transfer = Transfer(size_of(4000), Direction.DOWN)

    def contexts_of(*, read):
        script, found = Script(), []
        keeper = script.controller.networks.keeper
        for at_s in (9.0, 9.004, 9.008):
            script.tell(on.ChoiceAsked(transfer, redundant=False, multipath=True), at_s=at_s)
            found.append(script.recorded().context.at_s)
            if read:
                script.controller.context(at_s + 0.002)
                assert script.controller.portals.problems(at_s + 0.002) == []
                assert not keeper.drops_pings("wlan0")
        return found

    assert contexts_of(read=True) == contexts_of(read=False) == [9.0, 9.0, 9.0]


def waiting(number):
    """A program tells of a transfer that can wait for an hour."""
    key = f"{number:032x}"
    return on.TransferReported(
        TableTransfer(key, 0, "song", "there", Direction.DOWN, 1_000_000, 0, 3600.0), 9.0
    )


def recorded(script, *numbers, at_s):
    """Have programs report transfers; return the number of decisions that are recorded."""
    script.tell(*map(waiting, numbers), at_s=at_s)
    woken = script.given(give.TurnsChanged)
    assert len(woken) == len(numbers), "each program is woken"
    return sum(len(each.keys) for each in woken)


def test_of_many_turns_that_change_at_once_few_are_recorded():
    """A decision on each held the daemon past its watchdog."""
    script = Script()
    script.networks(replace(WLAN, up=False), LTE, at_s=9.0)
    script.tell(on.ClockRead(9.0))
    assert recorded(script, *range(20), at_s=9.0) == 16
    assert recorded(script, *range(20, 30), at_s=12.0) == 6, "two more for each second"
