"""Answers to look-ups that wait, and the claims of connections."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import KEY, LTE, WLAN, Script, led, of_kind, size_of

from cedos.controller import events as on
from cedos.controller.commands import (
    HoldAnswers,
    LookUpName,
    ReleaseAnswer,
    SetRuled,
)
from cedos.controller.held_answers import LONGEST_S
from cedos.controller.rule import RuleRequest
from cedos.model import Direction

HOST = "updates.example"
OWN = ip_address("10.0.0.53")
RULE = RuleRequest(host=HOST, never=("lte0",))


def answer(name, *addresses, kind=1, aliases=()):
    return on.DnsReply(7, 0, False, name, kind, tuple(map(ip_address, addresses)), aliases)


class Held(Script):
    """A script with a rule for a name; the kernel does what it is told if `may_lead`.

    Attributes:
        passed: the answers that were released, by number.
        zone: what resolvers of this host say of names, in IPv4; None: they fail.
        asked: the names that were looked up and have no answer yet, if not `answers`.
        begun: how many look-ups there were.
    """

    def __init__(self):
        super().__init__()
        self.may_lead = self.answers = True
        self.passed = {}
        self.zone = {}
        self.asked = []
        self.begun = 0
        self.tell(on.NetworksChanged((replace(WLAN, resolvers=(OWN,)), LTE)))
        self.happens(on.RuleSet(1, RULE))

    @property
    def addresses(self):
        """Return the addresses that the rule covers."""
        return self.controller.ruled.rules.rules[1].addresses

    def happens(self, *events):
        waiting = self.tell(*events)
        while waiting:
            waiting = self.tell(*(event for each in waiting for event in self.carry_out(each)))

    def pass_s(self, seconds):
        self.wait(self.now_s + seconds, self.carry_out)

    def carry_out(self, command):
        match command:
            case SetRuled(wanted) if not self.may_lead:
                return [on.CommandFailed(command, tuple(wanted))]
            case SetRuled() | HoldAnswers():
                return [on.CommandDone(command)]
            case ReleaseAnswer(number, passes):
                assert number not in self.passed
                self.passed[number] = passes
            case LookUpName():
                self.begun += 1
                self.asked.append(command)
                if self.answers:
                    return self.looked_up()
        return []

    def looked_up(self):
        """Return the ends of the look-ups that are under way."""
        asked, self.asked = self.asked, []
        return [on.NameLookedUp(each.name, self.told(each.name)) for each in asked]

    def told(self, name):
        found = self.zone.get(name, "")
        if found is None:
            return {}
        return {4: answer(name, *filter(None, [found])), 6: answer(name, kind=28)}

    def named(self, name, address):
        """Have a connection name its server."""
        key = replace(KEY, remote=ip_address(address))
        return self.tell(on.SizeLearned(key, Direction.DOWN, size_of(3000), name))


@pytest.fixture
def script():
    return Held()


def test_people_are_told_if_answers_cannot_wait():
    script = Script()
    (command,) = of_kind(HoldAnswers, script.tell(on.RuleSet(1, RULE)))
    script.tell(on.CommandFailed(command, why="no queue"))
    (problem,) = script.controller.answers.problems
    assert "cannot be held (no queue)" in problem
    (again,) = of_kind(HoldAnswers, script.tell(on.RuleSet(2, RULE)))
    script.tell(on.CommandDone(again))
    assert script.controller.answers.problems == []


def test_answers_that_still_wait_are_let_go_again():
    script = Script()
    script.tell(on.RuleSet(1, RULE))
    (command,) = of_kind(HoldAnswers, script.tell(on.RuleSet(1, None)))
    script.tell(on.CommandFailed(command, why="busy"))
    prefix = RuleRequest(host="198.51.100.0/24", never=("lte0",))
    assert of_kind(HoldAnswers, script.tell(on.RuleSet(2, prefix))) == [HoldAnswers(False)]


def test_no_answer_waits_where_nothing_may_be_changed():
    script = Script(dry_run=True)
    assert of_kind(HoldAnswers, script.tell(on.RuleSet(1, RULE))) == []
    assert not script.controller.answers.problems


def test_an_answer_with_more_addresses_than_its_rule_has_room_for_is_dropped(script):
    """The answer passed, though its first addresses had no route."""
    for number in range(2, 41):
        script.happens(on.RuleSet(number, RuleRequest(host=f"{number}.example", never=("lte0",))))
    few, many = ([f"203.0.113.{n}" for n in range(most)] for most in (25, 26))
    script.happens(on.AnswersRead(1, (answer(HOST, *few),)))
    script.happens(on.AnswersRead(2, (answer(HOST, *many),)))
    assert script.passed == {1: True, 2: False}
    # The name's own have half of the room alone.
    script.happens(on.AnswersRead(3, (answer("dl." + HOST, *many[:12]),)))
    script.happens(on.AnswersRead(4, (answer("dl." + HOST, *[f"192.0.2.{n}" for n in range(14)]),)))
    assert (script.passed[3], script.passed[4]) == (True, False)


def test_a_name_that_leads_to_a_networks_resolver_ends_no_look_ups(script):
    """Wi-Fi's router told it of a ruled name: no question went over LTE any more, for good."""
    theirs = ip_address("10.1.0.53")
    script.happens(
        on.NetworksChanged((replace(WLAN, resolvers=(OWN,)), replace(LTE, resolvers=(theirs,))))
    )
    given = script.tell(on.AnswersRead(1, (answer(HOST, "10.1.0.53", "10.0.0.53"),)))
    wanted = {("10.1.0.53/32", None): "wlan0", ("10.1.0.53/32", 53): "lte0"}
    assert led(given) == wanted | {("10.0.0.53/32", None): "wlan0"}
    # What the user says of the address itself, or of the port, holds.
    given = script.tell(on.RuleSet(2, RuleRequest(host="10.1.0.53", never=("lte0",))))
    assert led(given) == {("10.1.0.53/32", 53): None}
    given = script.tell(
        on.RuleSet(2, None), on.RuleSet(3, RuleRequest(host=HOST, port=53, never=("lte0",)))
    )
    assert led(given)["10.1.0.53/32", 53] == "wlan0"
    script.tell(on.RuleSet(3, None))
    for prefix, port in (("0.0.0.0/0", 53), ("10.1.0.0/16", None)):
        given = script.tell(on.RuleSet(2, RuleRequest(host=prefix, port=port, never=("lte0",))))
        assert led(given)["10.1.0.53/32", 53] is None, "no answer takes a prefix's rule away"
        script.tell(on.RuleSet(2, None))


