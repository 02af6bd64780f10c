"""Nothing lost, ever: connections cut at random bytes, on either path, both ways at once."""

import asyncio
import hashlib
import random
import time

import pytest

NETWORKS = ("wlan0", "lte0")


class Cuts:
    """Ways to end what is connected; the networks are as before afterwards."""

    def __init__(self, world, seeded):
        self.world = world
        self.random = seeded
        self.done = {}

    def one(self):
        kind = self.random.choices(
            ("kill near", "kill far", "kill both", "link", "address"), (5, 5, 3, 2, 2)
        )[0]
        name = self.random.choice(NETWORKS)
        number = NETWORKS.index(name) + 1
        near, far = self.world.near, self.world.far
        if kind == "kill near":
            near.run("ss", "-K", "src", f"10.9.{number}.2")
        elif kind == "kill far":
            far.run("ss", "-K", "dst", f"10.9.{number}.2")
        elif kind == "kill both":
            far.run("ss", "-K", "sport", "=", ":7100")
        elif kind == "link":
            side = self.random.choice((near, far))
            side.ip("link", "set", name, "down")
            side.ip("link", "set", name, "up")
            self.world.route(name)
        else:
            near.ip("address", "del", f"10.9.{number}.2/24", "dev", name)
            near.ip("address", "add", f"10.9.{number}.2/24", "dev", name)
            self.world.route(name)
        self.done[kind] = self.done.get(kind, 0) + 1


class Stream:
    """Random bytes of a seed, in pieces; the same at both ends."""

    def __init__(self, seed, size):
        self._random = random.Random(seed)
        self.left = size
        self.hash = hashlib.sha256()

    def next(self):
        piece = self._random.randbytes(min(self.left, self._random.randrange(1, 65_536)))
        self.left -= len(piece)
        self.hash.update(piece)
        return piece


async def send(connection, stream, may):
    sent = 0
    while stream.left:
        while sent > may():  # so that the cuts that are due come before the end does
            await asyncio.sleep(0.002)
        piece = stream.next()
        sent += len(piece)
        await connection.write(piece)
    connection.finish()


async def receive(connection, got):
    found = hashlib.sha256()
    while data := await connection.read():
        found.update(data)
        got[0] += len(data)
    return found.hexdigest()


async def end(connection, stream, got, may):
    _, found = await asyncio.gather(send(connection, stream, may), receive(connection, got))
    await connection.close()
    return found, connection.flow.lost_paths


def transfer(world, size, cuts, timeout_s, **options):
    """`size` bytes each way; a cut when the bytes received in both pass the next random number."""
    listener = world.listen(**({"clear": True} if options.get("clear") else {}))
    seeded = random.Random(cuts)
    at = sorted(seeded.randrange(2 * size - 1_200_000) for _ in range(cuts))
    got_up, got_down = [0], [0]
    passed = 0
    cutter = Cuts(world, seeded)

    def may():
        """Return how far either end may be ahead: half a megabyte behind the next cut."""
        return (at[passed] if passed < len(at) else 4 * size) // 2 + 500_000

    async def serve():
        return await end(await listener.accept(), Stream(2, size), got_up, may)

    async def call():
        return await end(await world.connect(**options), Stream(1, size), got_down, may)

    serving = world.server.start(serve())
    calling = world.client.start(call())
    deadline_s = time.monotonic() + timeout_s
    while not calling.done() and not serving.done() and time.monotonic() < deadline_s:
        if passed < len(at) and got_up[0] + got_down[0] >= at[passed]:
            cutter.one()
            passed += 1
        else:
            time.sleep(0.0005)
    assert not serving.done() or serving.exception() is None, serving.exception()
    assert not calling.done() or calling.exception() is None, calling.exception()
    left_s = max(1.0, deadline_s - time.monotonic())
    down, lost_here = calling.result(left_s)
    up, lost_there = serving.result(left_s)
    assert passed == cuts, cutter.done
    # Some cuts meet a network that has no connection just then.
    assert lost_here + lost_there > cuts // 2, (lost_here, lost_there, cutter.done)
    for stream, found in ((Stream(1, size), up), (Stream(2, size), down)):
        while stream.left:
            stream.next()
        assert stream.hash.hexdigest() == found
    world.server.do(listener.close())


def test_sixty_cuts_in_twenty_megabytes(world):
    transfer(world, 10_000_000, 60, 90)


def test_cuts_in_clear(world):
    transfer(world, 4_000_000, 20, 60, clear=True)


@pytest.mark.parametrize("scheduler", ["redundant", "swtc"])
def test_cuts_under_other_schedulers(world, scheduler):
    transfer(world, 3_000_000, 12, 60, scheduler=scheduler)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_hundred_cuts_in_a_hundred_megabytes(world):
    transfer(world, 50_000_000, 520, 800)
