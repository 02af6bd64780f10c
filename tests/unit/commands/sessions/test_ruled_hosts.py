"""The proxy hears of rules while it runs."""

import asyncio
from pathlib import Path

import pytest

from cedos.api.rules import RuleMessage, RuleRequest
from cedos.commands.sessions.shared import ruled_hosts
from cedos.commands.sessions.shared.ruled_hosts import RuledHosts
from cedos.errors import DaemonUnreachableError

pytestmark = pytest.mark.anyio


class Played:
    def __init__(self) -> None:
        self.known: list[RuleMessage] | None = None

    def rules(self) -> list[RuleMessage]:
        if self.known is None:
            raise DaemonUnreachableError("no daemon")
        return self.known


async def until(ruled: RuledHosts, host: str, covered: bool) -> None:
    async with asyncio.timeout(5):
        while ruled.covers(host, 443) is not covered:
            await asyncio.sleep(0.01)


async def test_rules_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played()
    monkeypatch.setattr(ruled_hosts, "ControlClient", lambda _socket, _timeout_s: played)
    monkeypatch.setattr(ruled_hosts, "_ASK_S", 0.02)
    ruled = RuledHosts(Path("socket"))
    await ruled.follow()
    assert not ruled.covers("eu.updates.example", 443), "there is no daemon"
    played.known = [
        RuleMessage(number=number, rule=rule, network=None, why="")
        for number, rule in enumerate(
            (
                RuleRequest(host="updates.example", never=("metered",)),
                RuleRequest(host="198.51.100.0/24", port=22, only=("wlan0",)),
            ),
            1,
        )
    ]
    await until(ruled, "eu.updates.example", True)
    assert ruled.covers("198.51.100.7", 22)
    assert not ruled.covers("198.51.100.7", 443)
    assert not ruled.covers("other.example", 443)
    played.known = None
    await until(ruled, "eu.updates.example", False)
    await ruled.close()
