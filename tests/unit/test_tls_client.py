"""Handshakes with strangers take turns in threads."""

import asyncio
import threading
import time

import pytest

from cedos import tls_client


async def test_an_asker_takes_one_thread_even_for_what_it_left():
    """Else a client that left its costly handshakes took all threads, and others had no https."""
    together, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.1)
        with lock:
            together -= 1

    left = asyncio.ensure_future(tls_client._in_turn("first", work))
    await asyncio.sleep(0.02)
    left.cancel()
    asked = [asyncio.ensure_future(tls_client._in_turn("first", work)) for _ in range(8)]
    began = time.monotonic()
    await tls_client._in_turn("second", lambda: None)
    assert time.monotonic() - began < 0.3
    await asyncio.gather(*asked)
    assert most == 1
    assert not tls_client._working


async def test_a_handshakes_error_is_the_askers():
    with pytest.raises(OSError, match="broken"):
        await tls_client._in_turn("first", lambda: OSError("broken"))
    assert not tls_client._working