def test_a_claim_of_an_alias_is_confirmed_by_a_look_up(script):
    """A claim passed after any answer: what a stub then asked of that alias was under no rule."""
    script.zone[HOST] = "203.0.113.7"
    script.happens(on.AnswersRead(1, (), (answer(HOST, aliases=("evil.example",)),)))
    script.happens(on.AnswersRead(2, (), (answer(HOST, "203.0.113.7", aliases=("evil.example",)),)))
    script.happens(on.AnswersRead(3, (), (answer(HOST, "203.0.113.7"),)))
    assert script.passed == {1: False, 2: False, 3: True}


def test_an_answer_whose_route_does_not_stand_in_time_is_dropped(script):
    """A daemon that was kept busy for 2 s let the first packet out over the forbidden network."""
    script.may_lead = False
    script.happens(on.AnswersRead(1, (answer(HOST, "203.0.113.1"),)))
    script.pass_s(LONGEST_S - 0.1)
    assert script.passed == {}
    script.pass_s(0.2)
    assert script.passed == {1: False}
    script.may_lead = True
    script.happens(on.AnswersRead(2, (answer(HOST, "203.0.113.1"),)))
    script.decide()
    script.happens(*(on.CommandDone(each) for each in script.given(SetRuled)))
    assert script.passed == {1: False, 2: True}


