"""Which connections a dialling end asks for, and what it does with those that it gets."""

import asyncio
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.model import NetworkKind
from cedos.session.io import connect_attempts
from cedos.session.io import dialler as dialling
from cedos.session.io.connect_attempts import ConnectAttempts, Connected, Endpoint
from cedos.session.io.dialler import DialledServer, Dialler
from cedos.session.io.links import Egress
from cedos.session.io.path import SessionPathEvent
from cedos.session.io.server_place import ServerPlace
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.set_up import SetUpOptions

pytestmark = pytest.mark.anyio
OWN, OTHER = ("192.0.2.1", 7009), ("192.0.2.2", 7009)
WIFI, PHONE = (
    Egress(name, number, frozenset({f"192.0.2.1{number}"}), NetworkKind.ETHERNET, metered=False)
    for number, name in enumerate(("wifi", "phone"), 1)
)


class Path:
    """A session's; nothing comes over it, and `report` says what became of its handshake."""

    def __init__(
        self, driver: Any, connection: socket.socket, _channel: object, report: Any, *_facts: object,
        interface: str, peer: str, **_more: object,
    ) -> None:  # fmt: skip
        self.path_id, self.interface, self.peer = driver.new_path_id(), interface, peer
        self.connection, self._report = connection, report
        self.facts = SimpleNamespace(stalled_at_s=None)
        self.channel = SimpleNamespace(failure=None, expires_at=None)

    def start(self) -> None:
        pass

    def own_address(self) -> str:
        return next(iter((WIFI if self.interface == "wifi" else PHONE).addresses))

    def report(self, event: SessionPathEvent) -> None:
        self._report(self, event, "")

    def close(self, _why: str, *, reset: bool = False) -> None:
        self.connection.close()
        self.report(SessionPathEvent.LOST)


class World:
    """A session over two networks with a server that has a spare machine; nothing is really dialled."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self.links = SimpleNamespace(egresses=lambda _host: (WIFI, PHONE))
        self.paths: dict[int, Any] = {}
        self.dialled: list[tuple[str, Endpoint]] = []
        self.sockets: list[socket.socket] = []
        server = DialledServer(
            [OWN], bytes(32), KeyPair(bytes(32)), SetUpOptions(), lambda _interface: True, None,
            named=OWN, spares=[ServerPlace(OTHER, [OTHER], None)],
        )  # fmt: skip
        self.dialler = Dialler(
            self, server, self.paths,  # type: ignore[arg-type]
            credentials=lambda: None, positions=lambda: None,  # type: ignore[arg-type,return-value]
            opened=lambda path: self.paths.update({path.path_id: path}),
            failed=lambda _failure: None, metered_allowed=lambda: True,
        )  # fmt: skip

    def new_path_id(self) -> int:
        return len(self.dialled) + 1

    def watch(self, *_who: object) -> None:
        pass

    def unwatch(self, _who: object) -> None:
        pass

    def connects(self, egress: Egress, endpoint: Endpoint) -> None:
        self.sockets.append(socket.socket())
        self.dialler.connected(Connected(egress, endpoint, self.sockets[-1], self.now()))

    @property
    def in_handshake(self) -> Any:
        return next(iter(self.dialler._in_handshake.values()))

    def dials_of(self, egress: Egress) -> list[Endpoint]:
        return [endpoint for name, endpoint in self.dialled if name == egress.interface]


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()

    def dial(attempts: ConnectAttempts, endpoint: Endpoint) -> None:
        made.dialled.append((attempts.egress.interface, endpoint))

    monkeypatch.setattr(connect_attempts, "_PAUSES_S", (0.02,) * 5)
    monkeypatch.setattr(connect_attempts, "_LAST_PAUSE_S", 0.05)
    monkeypatch.setattr(ConnectAttempts, "_dial", dial)
    monkeypatch.setattr(Dialler, "_channel", lambda *_, **__: None)
    monkeypatch.setattr(dialling, "SessionPath", Path)
    made.dialler.start()
    yield made
    made.dialler.close()
    for each in made.sockets:
        each.close()


async def test_a_network_whose_connection_led_to_another_machine_is_tried_on(world: World) -> None:
    """It waited for the only handshake of a session that had lost its other paths meanwhile."""
    world.connects(WIFI, OWN)
    first = world.in_handshake
    first.report(SessionPathEvent.OPENED)
    await asyncio.sleep(0.2)
    assert OTHER in world.dials_of(PHONE), "it leads to the session's machine, too"
    del world.paths[first.path_id]
    world.dialler.path_lost(first)
    world.connects(WIFI, OWN)
    world.connects(PHONE, OTHER)
    await asyncio.sleep(0.1)
    before = len(world.dials_of(PHONE))
    world.in_handshake.close("no answer to the handshake", reset=True)
    world.connects(WIFI, OWN)
    world.in_handshake.report(SessionPathEvent.OPENED)
    await asyncio.sleep(0.3)
    tried = world.dials_of(PHONE)[before:]
    assert tried, "until networks change"
    assert len(tried) <= 16, "with its pauses"
    world.connects(PHONE, OWN)
    world.in_handshake.report(SessionPathEvent.OPENED)
    assert {each.interface for each in world.paths.values()} == {"wifi", "phone"}
