"""Whose hints are in force, and for how long."""

from typing import Any, cast

import pytest
from kit.controller import Script, led

from cedos.api.programs import HintRequest, program_mark
from cedos.controller.commands import Command, SetDestinations, SetMark
from cedos.controller.controller import Controller
from cedos.controller.events import Event
from cedos.daemon.decisions.hints import LIFETIME_S, MOST, MOST_OF_A_USER, Hints
from cedos.errors import NotFoundError, PrivilegeError
from cedos.host.profiler.profiler import Profiler

MINE, THEIRS, ROOT = 1000, 1001, 0


class World:
    """Hints, and the controller that they lead to; what it commands is in `given`."""

    def __init__(self) -> None:
        self.now_s = 9.0
        self.script = Script()
        self.given: list[Command] = []
        self.hints = Hints(Profiler(), cast(Any, self), lambda: self.now_s)

    # -- the driver
    @property
    def controller(self) -> Controller:
        return self.script.controller

    def post(self, event: Event) -> None:
        self.given += self.script.tell(event, at_s=self.now_s)

    def take(self, uid: int = MINE, **what: Any) -> int:
        return self.hints.take(HintRequest(**(what or {"port": 443})), uid).number

    def steered(self) -> list[Command]:
        """What was commanded to steer since the last time."""
        given, self.given = self.given, []
        return [each for each in given if isinstance(each, SetDestinations | SetMark)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_hint_ends_when_its_time_is_over_or_after_a_day(world: World) -> None:
    short = world.take(lifetime_s=10.0, port=80)
    unsaid = world.take()
    world.now_s = 20.0
    world.hints.expire()
    assert list(world.hints.in_force) == [unsaid]
    world.now_s = 9.0 + LIFETIME_S + 1
    world.hints.expire()
    assert not world.hints.in_force
    with pytest.raises(NotFoundError):
        world.hints.withdraw(short, MINE)


def test_its_rule_ends_with_it(world: World) -> None:
    place = {"destination": "203.0.113.0/24", "size_bytes": 9_000_000}
    number = world.take(**place)
    assert led(world.steered()) == {("203.0.113.0/24", None): "lte0"}
    newer = world.take(**place)
    world.hints.withdraw(number, MINE)
    assert world.steered() == []  # the newer one says the same
    world.hints.withdraw(newer, MINE)
    assert led(world.steered()) == {("203.0.113.0/24", None): None}


def test_who_gives_a_hint_is_told_the_network(world: World) -> None:
    place = {"destination": "203.0.113.0/24", "port": 443, "size_bytes": 9_000_000}
    assert world.hints.take(HintRequest(**place), MINE).network == "lte0"
    assert world.hints.take(HintRequest(program="curl"), MINE).network == "wlan0"
    assert world.hints.take(HintRequest(port=443), MINE).network is None, "it leads nothing"


def test_nobody_takes_back_another_users_but_root(world: World) -> None:
    number = world.take()
    with pytest.raises(PrivilegeError, match="of another user"):
        world.hints.withdraw(number, THEIRS)
    assert number in world.hints.in_force
    world.hints.withdraw(number, ROOT)
    assert not world.hints.in_force


def test_an_eager_user_pushes_out_only_their_own(world: World) -> None:
    ours = world.take(THEIRS)
    numbers = [world.take() for _ in range(MOST_OF_A_USER + 10)]
    assert list(world.hints.in_force) == [ours, *numbers[10:]]
    for uid in range(2000, 2010):
        for _ in range(MOST_OF_A_USER):
            world.take(uid)
    assert len(world.hints.in_force) == MOST
    assert ours in world.hints.in_force


def test_programs_have_marks_of_their_own(world: World) -> None:
    accepted = [
        world.hints.take(HintRequest(program="curl", size_bytes=10**7), MINE) for _ in range(3)
    ]
    marks = [program_mark(number) for number in (1, 2, 3)]
    assert [each.mark for each in accepted] == marks
    assert world.steered() == [SetMark(mark, "lte0") for mark in marks]
    for each in accepted:
        world.hints.withdraw(each.number, MINE)
    assert world.steered() == [SetMark(mark, None) for mark in marks]


def test_what_is_decided_for_a_program_names_it_and_no_server(world: World) -> None:
    world.hints.take(HintRequest(program="curl", size_bytes=10**7), MINE)
    decision = world.controller.programs.decision(program_mark(1))
    assert decision is not None
    assert decision.transfer.server_name == "program curl"
