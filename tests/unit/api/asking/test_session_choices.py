"""The daemon's choice for sessions: asked once for many, not again and again where there is none."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.api.asking.session_choices import DaemonChooser
from cedos.api.choosing import ChoiceRequest
from cedos.errors import DaemonUnreachableError
from cedos.model import Bulk, Label, NetworkKind, Strategy, StrategyKind, Urgency
from cedos.session.io.advice import KnownNetwork, Question

pytestmark = pytest.mark.anyio
URGENT = Question(Label(Urgency.FOREGROUND, Bulk.SMALL), 4_000)
BULK = Question(Label(Urgency.BACKGROUND, Bulk.LARGE), 64_000)


class Client:
    """A control socket that answers slowly, and counts."""

    def __init__(self, *, there: bool = True) -> None:
        self.asked: list[ChoiceRequest] = []
        self.named = 0
        self._there = there

    def choose(self, request: ChoiceRequest) -> Any:
        self.asked.append(request)
        time.sleep(0.02)
        if not self._there:
            raise DaemonUnreachableError("no daemon")
        return SimpleNamespace(
            number=len(self.asked),
            evaluations=[object()],
            choice=Strategy(StrategyKind.SINGLE, ("home",)),
        )

    def networks(self) -> list[Any]:
        self.named += 1
        if not self._there:
            raise DaemonUnreachableError("no daemon")
        return [
            SimpleNamespace(name="home", interface="wlan0", kind=NetworkKind.WIFI, metered=True)
        ]


def chooser(monkeypatch: pytest.MonkeyPatch, client: Client) -> DaemonChooser:
    made = DaemonChooser(Path("/nowhere"))
    monkeypatch.setattr(made, "_client", client)
    return made


async def test_alike_questions_of_many_sessions_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    made = chooser(monkeypatch, client)
    found = await asyncio.gather(*[made.choose(each) for each in (URGENT, BULK) * 10])
    assert set(found) == {Strategy(StrategyKind.SINGLE, ("wlan0",))}
    assert sorted(each.size_bytes for each in client.asked) == [4_000, 64_000]
    assert {each.size_bytes: each.redundant for each in client.asked} == {
        4_000: True,
        64_000: False,
    }
    assert client.named == 1


async def test_without_a_daemon_the_first_question_speaks_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(there=False)
    made = chooser(monkeypatch, client)
    assert await asyncio.gather(*[made.choose(each) for each in (URGENT, BULK) * 10]) == [None] * 20
    assert await made.choose(URGENT) is None
    assert len(client.asked) == 1


async def test_a_question_about_what_was_sent_already_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client()
    made = chooser(monkeypatch, client)
    await made.choose(URGENT)
    await made.choose(replace(URGENT, sent_over="wlan0", waited_s=0.1))
    assert [(each.sent_over, each.waited_s) for each in client.asked] == [
        (None, 0.0),
        ("wlan0", 0.1),
    ]


async def test_networks_are_what_the_daemon_says(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    made = chooser(monkeypatch, client)
    assert made.network("wlan0") is None
    for _ in range(2):
        await made.learn()
    assert made.network("wlan0") == KnownNetwork(NetworkKind.WIFI, metered=True)
    assert made.network("lte0") is None
    assert client.named == 1, "it has just been asked"
    nobody = chooser(monkeypatch, Client(there=False))
    await nobody.learn()
    assert nobody.network("wlan0") is None


async def test_the_last_decision_about_a_label_can_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = chooser(monkeypatch, Client())
    assert made.decided(BULK.label) is None
    await made.choose(BULK)
    await made.choose(URGENT)
    assert (made.decided(BULK.label), made.decided(URGENT.label)) == (1, 2)


async def test_a_decision_that_counts_no_more_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = chooser(monkeypatch, Client())
    await made.choose(BULK)
    later_s = asyncio.get_running_loop().time() + 7.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later_s)
    assert made.decided(BULK.label) is None
