"""When a session turns to another machine, and when it does not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from cedos.model import NetworkKind
from cedos.session.io import connect_attempts, spare_places
from cedos.session.io import driver as drivers
from cedos.session.io.connect_attempts import ConnectAttempts, Connected, Endpoint
from cedos.session.io.links import Egress
from cedos.session.io.server_place import ServerPlace
from cedos.session.io.spare_places import SparePlaces

pytestmark = pytest.mark.anyio
LOOPBACK = Egress("lo", 1, frozenset({"127.0.0.1"}), NetworkKind.ETHERNET, metered=False)


class World:
    """A spare place on loopback; `moved`: when the session was to go there, in seconds from the start."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.network, self.in_touch, self.chances = True, False, 0
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.moved: list[tuple[ServerPlace, float]] = []
        port = int(self.listening.getsockname()[1])
        self.place = ServerPlace(("gw2.test", port), [("127.0.0.1", port)], None)
        self.spares = self.tries([self.place])

    def tries(self, places: Sequence[ServerPlace]) -> SparePlaces:
        return SparePlaces(
            drivers.current(),
            places,
            usable=self._usable,
            last_chance=self._chance,
            in_touch=lambda: self.in_touch,
            move=self._move,
        )

    def _usable(self, endpoints: Sequence[Endpoint]) -> dict[str, tuple[Egress, list[Endpoint]]]:
        return {"lo": (LOOPBACK, list(endpoints))} if self.network and endpoints else {}

    def _chance(self) -> None:
        self.chances += 1

    def _move(self, place: ServerPlace, made: Connected) -> None:
        made.connection.close()
        self.moved.append((place, self.loop.time() - self.began_s))


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for name, seconds in (("PATIENCE", 0.3), ("SILENT_PATIENCE", 0.1), ("LEAST_CHANCE", 0.2),
                          ("REFUSED_CHANCE", 0.05), ("IN_TOUCH", 1.0), ("LOOK", 0.02)):  # fmt: skip
        monkeypatch.setattr(spare_places, f"_{name}_S", seconds)
    made = World()
    yield made
    made.spares.present()
    made.listening.close()


async def test_it_is_tried_after_a_while_and_the_server_once_more(world: World) -> None:
    world.spares.absent()
    await asyncio.sleep(0.4)
    assert (world.chances, world.moved) == (1, [])
    await asyncio.sleep(0.4)
    (moved,) = world.moved
    assert moved[0] is world.place
    assert 0.5 <= moved[1] < 0.8


@pytest.mark.parametrize(("how", "within_s"), [("refused", 0.25), ("silent", 0.45)])
async def test_it_is_tried_sooner(world: World, how: str, within_s: float) -> None:
    world.spares.absent(silent=how == "silent")
    if how == "refused":
        world.spares.refused()
    await asyncio.sleep(0.6)
    assert world.moved[0][1] < within_s


async def test_who_has_its_server_again_stays(world: World) -> None:
    world.spares.absent()
    await asyncio.sleep(0.4)
    assert world.chances == 1
    world.spares.present()
    await asyncio.sleep(0.4)
    world.spares.refused()  # of nothing that lasts
    await asyncio.sleep(0.2)
    assert world.moved == []


async def test_a_host_that_takes_connections_has_longer(world: World) -> None:
    world.in_touch = True
    world.spares.absent()
    await asyncio.sleep(0.8)
    assert world.moved == []
    await asyncio.sleep(0.5)
    assert 1.0 <= world.moved[0][1] < 1.3


async def test_where_no_spare_place_answers_nobody_moves(world: World) -> None:
    world.listening.close()
    world.spares.absent()
    world.spares.refused()
    await asyncio.sleep(0.8)
    assert (world.chances, world.moved) == (0, [])


async def test_without_a_network_it_waits_for_one(world: World) -> None:
    world.network = False
    world.spares.absent()
    await asyncio.sleep(0.5)
    assert world.chances == 0
    world.network = True
    world.spares.check()
    await asyncio.sleep(0.1)
    assert world.chances == 1
    world.network = False
    world.spares.check()
    await asyncio.sleep(0.4)
    assert world.moved == []


async def test_a_name_is_looked_up_when_it_is_needed(world: World) -> None:
    async def resolve() -> Sequence[Endpoint]:
        return world.place.endpoints

    named = ServerPlace(("gw2.test", 7009), [], resolve)
    spares: Any = world.tries([named])
    spares.absent()
    await asyncio.sleep(0.7)
    assert [each for each, _ in world.moved] == [named]
    assert not world.tries([])


async def test_a_name_that_is_asked_for_is_known_the_next_time(world: World) -> None:
    lookups = 0

    async def resolve() -> Sequence[Endpoint]:
        nonlocal lookups
        lookups += 1
        return world.place.endpoints

    spares = world.tries([ServerPlace(("gw2.test", 7009), [], resolve)])
    assert spares.endpoints() == spares.endpoints() == []
    await asyncio.sleep(0.05)
    assert spares.endpoints() == list(world.place.endpoints)
    await asyncio.sleep(0.05)
    assert lookups == 1
    assert world.tries([world.place]).endpoints() == list(world.place.endpoints)


async def test_a_look_up_that_ended_before_it_began_is_made_again(world: World) -> None:
    async def resolve() -> Sequence[Endpoint]:
        return world.place.endpoints

    spares: Any = world.tries([ServerPlace(("gw2.test", 7009), [], resolve)])
    spares.endpoints()
    spares.present()
    await asyncio.sleep(0.01)
    assert spares.endpoints() == []
    await asyncio.sleep(0.05)
    assert spares.endpoints() == list(world.place.endpoints)


@pytest.mark.parametrize("others", [[], [("127.0.0.3", 1), ("127.0.0.4", 1)]])
async def test_other_machines_have_each_second_turn_where_the_own_does_not_answer(
    world: World, others: list[Endpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network may lead to one machine and not to the other."""
    dialled: list[str] = []

    class Caller:
        not_before_s = 0.0

        def wanted(self, _interface: str) -> bool:
            return True

        def others(self, _interface: str) -> Sequence[Endpoint]:
            return others

        def unanswered(self) -> None:
            pass

    attempts: Any = ConnectAttempts(drivers.current(), Caller(), LOOPBACK)  # type: ignore[arg-type]
    monkeypatch.setattr(connect_attempts, "_PAUSES_S", (0.01,) * 9)
    monkeypatch.setattr(ConnectAttempts, "_dial", lambda _, to: dialled.append(to[0][-1]))
    attempts.update(LOOPBACK, [("127.0.0.1", 1), ("127.0.0.2", 1)])
    attempts.begin()
    await asyncio.sleep(0.3)
    attempts.end()
    expected = "121" + ("31423142" if others else "21212121")
    assert "".join(dialled[:9]) == expected[:9]