def test_claims_leave_room_for_answers_that_are_believed(script):
    """Look-ups of slow names by one user keep no other user from names under a rule."""
    script.answers = False
    for number in range(500):
        claimed = (answer(f"{number % 32}.{HOST}", "198.18.0.1"),)
        script.happens(on.AnswersRead(number, (), claimed, user=number % 4))
    script.may_lead = False  # so that it has to wait
    script.happens(on.AnswersRead(1000, (answer(HOST, "203.0.113.1"),)))
    assert 1000 not in script.passed
    assert script.passed == dict.fromkeys(range(64, 500), False)


def test_a_look_up_of_ours_leaves_out_networks_that_a_rule_forbids_it(script):
    claim, theirs = on.AnswersRead(1, (), (answer(HOST, "203.0.113.1"),)), ip_address("10.1.0.53")
    own = replace(WLAN, resolvers=(OWN,)), replace(LTE, resolvers=(theirs,))
    script.happens(on.NetworksChanged(own))
    script.happens(on.RuleSet(2, RuleRequest(host="0.0.0.0/0", port=53, only=("wlan0",))))
    (begun,) = of_kind(LookUpName, script.tell(claim))
    assert begun.asked == (("wlan0", OWN),)


def test_no_flood_of_claims_has_us_ask_without_end(script):
    """1,000 a second had us ask 440 questions a second, of metered networks, too; each was logged."""
    claims = [answer(f"n{number}.{HOST}", "203.0.113.66") for number in range(1_000)]
    flood = [on.AnswersRead(n, (), (each,), user=n % 2) for n, each in enumerate(claims)]
    found = script.tell(*flood)
    assert len(of_kind(LookUpName, found)) == 32
    assert script.looked_up() == []
    # What is believed passes meanwhile, and later further claims are looked up.
    script.happens(on.AnswersRead(2_000, (answer(HOST, "203.0.113.7"),)))
    assert script.passed[2_000]
    script.now_s += 10.0
    found = script.tell(*(replace(each, number=3_000 + each.number) for each in flood))
    assert len(of_kind(LookUpName, found)) == 32


