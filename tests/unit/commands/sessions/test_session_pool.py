"""The sessions of files that can wait: which networks they use while they are nobody's."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.commands.sessions.shared import session_pool
from cedos.commands.sessions.shared.session_pool import SessionPool
from cedos.errors import SessionError
from cedos.files.progress import Progress

pytestmark = pytest.mark.anyio


class Session:
    """A session with a server over two networks; it keeps the paths that it may, and opens no others."""

    def __init__(self, may_use: Callable[[str], bool]) -> None:
        self._may_use = may_use
        self.up = {"wlan0": False, "lte0": True}
        self.open = {name for name in self.up if may_use(name)}
        self.goodbye_over: set[str] | None = None
        self.ended = False

    def networks(self) -> dict[str, bool]:
        return self.up

    def networks_changed(self) -> None:
        self.open = {name for name in self.up if self._may_use(name)}

    def paths(self) -> list[Any]:
        return [SimpleNamespace(network=name) for name in sorted(self.open)]

    @property
    def has_network(self) -> bool:
        return any(self._may_use(name) for name in self.up)

    def received_by_network(self) -> dict[str, int]:
        return {}

    sent_by_network = received_by_network

    def finish(self) -> None:
        if self.ended:
            raise SessionError("over")

    async def close(self) -> None:
        while not self.open:
            await asyncio.sleep(0.01)
        self.goodbye_over, self.ended = set(self.open), True

    def abort(self, why: str) -> None:
        self.ended = True


class Ends:
    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def dialling(
        self, made: Callable[[Any], None], may_use: Callable[[str], bool]
    ) -> Callable[[], Awaitable[Session]]:
        async def dial() -> Session:
            self.sessions.append(Session(may_use))
            made(self.sessions[-1])
            return self.sessions[-1]

        return dial


class User:
    def __init__(self, *networks: str) -> None:
        self._networks = networks

    def may_use(self, interface: str) -> bool:
        return interface in self._networks

    async def mine(self) -> None: ...


async def used(pool: SessionPool, *networks: str) -> None:
    async def over(_connection: Any) -> bool:
        return True

    async with pool.session(User(*networks)) as session:
        await session.link.until_done(over, Progress(), 1.0)


@pytest.mark.parametrize("networks", [("wlan0",), ("lte0",), ("wlan0", "lte0")])
async def test_the_goodbye_goes_over_what_is_in_use(networks: tuple[str, ...]) -> None:
    ends = Ends()
    pool = SessionPool(ends)  # type: ignore[arg-type]
    await used(pool, *networks)
    async with asyncio.timeout(1.0):
        await pool.close()
    assert ends.sessions[0].goodbye_over == set(networks)


async def test_nobodys_session_holds_no_network_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_pool, "_LINGER_S", 0.05)
    ends = Ends()
    pool = SessionPool(ends)  # type: ignore[arg-type]
    await used(pool, "wlan0", "lte0")
    (session,) = ends.sessions
    assert session.open == {"wlan0", "lte0"}
    await asyncio.sleep(0.2)
    assert session.open == set()
    async with asyncio.timeout(1.0):
        await pool.close()
    assert session.goodbye_over == {"wlan0"}  # it costs nothing


@pytest.mark.parametrize(("had", "goodbye"), [("lte0", {"lte0"}), ("wlan0", None)])
async def test_a_metered_network_that_was_not_used_is_not_begun_for_a_goodbye(
    monkeypatch: pytest.MonkeyPatch, had: str, goodbye: set[str] | None
) -> None:
    monkeypatch.setattr(session_pool, "_LINGER_S", 0.0)
    ends = Ends()
    pool = SessionPool(ends)  # type: ignore[arg-type]
    await used(pool, had)
    (session,) = ends.sessions
    session.up = {"lte0": True}  # Wi-Fi is gone
    await asyncio.sleep(0.05)
    async with asyncio.timeout(1.0):  # nor is anything waited for
        await pool.close()
    assert session.goodbye_over == goodbye
    assert session.ended
