"""A gateway of several processes: whoever takes a connection, its client's process serves it."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from cedos.proxy.gateway.invited_clients import InvitedClients
from cedos.proxy.http import RefusedError
from cedos.proxy.local.gateway_link import GatewayLink
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sibling_processes import process_of
from tests.unit.proxy.conftest import free_port

pytestmark = pytest.mark.anyio

COUNT = 3


class Running:
    """`cedos gateway --processes 3`, a client of each process, and an origin that echoes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.metrics = folder, free_port(), free_port()
        folder.mkdir()
        self.environment = os.environ | {"XDG_CONFIG_HOME": str(folder), "HOME": str(folder)}
        invited = InvitedClients(folder / "clients")
        self.clients: list[KeyPair] = []
        while len(self.clients) < COUNT:
            name = f"client-{len(invited.names)}"
            key = KeyPair(invited.invite(name))
            if process_of(key.public, COUNT) == len(self.clients):
                self.clients.append(key)
            else:
                invited.revoke(name)
        self.me = keys.own(folder / "key")
        self.links: list[GatewayLink] = []

    async def start(self, *options: str) -> None:
        self.origin = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "cedos", "gateway", "--processes", str(COUNT)),
                    *("--listen", f"127.0.0.1:{self.port}", "--allow-local"),
                    *(
                        "--own-key",
                        str(self.folder / "key"),
                        "--clients",
                        str(self.folder / "clients"),
                    ),
                    *("--metrics", f"127.0.0.1:{self.metrics}", *options),
                ],
                stderr=log,
                env=self.environment,
            )
        await self.said("ready ")
        self.links = [self.link(each) for each in self.clients]

    def link(self, client: KeyPair) -> GatewayLink:
        joined = JoinedGateway("127.0.0.1", self.port, self.me.public, client)
        return GatewayLink(joined, patience_s=20)

    async def said(self, words: str, times: int = 1) -> None:
        deadline_s = time.monotonic() + 60
        while (self.folder / "log").read_text().count(words) < times:
            assert time.monotonic() < deadline_s, (self.folder / "log").read_text()
            assert self.process.poll() is None, (self.folder / "log").read_text()
            await asyncio.sleep(0.05)

    async def open(self, link: GatewayLink) -> ProxiedStream:
        port = self.origin.sockets[0].getsockname()[1]
        return await link.open("127.0.0.1", port)

    def pids(self) -> list[int]:
        """Of the processes, in order."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        found = {}
        for pid in map(int, children.split()):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            if (
                number := re.search(rb'CEDOS_GATEWAY_PROCESS={"number":(\d+)', environment)
            ) is not None:
                found[int(number[1])] = pid
        return [found[number] for number in sorted(found)]

    async def figure(self, name: str) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.metrics)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        answer = (await reader.read()).decode()
        writer.close()
        (value,) = re.findall(rf"^cedos_gateway_{name} (\S+)$", answer, re.MULTILINE)
        return float(value)

    async def shows(self, name: str, least: float) -> None:
        """Until a figure is so high: each process notes its own twice a second."""
        async with asyncio.timeout(20):
            while await self.figure(name) < least:
                await asyncio.sleep(0.05)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        for link in self.links:
            await link.close()
        self.process.terminate()
        try:
            assert await asyncio.to_thread(self.process.wait, 30) == 0
        finally:
            self.process.kill()
        self.origin.close()


async def said_back(stream: ProxiedStream, words: bytes) -> bool:
    """Whether they come back; False: the connection has broken."""
    changed = asyncio.Event()
    stream.watch(changed.set)
    stream.write(words)
    got = b""
    while len(got) < len(words):
        while not stream.waiting and not stream.broken:
            changed.clear()
            await asyncio.wait_for(changed.wait(), 30)
        if stream.broken:
            return False
        new = b"".join(stream.waiting)
        stream.taken(len(new))
        got += new
    return got == words


class Way:
    """To a port, until it is cut."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers += [writer, to]
        await asyncio.gather(self._copy(reader, to), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        self._server.close()
        for each in self._writers:
            each.transport.abort()


def free_ports(address: str, count: int) -> int:
    """The first of so many in a row."""
    while True:
        first = free_port()
        with suppress(OSError), ExitStack() as tried:
            for port in range(first, first + count):
                one = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
                tried.enter_context(one).bind((address, port))
            return first


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path / "gateway")
    yield made
    await made.close()


async def test_each_client_is_served_by_its_process_and_one_dies_alone(running: Running) -> None:
    await running.start()
    streams = [await running.open(each) for each in running.links]
    assert [await said_back(each, b"hello") for each in streams] == [True] * COUNT
    await running.shows("sessions", COUNT)
    await running.shows("connections_opened_total", COUNT)
    assert await running.figure("sessions") == COUNT
    assert await running.figure("connections_opened_total") == COUNT
    # All begin anew, the one that began them too: nothing breaks.
    before = running.pids()
    running.process.send_signal(signal.SIGHUP)
    await running.said("ready ", 2)
    assert [await said_back(each, b"still") for each in streams] == [True] * COUNT
    assert running.pids() == before
    # One is killed: its client's connections break, the others' do not, and it is there again.
    os.kill(before[1], signal.SIGKILL)
    assert [await said_back(streams[number], b"there") for number in (0, 2)] == [True, True]
    assert not await said_back(streams[1], b"there?")
    again = await running.open(running.links[1])
    assert await said_back(again, b"again")
    await running.shows("connections_opened_total", COUNT + 1)
    assert running.pids()[0::2] == before[0::2]
    # Whoever takes the connection: each of the clients comes back a few times.
    for _ in range(4):
        for client in running.clients:
            link = running.link(client)
            running.links.append(link)
            assert await said_back(await running.open(link), b"once more")


async def test_limits_are_for_all_processes_together(running: Running) -> None:
    await running.start("--max-connections", "5", "--max-per-client", "3")
    streams = []
    refused = []
    for link in running.links:
        for _ in range(4):
            try:
                streams.append(await running.open(link))
            except RefusedError as error:
                refused.append(error.details)
    assert len(streams) == 5
    assert "3 connections are all that one client may have" in refused[0]
    assert "5 connections are all that the gateway takes" in refused[-1]


async def test_it_may_be_ended_while_it_begins_anew(running: Running) -> None:
    await running.start()
    before = running.pids()
    running.process.send_signal(signal.SIGHUP)
    await asyncio.sleep(0.5)
    began_s = time.monotonic()
    running.process.terminate()
    assert await asyncio.to_thread(running.process.wait, 20) == 0
    assert time.monotonic() - began_s < 10.0
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
