"""Questions that stay unanswered are asked again over another network."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.controller import LTE, WLAN, Script, of_kind

from cedos.controller import events as on
from cedos.controller.commands import AnswerLookup, AskNetwork, AskResolver
from cedos.controller.lookups import _MOST_LOOKUPS
from cedos.controller.rule import RuleRequest
from cedos.model import FlowKey, NextHop

HERE, RESOLVER = ip_address("192.168.43.2"), ip_address("192.168.43.1")
WLAN0 = replace(
    WLAN, addresses=(ip_interface("192.168.43.2/24"),), next_hops=(NextHop(4, RESOLVER),),
    resolvers=(RESOLVER,), up=True,
)  # fmt: skip
LTE0 = replace(
    LTE, addresses=(ip_interface("192.168.44.2/24"),),
    next_hops=(NextHop(4, ip_address("192.168.44.1")),), resolvers=(), up=True,
)  # fmt: skip
KEY = FlowKey(HERE, 5353, RESOLVER, 53, "udp")
SILENT = "the DNS resolver of wlan0 does not answer. Look-ups are answered over lte0"


class Asking(Script):
    """Programs ask, and the resolvers of other networks answer after `after_s`.

    `says`: True: refused; None: silent.
    """

    def __init__(self):
        super().__init__()
        self.tell(on.NetworksChanged((WLAN0, LTE0)))
        self.says = False
        self.asked = []
        self.answered = []
        self.doubted = []

    @property
    def lookups(self):
        return self.controller.lookups

    def ask(
        self, name = "example.org", number = 7, key = KEY,
        interface = "wlan0", public = False
    ):  # fmt: skip
        self.note(self.tell(on.LookupAsked(key, number, name, interface, public)))
        return number

    def answer(self, number, *, failed=False):
        self.note(self.tell(on.LookupAnswered(KEY, number, failed)))

    def pass_s(self, seconds):
        self.wait(self.now_s + seconds, self.note_one)

    def note(self, commands):
        for each in commands:
            assert not self.note_one(each)

    def note_one(self, command):
        match command:
            case AskResolver(key, number, attempt, network, resolver):
                self.asked.append((network, resolver))
                return [on.ResolverReplied(key, number, attempt, self.says)]
            case AnswerLookup(key, number, attempt):
                self.answered.append((key, number, attempt))
            case AskNetwork(network):
                self.doubted.append(network)
        return []

    def captive(self, network):
        found = on.PortalFinding(on.PortalVerdict.CAPTIVE, "portal")
        self.checked(network, found, on.TlsAnswer.SILENT)


@pytest.fixture
def script():
    return Asking()


def test_a_resolver_that_answers_shows_that_its_network_lives_unless_that_lies(script):
    far = replace(KEY, remote=ip_address("192.0.2.53"))
    script.tell(on.LookupAnswered(far, 7, False), at_s=9.0)  # to no question
    assert "wlan0" not in script.controller.networks.heard_at_s
    script.ask(key=far)
    script.tell(on.LookupAnswered(far, 7, False), at_s=9.1)
    assert script.controller.networks.heard_at_s["wlan0"] == 9.1
    script.captive("wlan0")
    script.ask(key=far)
    script.tell(on.LookupAnswered(far, 7, False), at_s=9.2)
    assert script.controller.networks.heard_at_s["wlan0"] == 9.1


def test_questions_to_a_silent_resolver_are_asked_elsewhere_until_it_is_in_time(script):
    script.ask()
    script.pass_s(0.4)
    script.ask(number=8)
    script.pass_s(0.0)
    assert len(script.answered) == 2, "it is asked elsewhere at once, and that was quicker"
    assert script.doubted == ["wlan0"], "once, and not with each question"
    script.answer(8)  # late by nothing: then it is trusted again
    assert script.lookups.problems == []
    script.answer(script.ask(number=10))
    script.ask(number=11)
    script.pass_s(0.2)
    assert len(script.answered) == 2, "and is waited for again"


def test_a_name_that_others_refuse_is_answered_late_and_with_a_failure(script):
    """systemd-resolved asked for two minutes. That it cannot be told now is kept for seconds only."""
    script.says = True
    script.ask("nothere.example")
    script.pass_s(1.9)
    assert script.answered == [], "its own resolver may be slow"
    script.pass_s(0.2)
    assert script.answered == [(KEY, 7, None)]
    assert script.lookups.problems == [], "perhaps no resolver could answer that"
    # Once it is known to be silent, it takes no longer than an answer may.
    script.says = False
    script.ask("there.example", number=3)
    script.pass_s(0.4)
    script.says = True
    script.ask("nothere.example", number=8)
    script.pass_s(0.4)
    assert [attempt for _, _, attempt in script.answered] == [None, 2, None]
    # Its own answer, if it comes, is the right one.
    script.ask("home.example", number=9)
    script.answer(9)
    script.pass_s(3)
    assert len(script.answered) == 3


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("refused_first", [True, False])
def test_refusals_of_a_name_that_was_found_are_believed(script, refused_first, apart):
    """glibc asks for both kinds of addresses, and waits for both answers; others from two ports."""
    other = replace(KEY, local_port=KEY.local_port + apart)
    script.ask(number=1)
    script.ask(number=2, key=other)
    asked = of_kind(AskResolver, script.wait(script.now_s + 0.31))
    replies = [
        on.ResolverReplied(each.key, each.number, each.attempt, each.number == 2) for each in asked
    ]
    given = script.tell(*(reversed(replies) if refused_first else replies))
    answers = of_kind(AnswerLookup, given)
    assert sorted((each.number, each.attempt) for each in answers) == [(1, 1), (2, 2)]


def test_a_flood_of_questions_is_bounded(script):
    script.says = None
    for number in range(3000):
        script.ask(number=number)
    assert len(script.lookups._lookups) <= _MOST_LOOKUPS
    script.pass_s(0.6)
    assert len(script.asked) <= 64 + 20


def test_many_unknown_names_keep_no_other_from_being_answered(script):
    script.says = True
    for number in range(70):
        script.ask("nothere.example", number=number)
        script.pass_s(0.06)
    script.says = False
    script.ask(number=99)
    script.pass_s(0.4)
    assert 99 in [number for _, number, attempt in script.answered if attempt is not None]


def test_a_host_that_one_program_asks_in_vain_concerns_no_other(script):
    """A question to a host that is no resolver had all names looked up over the phone."""
    stray = replace(KEY, remote=ip_address("192.0.2.99"))
    script.ask(key=stray)
    script.pass_s(0.6)
    assert [key for key, *_ in script.answered] == [stray]
    assert script.lookups.problems == []
    script.ask(number=8)
    script.pass_s(0.12)
    assert len(script.answered) == 1


def test_a_public_resolver_is_asked_over_the_other_network_too(script):
    """Without systemd-resolved it is unknown whose resolvers those of resolv.conf are."""
    public = ip_address("9.9.9.9")
    script.tell(on.NetworksChanged((replace(WLAN0, resolvers=()), LTE0)))
    script.says = None
    script.ask(key=replace(KEY, remote=public), public=True)
    script.pass_s(0.9)
    assert script.asked == [("lte0", public), ("lte0", LTE0.gateways[0])]
    # One of the silent network's own is none of the other's.
    script.ask(number=8)
    script.pass_s(0.9)
    assert script.asked[2:] == [("lte0", LTE0.gateways[0])]


@pytest.mark.parametrize(
    ("host", "port", "asked"),
    [
        ("9.9.9.9", None, [LTE0.gateways[0]]),
        ("dns.example", 53, [LTE0.gateways[0]]),
        ("192.168.44.1", 53, [ip_address("9.9.9.9")]),
        ("0.0.0.0/0", 53, []),
        ("0.0.0.0/0", 853, [ip_address("9.9.9.9"), LTE0.gateways[0]]),
    ],
)
def test_no_question_goes_over_a_network_that_a_rule_forbids_it(script, host, port, asked):
    """Keep to rules: questions to a resolver went over the phone, too, once its network was silent."""
    script.says, addresses = None, () if host[0].isdigit() else ("9.9.9.9", str(LTE0.gateways[0]))
    rule = RuleRequest(host=host, port=port, never=("lte0",), addresses=addresses)
    script.tell(on.RuleSet(1, rule))
    script.ask(key=replace(KEY, remote=ip_address("9.9.9.9")), public=True)
    script.pass_s(0.9)
    assert script.asked == [("lte0", each) for each in asked]


def test_the_next_resolver_is_asked_without_waiting_for_the_first(script):
    key = replace(KEY, remote=ip_address("9.9.9.9"))
    script.tell(on.NetworksChanged((replace(WLAN0, resolvers=()), LTE0)))
    script.ask(key=key, public=True)
    asked = of_kind(AskResolver, script.wait(script.now_s + 0.59))
    assert len(asked) == 1
    asked += of_kind(AskResolver, script.wait(script.now_s + 0.02))
    assert len(asked) == 2
    given = script.tell(*(on.ResolverReplied(key, 7, each.attempt, False) for each in asked))
    assert [each.attempt for each in of_kind(AnswerLookup, given)] == [asked[0].attempt]


@pytest.mark.parametrize("fails", [True, False])
def test_a_resolver_that_fails_for_every_name_is_told_of_and_its_network_pinged_once(script, fails):
    for number, name in enumerate(("a.example.org", "b.example.org", "c.example.org", "x.test")):
        script.answer(script.ask(name, number), failed=fails)
    assert script.lookups.problems == []
    for number, name in enumerate(("y.example.net", "z.example.com"), 10):
        script.answer(script.ask(name, number), failed=fails)
    text = "the DNS resolver of wlan0 fails. Programs that ask no other one find no names"
    assert script.lookups.problems == [text] * fails
    assert script.doubted == ["wlan0"] * fails
    script.answer(script.ask("known.example", 20))
    assert script.lookups.problems == []
