"""Whose hints are in force, for how long, and where they lead connections."""

import pytest
from kit.controller import Script, led, of_kind

from cedos.controller.commands import FollowHint, ForgetHint, SetMark
from cedos.controller.decisions.hints import LIFETIME_S, MOST, MOST_OF_A_USER
from cedos.controller.events import HintGiven, HintWithdrawn
from cedos.controller.hint import HintRequest, program_mark
from cedos.errors import NotFoundError, PrivilegeError

MINE, THEIRS, ROOT = 1000, 1001, 0
PLACE = {"destination": "203.0.113.0/24", "size_bytes": 9_000_000}


class Hinted(Script):
    """A script whose programs give hints and take them back."""

    @property
    def hints(self):
        return self.controller.hints

    def hint(self, uid=MINE, **what):
        """Return the number of the hint that is given."""
        self.tell(HintGiven(HintRequest(**(what or {"port": 443})), uid))
        return self.hints.last

    def withdraw(self, number, uid=MINE):
        self.hints.check(number, uid)
        return self.tell(HintWithdrawn(number))


@pytest.fixture
def script():
    return Hinted()


def test_a_hint_ends_when_its_time_is_over_or_after_a_day(script):
    script.now_s = 9.0
    short = script.hint(lifetime_s=10.0, port=80)
    unsaid = script.hint()
    assert of_kind(ForgetHint, script.wait(18.9)) == []
    assert of_kind(ForgetHint, script.wait(19.1)) == [ForgetHint(short)]
    assert list(script.hints.in_force) == [unsaid]
    with pytest.raises(NotFoundError):
        script.hints.check(short, MINE)
    assert script.hints.next_timer_s() == 9.0 + LIFETIME_S


def test_sizes_are_estimated_by_it_meanwhile(script):
    hint = HintRequest(port=443, size_bytes=5, mark=7, lifetime_s=3.0)
    given = script.tell(HintGiven(hint, MINE), at_s=9.0)
    assert given == [FollowHint(1, hint, 7)]
    assert script.withdraw(1) == [ForgetHint(1)]


def test_its_rule_ends_with_it(script):
    number = script.hint(**PLACE)
    assert led(script.steering()) == {("203.0.113.0/24", None): "lte0"}
    newer = script.hint(**PLACE)
    script.withdraw(number)
    assert script.steering() == []  # the newer one says the same
    script.withdraw(newer)
    assert led(script.steering()) == {("203.0.113.0/24", None): None}


def test_the_network_of_a_hint_is_known_at_once(script):
    assert script.hints.network_of(script.hint(**PLACE, port=443)) == "lte0"
    assert script.hints.network_of(script.hint(program="curl")) == "wlan0"
    assert script.hints.network_of(script.hint(port=443)) is None, "it leads nothing"


def test_a_hint_for_a_port_that_no_rule_can_be_about_leads_nothing(script):
    assert script.hints.network_of(script.hint(**PLACE, port=65_534)) == "lte0"
    assert script.hints.network_of(script.hint(**PLACE, port=65_535)) is None


def test_only_its_user_and_root_take_a_hint_back(script):
    number = script.hint()
    with pytest.raises(PrivilegeError, match="of another user"):
        script.withdraw(number, THEIRS)
    assert number in script.hints.in_force
    script.withdraw(number, ROOT)
    assert not script.hints.in_force


def test_an_eager_user_pushes_out_only_their_own(script):
    ours = script.hint(THEIRS)
    numbers = [script.hint() for _ in range(MOST_OF_A_USER + 10)]
    assert list(script.hints.in_force) == [ours, *numbers[10:]]
    for uid in range(2000, 2010):
        for _ in range(MOST_OF_A_USER):
            script.hint(uid)
    assert len(script.hints.in_force) == MOST
    assert ours in script.hints.in_force


def test_programs_have_marks_of_their_own(script):
    script.steering()
    numbers = [script.hint(program="curl", size_bytes=10**7) for _ in range(3)]
    marks = [program_mark(int(script.now_s * 1000) + number) for number in (1, 2, 3)]
    assert [script.hints.in_force[each].mark for each in numbers] == marks
    assert script.steering() == [SetMark(mark, "lte0") for mark in marks]
    for each in numbers:
        script.withdraw(each)
    assert script.steering() == [SetMark(mark, None) for mark in marks]


def test_a_new_daemon_gives_no_mark_that_a_program_of_an_earlier_one_bears(script):
    """Marks began anew, and a program that went on was led as another user's new one."""
    script.now_s = 100.0
    earlier = {script.hints.in_force[script.hint(program="curl")].mark for _ in range(20)}
    later = Hinted()
    later.now_s = 101.0
    given = {later.hints.in_force[later.hint(program="wget")].mark for _ in range(20)}
    assert len(given) == 20
    assert not given & earlier
