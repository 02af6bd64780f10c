"""Budgets on an emulated laptop: an unmodified program's connections go where the prices say."""

import json
import os
import subprocess
import sys

import pytest
from kit.laptop import Installed
from kit.waiting import wait_until

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import LTE, WLAN, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import Servers

MONTHLY = ("--until", "2099-12-01", "--every", "month")


CONFIG = (
    f'[probes]\ntarget = "{SERVER}"\ninterval_s = 0.5\nidle_interval_s = 0.5\n'
    "dns = false\n"
    f'portal_url = ""\n[providers]\nhost = false\n[networks.{LTE}]\nmetered = true\n'
)


class Host(Installed):
    """A laptop whose phone is the faster network by far, with cedos on it."""

    def __init__(self, laptop, folder):
        super().__init__(laptop.client, folder, base=CONFIG)
        self.laptop = laptop

    def default(self):
        return self.client.status().default.network

    def download(self, size):
        done = self.laptop.client.run(
            "curl", "-sS", "-o", "/dev/null", "--max-time", "60", f"http://{SERVER}/bytes/{size}"
        )
        assert done.returncode == 0


@pytest.fixture
def host(tmp_path, registry):
    slow, fast = Trace.constant(1e6), Trace.constant(20e6)
    with Laptop(
        # (So slow that a small transfer, too, is worth the phone's price and its radio's joules.)
        Access(NetworkKind.WIFI, slow, slow, 0.500),
        Access(NetworkKind.CELLULAR, fast, fast, 0.020),
    ) as laptop, Servers(laptop):  # fmt: skip
        yield Host(laptop, tmp_path)


READER = f"""
import asyncio
import socket
from cedos.apps.prefetch import DaemonSurroundings, Prefetcher

class Page:
    def __init__(self, size):
        self.size = size

    async def fetch(self, turn):
        one = socket.socket()
        if turn.interface:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, turn.interface.encode())
        one.setblocking(False)
        await asyncio.get_running_loop().sock_connect(one, ("{SERVER}", 80))
        reader, writer = await asyncio.open_connection(sock=one)
        writer.write(f"GET /bytes/{{self.size}} HTTP/1.0\\r\\n\\r\\n".encode())
        await reader.readuntil(b"\\r\\n\\r\\n")
        body = b""
        while block := await reader.read(1 << 16):
            body += block
            turn.received(len(body), self.size)
        writer.close()
        return body

async def read():
    async with Prefetcher(DaemonSurroundings(program="reader")) as prefetcher:
        pages = [prefetcher.prefetch(Page(size), size=size) for size in (400_000, 900_000_000)]
        for _ in range(300):
            if pages[0].ready:
                break
            await asyncio.sleep(0.1)
        print(int(pages[0].ready), len(await pages[0].get()), flush=True)
        await asyncio.sleep(60)

asyncio.run(read())
"""


def test_a_program_prefetches_within_the_budget(host):
    client = host.laptop.client
    with host.up() as daemon:
        wait_until(host.default, 30)
        assert host.run("budget", "set", "data", "200MB", *MONTHLY).returncode == 0
        client.ip("link", "set", WLAN, "down")
        environment = os.environ | {"CEDOS_RUNTIME_DIR": str(host.socket.parent)}
        reader = client.popen(sys.executable, "-c", READER, env=environment, stdout=subprocess.PIPE)
        try:
            assert reader.stdout.readline().split() == [b"1", b"400000"]

            def budget():
                return json.loads(host.run("budget", "--json").stdout)[0]

            wait_until(lambda: budget()["bought_s"] > 0.0, 30)
            # The large item is more than the budget has left.
            wait_until(lambda: budget()["spent"] > 400_000, 10)
            assert budget()["spent"] < 2_000_000
        finally:
            reader.kill()
            reader.communicate(timeout=20)
        host.ends(daemon)
