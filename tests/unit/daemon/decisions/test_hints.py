"""Whose hints are in force, and for how long."""

from types import SimpleNamespace
from typing import Any

import pytest

from cedos.api.programs import HintRequest, program_mark
from cedos.daemon.decisions.hints import LIFETIME_S, MOST, MOST_OF_A_USER, Hints
from cedos.errors import NotFoundError, PrivilegeError
from cedos.model import Context
from cedos.profiler.profiler import Profiler

pytestmark = pytest.mark.anyio

MINE, THEIRS, ROOT = 1000, 1001, 0


class World:
    def __init__(self, stage: Any) -> None:
        self.now_s = 0.0
        self.stage = stage
        self.profiler = Profiler()
        self.hints = Hints(
            self.profiler,
            SimpleNamespace(on_size=lambda event: None),  # type: ignore[arg-type]
            stage.director,
            lambda: Context(11.0, {"wlan0": {}, "lte0": {}}),
            lambda: self.now_s,
        )

    async def take(self, uid: int = MINE, **what: Any) -> int:
        accepted = await self.hints.take(HintRequest(**(what or {"port": 443})), uid)
        return accepted.number


@pytest.fixture
async def world(stage: Any) -> World:
    await stage.reconsider()
    stage.asked()
    return World(stage)


async def test_a_hint_ends_when_its_time_is_over_or_after_a_day(world: World) -> None:
    short = await world.take(lifetime_s=10.0, port=80)
    unsaid = await world.take()
    world.now_s = 11.0
    await world.hints.expire()
    assert list(world.hints.in_force) == [unsaid]
    world.now_s = LIFETIME_S + 1
    await world.hints.expire()
    assert not world.hints.in_force
    with pytest.raises(NotFoundError):
        await world.hints.withdraw(short, MINE)


async def test_its_rule_ends_with_it(world: World) -> None:
    place = {"destination": "203.0.113.0/24", "size_bytes": 9_000_000}
    number = await world.take(**place)
    assert [what for what, *_ in world.stage.asked()] == ["destination"]
    newer = await world.take(**place)
    await world.hints.withdraw(number, MINE)
    assert world.stage.asked() == []  # the newer one says the same
    await world.hints.withdraw(newer, MINE)
    assert [what for what, *_ in world.stage.asked()] == ["destination"]


async def test_nobody_takes_back_another_users_but_root(world: World) -> None:
    number = await world.take()
    with pytest.raises(PrivilegeError, match="of another user"):
        await world.hints.withdraw(number, THEIRS)
    assert number in world.hints.in_force
    await world.hints.withdraw(number, ROOT)
    assert not world.hints.in_force


async def test_an_eager_user_pushes_out_only_their_own(world: World) -> None:
    ours = await world.take(THEIRS)
    numbers = [await world.take() for _ in range(MOST_OF_A_USER + 10)]
    assert list(world.hints.in_force) == [ours, *numbers[10:]]
    for uid in range(2000, 2010):
        for _ in range(MOST_OF_A_USER):
            await world.take(uid)
    assert len(world.hints.in_force) == MOST
    assert ours in world.hints.in_force


async def test_programs_have_marks_of_their_own(world: World) -> None:
    accepted = [
        await world.hints.take(HintRequest(program="curl", size_bytes=10**7), MINE)
        for _ in range(3)
    ]
    assert len({each.mark for each in accepted}) == 3
    assert {what for what, *_ in world.stage.asked()} == {"mark"}
    for each in accepted:
        await world.hints.withdraw(each.number, MINE)
    assert {what for what, *_ in world.stage.asked()} <= {"mark"}


async def test_what_is_decided_for_a_program_names_it_and_no_server(world: World) -> None:
    await world.hints.take(HintRequest(program="curl", size_bytes=10**7), MINE)
    decision = world.stage.director.programs.decision(program_mark(1))
    assert decision.transfer.server_name == "program curl"
