"""Direct or by the gateway, as a daemon behind a real socket says; nobody waits for it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from cedos.api.asking import daemon_routes
from cedos.api.asking.daemon_routes import DaemonRoutes

pytestmark = pytest.mark.anyio


async def told(routes: DaemonRoutes, port: int) -> None:
    deadline_s = time.monotonic() + 5
    while port not in routes._answers:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


async def test_the_first_connection_does_not_wait_and_the_next_one_knows(
    fake_daemon: Any, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_daemon.direct = True
    routes = DaemonRoutes(control)
    try:
        assert not routes.direct(443, None), "a way that nobody measured is not judged"
        assert not routes.direct(443, 0.03)
        assert not routes.direct(443, 0.03)
        await told(routes, 443)
        assert routes.direct(443, 0.03)
        (asked,) = fake_daemon.choices
        assert (asked.detour.rtt_s, asked.detour.port) == (0.03, 443)
        monkeypatch.setattr(daemon_routes, "VALID_S", -1.0)
        assert not routes.direct(443, 0.03)
    finally:
        await routes.close()


async def test_without_a_daemon_the_gateway_is_taken(tmp_path: Path) -> None:
    routes = DaemonRoutes(tmp_path / "none")
    assert not routes.direct(443, 0.5)
    await asyncio.gather(*routes._asking.values())
    assert not routes.direct(443, 0.5)
    assert not routes._asking, "it is left in peace for a while"
