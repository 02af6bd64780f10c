"""Questions and answers of DNS, and a resolver on loopback that a test has answer as it likes."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cedos.monitor.dns.message import question

Answers = Callable[[bytes], bytes | None]


def asks(name: str, number: int = 7, opt_bytes: int = 0) -> bytes:
    message = question(number, name)
    if opt_bytes:
        message = (
            message[:10] + b"\0\1" + message[12:] + struct.pack("!BHHIH", 0, 41, opt_bytes, 0, 0)
        )
    return message


def tells(message: bytes, *, code: int = 0, records: int = 1, cut: bool = False) -> bytes:
    """An answer to a question: so many addresses, 192.0.2.1 and on."""
    number = int.from_bytes(message[:2])
    flags = 0x8180 | code | (0x0200 if cut else 0)
    end = message.index(b"\0", 12) + 5
    body = b"".join(
        struct.pack("!3HIH4B", 0xC00C, 1, 1, 60, 4, 192, 0, 2, each % 256)
        for each in range(1, records + 1)
    )
    return struct.pack("!6H", number, flags, 1, records, 0, 0) + message[12:end] + body


class LoopbackResolver:
    """Answers by UDP as `udp` says, by TCP as `tcp` does; `asked` are the names that came."""

    def __init__(self) -> None:
        self.udp: Answers = tells
        self.tcp: Answers = tells
        self.asked: list[bytes] = []

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        resolver = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, sender: Any) -> None:
                resolver.asked.append(data)
                if (answer := resolver.udp(data)) is not None:
                    self.transport.sendto(answer, sender)

        while True:
            self.transport, _ = await loop.create_datagram_endpoint(Udp, ("127.0.0.1", 0))
            self.server = self.transport.get_extra_info("sockname")[:2]
            try:
                self.listening = await asyncio.start_server(self._serve, *self.server)
            except OSError:  # somebody else has that port by TCP
                self.transport.close()
            else:
                return

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(2))
        answer = self.tcp(await reader.readexactly(length))
        if answer is not None:
            writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    def close(self) -> None:
        self.transport.close()
        self.listening.close()


@pytest.fixture
async def loopback_resolver() -> AsyncIterator[LoopbackResolver]:
    made = LoopbackResolver()
    await made.start()
    yield made
    made.close()
