"""A session with the gateway ends once nobody has used it for a while, and not before."""

import asyncio

from cedos.proxy.local import gateway_link
from cedos.proxy.local.local_proxy import Listening

UNUSED_S = 0.5


async def echo(reader, writer):
    writer.write(await reader.read())
    await writer.drain()


async def test_short_connections_keep_their_session(ends, monkeypatch):
    """Each ten minutes one in constant use was ended, where nothing happened to be open just then."""
    monkeypatch.setattr(gateway_link, "UNUSED_S", UNUSED_S)
    await ends.start()
    ends.proxy.open([Listening("127.0.0.1", 0, ("127.0.0.1", await ends.origin(echo)))])

    async def one():
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.proxy.addresses[-1].port)
        writer.write(b"a")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 5) == b"a"
        writer.close()
        return ends.link._streams

    first = await one()
    for _ in range(8):
        await asyncio.sleep(UNUSED_S / 3)
        assert await one() is first
    await asyncio.sleep(2 * UNUSED_S + 0.2)
    assert ends.link._streams is None
    assert await one() is not first
