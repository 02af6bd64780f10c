"""A stream that misses Wi-Fi has NetworkManager look for it every five seconds; nobody else does."""

import asyncio
from contextlib import suppress

from kit.bus import PlayedBus

from cedos.apps.files.playing import PlayTarget, search_wifi
from cedos.host.monitor.providers import networkmanager, screen

DEVICES = ["/radio", "/cable"]
SEAT = "/org/freedesktop/login1/seat/seat0"
SESSION = "/org/freedesktop/login1/session/_31"


class Host(PlayedBus):
    """Its NetworkManager has a radio and a cable; `idle`: nobody is at the screen, None: no logind."""

    def __init__(self, idle=False):
        super().__init__({"GetDevices": [DEVICES]})
        self.idle, self.refuses = idle, False
        self.scanned = []

    async def call(self, service, path, interface, member, signature="", body=()):
        if member == "RequestScan":
            if self.refuses:
                self.answers.pop("RequestScan", None)
                return await super().call(service, path, interface, member, signature, body)
            self.scanned.append(path)
            return []
        if path in DEVICES:
            return [{"DeviceType": 2 if path == "/radio" else 1}]
        if service == screen.SERVICE and self.idle is not None:
            return (
                [{"ActiveSession": ["1", SESSION]}] if path == SEAT else [{"IdleHint": self.idle}]
            )
        return await super().call(service, path, interface, member, signature, body)

    async def close(self):
        return


async def looked(host, *, wanted=True):
    """Return how often it looked within three periods; the first look is at once."""
    searching = asyncio.create_task(search_wifi(host, lambda: wanted, 0.1))
    await asyncio.sleep(0.25)
    searching.cancel()
    with suppress(asyncio.CancelledError):
        await searching
    return len(host.scanned)


async def test_nobody_looks_while_wifi_carries_or_nobody_is_at_the_screen():
    assert await looked(Host(), wanted=False) == 0
    assert await looked(Host(idle=True)) == 0
    assert await looked(Host(idle=None)) == 3


async def test_a_radio_that_refuses_and_a_host_without_networkmanager_are_left_alone():
    host = Host()
    host.refuses = True
    assert await networkmanager.scan(host) == 0
    assert await networkmanager.scan(PlayedBus({})) == 0
    assert await networkmanager.scan(PlayedBus({"GetDevices": [7]})) == 0


class Endless:
    """A buffer manager that reads up to the limit."""

    def may_read(self, stored_bytes, most_bytes):
        return stored_bytes < most_bytes


async def test_a_server_that_sends_single_bytes_takes_the_memory_of_its_bytes():
    """Each was a piece of 54 bytes, and a thread: 64 MB of them 3.4 GB before a player that waits."""
    played, goes_on = [], asyncio.Event()

    async def play(data):
        await goes_on.wait()
        played.append(bytes(data))

    target = PlayTarget(play, Endless(), 64_000, 1 << 20)
    target.begin(0, "v", 100_000)
    sent = bytes(number % 251 for number in range(100_000))
    for number in range(100_000):
        await target.write(memoryview(sent)[number : number + 1])
    goes_on.set()
    await asyncio.wait_for(target.drain(), 10)
    target.close()
    assert b"".join(played) == sent
    assert len(played) < 5
