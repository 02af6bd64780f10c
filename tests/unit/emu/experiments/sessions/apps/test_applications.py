"""What the applications draw, what goes over plain TCP, and measurements side by side."""

import asyncio
import socket
import threading
from functools import partial

import pytest

from cedos.errors import ConfigError, EmulationError
from emu.experiments.sessions import intnw
from emu.experiments.sessions.apps import mail, sensing
from emu.experiments.sessions.apps.link import (
    BACKGROUND_LARGE,
    FOREGROUND_SMALL,
    Asking,
    TcpLink,
    answer,
)
from emu.experiments.sessions.batches import Ready, in_batches


def quiet(share: float, what: str) -> None:
    """No bar."""


def test_mail_is_drawn_once_and_for_all() -> None:
    sizes = mail.sizes(100, 1.0, 7)
    assert sizes == mail.sizes(100, 1.0, 7) != mail.sizes(100, 1.0, 8)
    assert min(sizes) >= mail.LEAST_BYTES
    assert max(sizes) <= mail.MOST_BYTES
    picked = mail.choices(100, 5, 7)
    assert len(set(picked)) == 5
    assert min(picked) >= 33


@pytest.mark.parametrize("duration_s", [9.0, 15.0, 60.0, 900.0])
def test_urgent_messages_come_in_episodes(duration_s: float) -> None:
    at_s = sensing.urgent_at_s(duration_s, 3)
    assert len(at_s) == sensing.EPISODES * sensing.PER_EPISODE
    assert at_s[0] >= 0
    assert at_s[-1] <= duration_s + sensing.EPISODE_S


def test_over_tcp_an_urgent_answer_waits_for_those_asked_before() -> None:
    async def scenario() -> list[str]:
        listening = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
        listening.close()
        ends = []
        client, server = TcpLink(near), TcpLink(far)
        serving = asyncio.ensure_future(answer(server))
        asking = Asking(client)
        order: list[str] = []
        for name, size, label in (
            ("large", 3_000_000, BACKGROUND_LARGE),
            ("urgent", 10, FOREGROUND_SMALL),
        ):
            _, done = await asking.ask(size, label)
            done.add_done_callback(lambda _, name=name: order.append(name))
            ends.append(done)
        async with asyncio.timeout(60):
            await asyncio.gather(*ends)
        serving.cancel()
        asking.close()
        await asyncio.sleep(0)
        near.close()
        far.close()
        return order

    assert asyncio.run(scenario()) == ["large", "urgent"]


def test_nobody_begins_before_all_are_ready() -> None:
    begun: list[str] = []
    arrived = threading.Event()

    def task(name: str, ready: Ready) -> str:
        if name == "late":
            arrived.wait(20)
        else:
            arrived.set()
        ready()
        begun.append(name)
        return name

    tasks = {name: partial(task, name) for name in ("early", "late")}
    assert in_batches(tasks, 2, quiet) == {"early": "early", "late": "late"}
    assert sorted(begun) == ["early", "late"]


def test_one_that_fails_does_not_leave_the_others_waiting() -> None:
    def fails(ready: Ready) -> None:
        raise EmulationError("no such world")

    def waits(ready: Ready) -> None:
        ready()

    with pytest.raises(EmulationError):
        in_batches({"fails": fails, "waits": waits}, 2, quiet)


def test_what_cannot_be_run_is_named() -> None:
    with pytest.raises(ConfigError, match="no application 'chess'"):
        intnw.run({}, applications=["chess"])
    with pytest.raises(ConfigError, match="sensing"):
        intnw.run({}, processes=2)


def test_a_summary_is_of_trials() -> None:
    trials = [
        {"foreground_s": [1.0, 3.0], "background_bytes": 1_000_000, "background_s": 8.0},
        {"foreground_s": [4.0], "background_bytes": 1_000_000, "background_s": 4.0},
    ]
    found = intnw.summary(trials)
    assert found["foreground_s"] == 3.0
    assert found["foreground_s_trials"] == [2.0, 4.0]
    assert found["foreground_worst_s"] == 4.0
    assert found["background_mbps"] == pytest.approx(1.5)
