"""A client with two networks and a server behind both; each lives in a thread with a loop of its own."""

import asyncio
import os
import random
import threading

import pytest

from cedos import session
from cedos.session.protocol.crypto import KeyPair

PORT = 7100
SERVER = "10.99.0.1"
NETWORKS = ("wlan0", "lte0")


class Host:
    """A namespace with an event loop in a thread that lives in it."""

    def __init__(self, namespace):
        self.namespace = namespace
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def _run(self):
        with self.namespace.entered():
            self.loop = asyncio.new_event_loop()
            self.loop.call_soon(self._ready.set)
            try:
                self.loop.run_forever()
            finally:
                for task in asyncio.all_tasks(self.loop):
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0.05))
                self.loop.close()

    def start(self, wanted):
        """Runs it there; a future of this thread."""
        return asyncio.run_coroutine_threadsafe(wanted, self.loop)

    def do(self, wanted, timeout_s=60.0):
        """Runs it there and waits for its end."""
        return asyncio.run_coroutine_threadsafe(wanted, self.loop).result(timeout_s)

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(20)


class World:
    """The client's `wlan0` and `lte0` lead to the server's address."""

    def __init__(self, make, seed=1):
        self.random = random.Random(seed)
        self.listeners = []
        self.near, self.far = make("near"), make("far")
        self.far.ip("address", "add", f"{SERVER}/32", "dev", "lo")
        for number, name in enumerate(NETWORKS, 1):
            self.near.ip("link", "add", name, "type", "veth", "peer", name, "netns", self.far.name)
            for where, end in ((self.far, 1), (self.near, 2)):
                where.ip("address", "add", f"10.9.{number}.{end}/24", "dev", name)
                where.ip("link", "set", name, "up")
            self.route(name)
        self.client, self.server = Host(self.near), Host(self.far)
        self.key, self.server_key = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))

    def route(self, name):
        number = NETWORKS.index(name) + 1
        self.near.ip(
            *("route", "replace", "default", "via", f"10.9.{number}.1"),
            *("dev", name, "metric", str(number)),
        )

    def shape(self, rate):
        """Both networks carry no more than this, both ways."""
        for where in (self.near, self.far):
            for name in NETWORKS:
                where.run(
                    *f"tc qdisc replace dev {name} root tbf rate {rate} burst 32kb latency 30ms".split()
                )

    def swallow(self, name, ends="far", *, by="queue"):
        """Drop all that the `far`, `near` or `both` ends send over a network before it leaves them.

        In the interface's `queue` or a `filter`, neither of which lets TCP count it as sent. Returns
        what undoes it.
        """
        queue = f"dev {name} root".split()
        drop = ["OUTPUT", "-o", name, "-j", "DROP"]
        wheres = {"far": [self.far], "near": [self.near], "both": [self.near, self.far]}[ends]
        for where in wheres:
            if by == "queue":
                nothing = ["tbf", "rate", "8bit", "burst", "1b", "limit", "1b"]
                where.run("tc", "qdisc", "replace", *queue, *nothing)
            else:
                where.run("iptables", "-I", *drop)

        def undo():
            for where in wheres:
                if by == "queue":
                    where.run("tc", "qdisc", "del", *queue)
                else:
                    where.run("iptables", "-D", *drop)

        return undo

    def listen(self, **options):
        made = session.listen((SERVER, PORT), key=self.server_key, **options)
        self.listeners.append(self.server.do(made))
        return self.listeners[-1]

    async def connect(self, **options):
        options.setdefault("timeout_s", 20)
        return await session.connect(
            (SERVER, PORT), server_key=self.server_key.public, key=self.key, **options
        )

    def close(self):
        self.client.close()
        for listener in self.listeners:
            self.server.do(listener.close())
        self.server.close()


@pytest.fixture
def make_world(make_namespace):
    made = []

    def make(**options):
        world = World(make_namespace, **options)
        made.append(world)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world):
    return make_world()
