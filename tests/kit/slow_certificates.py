"""A TLS server whose certificates take OpenSSL 0.2 s each to decode, before it trusts any."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Square roots are slow to find modulo a prime k * 2^630 + 1, and a compressed point needs one.
_PRIME = (604631349 << 630) + 1
_B = 0x2C7DC5745447ED9C1DDC57793B7939A2E6CE8E36B5753E102008A771DEE78675CF88F14FAA3B035EF3F7A201E3F88266F4D138EBE5B779A37B4231C4A26F996E2A952F75FD6B14A4BCD3D2E25B22F4EFF2402  # noqa: E501
_BYTES = 83


def _tagged(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    size = len(body).to_bytes((len(body).bit_length() + 7) // 8)
    return bytes([tag, *([len(body)] if len(body) < 128 else [0x80 | len(size), *size])]) + body


def _number(value: int) -> bytes:
    return _tagged(2, value.to_bytes(value.bit_length() // 8 + 1))


def slow_certificate(number: int) -> bytes:
    """Return a certificate of 636 bytes: an EC key with parameters of its own and compressed points."""
    point = b"\x02" + (5).to_bytes(_BYTES)
    parameters = _tagged(
        0x30,
        _number(1),
        _tagged(0x30, _tagged(6, bytes.fromhex("2a8648ce3d0101")), _number(_PRIME)),
        _tagged(0x30, *(_tagged(4, each.to_bytes(_BYTES)) for each in (_PRIME - 3, _B))),
        _tagged(4, point),
        _number(_PRIME - 6 | 1),
        _number(1),
    )
    kind = _tagged(0x30, _tagged(6, bytes.fromhex("2a8648ce3d0201")), parameters)
    key = _tagged(0x30, kind, _tagged(3, b"\0" + point))
    signing = _tagged(0x30, _tagged(6, bytes.fromhex("2a8648ce3d040302")))
    times = _tagged(0x30, *(_tagged(0x17, year + b"0101000000Z") for year in (b"25", b"35")))
    name = _tagged(0x30)
    body = _tagged(0x30, _number(number + 1), signing, name, times, name, key)
    return _tagged(0x30, body, signing, _tagged(3, b"\0" + bytes(8)))


def slow_flight(count: int) -> bytes:
    """Return what a server of TLS 1.2 says first, with so many slow certificates."""
    chain = b"".join(
        len(each).to_bytes(3) + each for each in (slow_certificate(n) for n in range(count))
    )
    told = len(chain).to_bytes(3) + chain
    hello = b"\x03\x03" + bytes(33) + b"\xc0\x2f\0\0\x05\xff\x01\0\x01\0"
    said = b"\x02" + len(hello).to_bytes(3) + hello + b"\x0b" + len(told).to_bytes(3) + told
    pieces = (said[at : at + 16000] for at in range(0, len(said), 16000))
    return b"".join(b"\x16\x03\x03" + len(each).to_bytes(2) + each for each in pieces)


@asynccontextmanager
async def slow_server(count: int) -> AsyncIterator[int]:
    """Serve so many slow certificates to each connection; the port is the block's."""
    said = slow_flight(count)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(5000)
        writer.write(said)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def longest_wait_s(work: asyncio.Future[object]) -> float:
    """Return the longest time that the event loop stood still until the work was done."""
    loop, longest = asyncio.get_running_loop(), 0.0
    while not work.done():
        before = loop.time()
        await asyncio.sleep(0.01)
        longest = max(longest, loop.time() - before)
    return longest
