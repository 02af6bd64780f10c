"""Why an origin could not be asked, in words for people."""

import asyncio
import errno
import os
import socket

import aiohttp
import pytest
from yarl import URL

from cedos.files.objects.origin_client import OriginClient, words


def said(port: int, why: str = "", *, host: str = "127.0.0.1") -> str:
    async def ask() -> str:
        client = OriginClient(lambda _address, _port: why)
        try:
            await client.ask("GET", URL(f"http://{host}:{port}/x"), {}, silence_s=5.0)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return words(error)
        finally:
            await client.close()
        raise AssertionError("somebody answers")

    return asyncio.run(ask())


def test_a_port_where_nobody_listens_is_no_python() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert said(port) == "it refuses the connection"
    assert said(port, host="localhost") == "it refuses the connection"
    assert said(port, "that is this gateway's own host") == "that is this gateway's own host"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            OSError(errno.EHOSTUNREACH, "Connect call failed ('192.0.2.1', 80)"),
            "it does not answer",
        ),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 101] Connect call failed ('192.0.2.1', 1)"
            ),
            "it does not answer",
        ),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "Too many open files"),
    ],
)
def test_others(error: OSError, why: str) -> None:
    key = aiohttp.client_reqrep.ConnectionKey("there", 80, False, True, None, None, None)
    assert words(aiohttp.ClientConnectorError(key, error)) == why