def test_one_users_claims_leave_others_theirs(script):
    """10 look-ups a second of one user, by a resolver of its own, denied 5 of 8 of others."""
    script.zone["other." + HOST] = "203.0.113.7"
    script.answers = False
    for number in range(200):
        script.named(f"n{number}.{HOST}", "203.0.113.66")
        claimed = (answer(f"{number}.{HOST}", "198.18.0.1"),)
        script.happens(on.AnswersRead(number, (), claimed, user=1001))
    assert script.passed == dict.fromkeys(range(16, 200), False), "it has 16 of the places"
    script.asked, script.answers = [], True
    script.happens(on.AnswersRead(200, (), (answer("other." + HOST, "203.0.113.7"),), user=1000))
    assert script.passed[200]
    # All users together have a limit, too, those 32 included that connections have named.
    for number in range(1_000, 2_000):
        claimed = (answer(f"{number}.{HOST}", "198.18.0.2"),)
        script.happens(on.AnswersRead(number, (), claimed, user=number // 20))
    assert script.begun == 128 - 32


def test_where_the_kernel_knows_no_owners_all_have_the_room_of_all(script):
    """Without socket diagnostics all programs were one user, with 16 places."""
    script.answers = False
    for number in range(100):
        claimed = (answer(f"{number}.{HOST}", "198.18.0.1"),)
        script.happens(on.AnswersRead(number, (), claimed, user=on.UNKNOWN_USER))
    assert script.passed == dict.fromkeys(range(64, 100), False)
    assert script.begun == 64


def test_all_answers_wait_for_the_look_up_of_the_name_that_they_claim(script):
    """The second one (a browser asks for A and AAAA together) passed at once."""
    script.zone[HOST] = "203.0.113.7"
    script.answers = False
    for number in (1, 2):
        script.happens(on.AnswersRead(number, (), (answer(HOST, "203.0.113.7"),)))
    assert script.passed == {}
    assert script.asked == [LookUpName(HOST, (("wlan0", OWN),))], "it is asked once"
    script.happens(*script.looked_up())
    assert script.passed == {1: True, 2: True}
    assert script.addresses == ("203.0.113.7",)


@pytest.mark.parametrize("answers", [True, False])
def test_a_claim_at_the_address_of_another_rules_name_is_not_confirmed_by_that(script, answers):
    """Forbid it: an address under any rule was enough, also one that has to go over lte0."""
    script.happens(on.RuleSet(2, RuleRequest(host="other.example", only=("lte0",))))
    script.happens(on.AnswersRead(1, (answer("other.example", "203.0.113.9"),)))
    script.zone[HOST] = "203.0.113.7" if answers else None
    script.happens(on.AnswersRead(2, (), (answer(HOST, "203.0.113.9"),)))
    assert script.passed == {1: True, 2: False}
    script.zone["dl." + HOST] = "203.0.113.9"
    script.happens(on.AnswersRead(3, (), (answer("dl." + HOST, "203.0.113.9"),)))
    assert script.passed[3], "both rules cover it by now"


def test_what_is_no_answer_to_its_question_is_dropped_if_a_rule_is_for_either(script):
    script.happens(on.AnswersRead(1, (answer("dl." + HOST, aliases=("edge.cdn.example",)),)))
    names = ("dl." + HOST, "edge.cdn.example", "other.example")
    for number, name in enumerate(names, 2):
        script.happens(on.AnswersRead(number, (), (), (answer("zone.example"), answer(name))))
    assert script.passed == {1: True, 2: False, 3: False, 4: True}


def test_claims_push_nothing_out_and_are_looked_up_seldom(script):
    """19 hellos with the ruled name made the true address forgotten, and other hosts ruled."""
    script.happens(on.AnswersRead(1, (answer(HOST, "203.0.113.1"),)))
    asked = 0
    for number in range(1000):
        given = [
            *script.named(HOST, f"198.51.{number // 250}.{number % 250}"),
            *script.named(f"{number}.{HOST}", "198.51.100.1"),
        ]
        asked += len(of_kind(LookUpName, given))
    assert script.addresses == ("203.0.113.1",)
    assert 1 < asked < 200
    assert of_kind(LookUpName, script.named("other.example", "198.51.100.1")) == []


def test_what_a_stub_is_told_by_other_servers_is_under_the_rule_for_what_it_asked(script):
    reply = answer(HOST, "203.0.113.1", aliases=("cdn.example",))
    script.happens(on.AnswersRead(1, (), relayed=(reply,)))
    assert script.passed == {1: True}
    assert script.addresses == ("203.0.113.1",)
    # Whose name leads to the ruled one leads others nowhere by that.
    reply = answer("evil.example", "203.0.113.2", aliases=(HOST,))
    script.happens(on.AnswersRead(2, (), relayed=(reply,)))
    assert script.passed.pop(2)
    assert script.addresses == ("203.0.113.1",)
    script.happens(on.AnswersRead(3, (), relayed=(answer("cdn.example", "203.0.113.3"),)))
    assert script.addresses == ("203.0.113.1", "203.0.113.3")
    script.may_lead = False
    script.happens(on.AnswersRead(4, (), relayed=(answer(HOST, "203.0.113.4"),)))
    assert 4 not in script.passed, "its route does not stand"


def new_addresses(number, count=64):
    return [f"198.18.{number}.{n}" for n in range(count)]


def test_one_users_look_ups_change_rules_no_faster_than_their_share(script):
    """Look up names below a ruled one, 64 new addresses each: 30 a second stopped the daemon."""
    script.happens(on.AnswersRead(1, (answer(HOST, "203.0.113.1"),), user=1001))
    changed, passed = 0, []
    for number in range(100):
        told = (answer(f"{number}.{HOST}", *new_addresses(number)),)
        script.now_s += 0.01
        script.happens(on.AnswersRead(None, told, user=1000))
        script.happens(on.AnswersRead(number + 10, told, user=1000))
        script.pass_s(0.0)
        changed += sum(len(each.wanted) for each in script.given(SetRuled))
        passed.append(script.passed.pop(number + 10))
    assert passed[0]
    assert not all(passed)
    assert 64 < changed < 800
    # Another user has a share of their own, and what changes nothing has none.
    script.happens(on.AnswersRead(2, (answer(HOST, "203.0.113.2"),), user=1001))
    script.happens(on.AnswersRead(3, (answer(HOST, "203.0.113.1", "203.0.113.2"),), user=1000))
    script.happens(on.AnswersRead(4, (answer("other.example", "203.0.113.9"),), user=1000))
    assert all(script.passed[number] for number in (1, 2, 3, 4))
    # It is asked again later.
    script.pass_s(10.0)
    script.happens(on.AnswersRead(5, (answer(HOST, "203.0.113.3"),), user=1000))
    assert script.passed[5]


def test_users_within_a_namespace_have_one_share(script):
    """Count them together: one user has 65,536 numbers there."""
    changed = 0
    for number in range(100):
        told = (answer(f"{number}.{HOST}", *new_addresses(number)),)
        script.happens(on.AnswersRead(number, told, user=100_000 + number))
        changed += sum(len(each.wanted) for each in script.given(SetRuled))
    assert changed < 800


def test_a_claims_look_up_counts_for_the_user_whose_claim_it_is(script):
    changed = 0
    for number in range(16):
        name = f"{number}.{HOST}"
        script.answers = False
        script.happens(on.AnswersRead(number, (), (answer(name, "192.0.2.9"),), user=1000))
        script.asked.clear()
        script.happens(on.NameLookedUp(name, {4: answer(name, *new_addresses(number))}))
        changed += sum(len(each.wanted) for each in script.given(SetRuled))
    assert 64 < changed < 800


def test_what_comes_while_rules_are_changed_is_one_change(script):
    """Join them: each answer had the rules changed for itself, 233 times for 150 answers."""
    script.decide()
    first = of_kind(SetRuled, script.tell(on.AnswersRead(1, (answer(HOST, "203.0.113.1"),))))
    script.now_s += 0.04
    for number in range(2, 30):
        told = (answer(HOST, f"203.0.113.{number}"),)
        assert script.tell(on.AnswersRead(number, told)) == [], "the first change is under way"
    assert script.tell(on.CommandDone(*first)) == [ReleaseAnswer(1, True)]
    # It took 40 ms: the next one comes when the daemon has done other work for three times that.
    due_s = script.controller.ruled.next_timer_s()
    assert due_s - script.now_s == pytest.approx(0.12)
    (change,) = of_kind(SetRuled, script.wait(due_s))
    assert len(change.wanted) == 28
    given = script.tell(on.CommandDone(change))
    assert given == [ReleaseAnswer(number, True) for number in range(2, 30)]


def test_an_address_that_another_rule_takes_meanwhile_does_not_stand_yet(script):
    """Hold its answer: the routes of the first rule alone are there, which may allow more."""
    script.decide()
    script.happens(on.RuleSet(2, RuleRequest(host="other.example", never=("wlan0",))))
    script.happens(on.AnswersRead(1, (answer(HOST, "203.0.113.1"),)))
    (first,) = of_kind(SetRuled, script.tell(on.AnswersRead(2, (answer(HOST, "203.0.113.2"),))))
    given = script.tell(on.AnswersRead(3, (answer("other.example", "203.0.113.1"),)))
    assert given == [], "its rule allows no Wi-Fi"
    script.now_s += 0.04
    assert script.tell(on.CommandDone(first)) == [ReleaseAnswer(2, True)]
    (both,) = of_kind(SetRuled, script.wait(script.now_s + 0.2))
    assert both.wanted == {("203.0.113.1/32", None): ""}
    assert script.tell(on.CommandDone(both)) == [ReleaseAnswer(3, True)]


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        *((HOST, False), (f"dl.{HOST}", False), ("example", False), ("", False)),
        *(("cdn.test", False), ("test", False), ("s.example", True), ("a.edge.cdn.test", True)),
    ],
)
def test_an_answer_that_leads_a_ruled_name_elsewhere_is_dropped(name, passes):
    """Drop it: a stub that keeps a DNAME asks for other names than the ruled one's."""
    held = Held()
    held.happens(on.AnswersRead(1, (answer(HOST, "203.0.113.1", aliases=("edge.cdn.test",)),)))
    held.happens(on.AnswersRead(2, (), mistaken=(answer(name, kind=on.DNAME),)))
    assert held.passed == {1: True, 2: passes}
