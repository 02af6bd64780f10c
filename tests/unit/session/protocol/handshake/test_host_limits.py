"""What one host may cost a server, living, away and asleep; over this host's loopback."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from cedos import session
from cedos.errors import SessionError
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.limits import HandshakeLimits

Connect = Callable[[KeyPair], Awaitable[session.Connection]]
Scenario = Callable[[session.Listener, Connect], Awaitable[None]]


def serving(scenario: Scenario, hosts: HandshakeLimits, idle: Path | None = None) -> None:
    async def run() -> None:
        key = KeyPair(os.urandom(32))
        made: list[session.Connection] = []

        async def connect(who: KeyPair) -> session.Connection:
            made.append(
                await session.connect(listener.address, server_key=key.public, key=who, timeout_s=3)
            )
            return made[-1]

        async with (
            asyncio.timeout(60),
            await session.listen(("127.0.0.1", 0), key=key, hosts=hosts, idle=idle) as listener,
        ):
            try:
                await scenario(listener, connect)
            finally:
                for each in made:
                    each.abort()
                    await each.drained()

    asyncio.run(run())


def leave(connection: session.Connection) -> None:
    """The client's networks are gone, and nobody tells the server why."""
    assert connection.flow.dialler is not None
    connection.flow.dialler.close()
    for path in list(connection.flow.paths.values()):
        path.close("gone", reset=True)


def test_a_host_that_is_away_is_held_to_its_bytes_and_others_are_not() -> None:
    one, other = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))

    async def scenario(listener: session.Listener, connect: Connect) -> None:
        flows = []
        for who, size in ((one, 700_000), (one, 300_000), (one, 400_000), (other, 900_000)):
            near = await connect(who)
            far = await listener.accept()
            leave(near)
            while far.paths():
                await asyncio.sleep(0.005)
            await far.write(bytes(size))
            flows.append(far)
        largest, small, middle, foreign = flows
        while not largest.ended:
            await asyncio.sleep(0.05)
        with pytest.raises(SessionError, match=r"its host is away and has more than 1000000 bytes"):
            await largest.read()
        await asyncio.sleep(2.2)  # two more looks: what is left is within the limit
        assert not small.ended
        assert not middle.ended
        assert not foreign.ended
        for each in (small, middle, foreign):
            each.abort()

    serving(scenario, HandshakeLimits(idle_bytes_per_host=1_000_000))


def test_who_is_there_is_not_held_to_the_bytes_of_the_absent() -> None:
    async def scenario(listener: session.Listener, connect: Connect) -> None:
        near = await connect(KeyPair(os.urandom(32)))
        far = await listener.accept()
        await far.write(bytes(500_000))  # nobody reads it
        await asyncio.sleep(2.2)
        assert not far.ended
        assert len(await near.read_exactly(500_000)) == 500_000

    serving(scenario, HandshakeLimits(idle_bytes_per_host=1_000))


def test_sleeping_flows_count_and_over_a_restart(tmp_path: Path) -> None:
    who, other = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    limits = HandshakeLimits(flows_per_host=2)

    async def first(listener: session.Listener, connect: Connect) -> None:
        for _ in range(2):
            near = await connect(who)
            far = await listener.accept()
            leave(near)
            while not far.ended:  # asleep
                await asyncio.sleep(0.05)
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        await connect(other)

    serving(first, limits, tmp_path / "idle")

    async def second(_listener: session.Listener, connect: Connect) -> None:
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        await connect(other)

    serving(second, limits, tmp_path / "idle")


def test_without_a_file_those_that_are_away_count_too() -> None:
    who = KeyPair(os.urandom(32))

    async def scenario(listener: session.Listener, connect: Connect) -> None:
        near = await connect(who)
        far = await listener.accept()
        leave(near)
        while far.paths():
            await asyncio.sleep(0.005)
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        far.abort()
        assert not (await connect(who)).ended

    serving(scenario, HandshakeLimits(flows_per_host=1))
