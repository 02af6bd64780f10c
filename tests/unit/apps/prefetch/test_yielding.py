"""Prefetching keeps out of other programs' way: its window, and when hardly anything may come."""

import asyncio
import gzip
import socket
from contextlib import suppress
from time import process_time

import pytest

from cedos import web
from cedos.apps.prefetch import http
from cedos.apps.prefetch.http import (
    FIRST_BYTES,
    LEAST_BYTES,
    MOST_BYTES,
    BackgroundWindow,
    HttpFetcher,
    Yielding,
)
from cedos.apps.prefetch.prefetcher import OtherPrograms
from cedos.apps.prefetch.surroundings import FetchError, NotThereError, Turn
from cedos.model import Bulk, Label, Urgency
from cedos.web import Distance

_TCP_WINDOW_CLAMP = 10


def settled(capacity_bps, base_s, rounds=300):
    """A link with a queue as long as it gets; the window, and the last queue in seconds."""
    window, queue_s = BackgroundWindow(), 0.0
    for _ in range(rounds):
        rtt_s = max(base_s, 8 * window.bytes / capacity_bps)
        queue_s = rtt_s - base_s
        window.observe(rtt_s, min(window.bytes, capacity_bps / 8 * rtt_s))
    return window, queue_s


def test_it_fills_the_path_and_no_queue():
    window, queue_s = settled(10e6, 0.026)
    assert window.bytes > 0.7 * 10e6 / 8 * 0.026
    assert queue_s < 0.010


def test_it_gives_way_to_a_queue_of_others_and_never_stops():
    window, _ = settled(10e6, 0.026)
    for _ in range(100):
        window.observe(0.100, window.bytes)
    assert window.bytes == LEAST_BYTES
    assert settled(1e12, 0.1)[0].bytes == MOST_BYTES


def test_nothing_known_changes_nothing():
    window = BackgroundWindow()
    before = window.bytes
    assert window.observe(None, 1000) == before


def test_others_are_told_from_oneself():
    opens = [7]
    others = OtherPrograms(lambda: opens[0])
    assert not others.busy(1.0)
    others.own()
    opens[0] += 1
    assert not others.busy(1.1)
    opens[0] += 1
    assert others.busy(1.2)
    assert others.busy(1.5)
    assert not others.busy(1.7)


def test_who_opens_all_the_time_does_not_stop_it_for_ever():
    opens = [0]
    others = OtherPrograms(lambda: opens[0])
    busy = []
    for step in range(500):
        opens[0] += step % 10 == 0
        busy.append(others.busy(1.0 + 0.01 * step))
    assert 0.15 < busy.count(False) / len(busy) < 0.5


def test_a_host_that_does_not_count_is_never_busy():
    assert not OtherPrograms(lambda: None).busy(1.0)


async def test_while_it_waits_the_other_end_may_send_hardly_anything():
    """Not reading is not enough: the kernel would go on to fill its buffer at the full rate."""
    clear = True
    turn = Turn(None, Label(Urgency.BACKGROUND, Bulk.LARGE), clear=lambda: clear)
    accepted = []
    server = await asyncio.start_server(lambda _reader, its: accepted.append(its), "127.0.0.1")
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        transport = writer.transport
        one = transport.get_extra_info("socket")

        async def until(true):
            async with asyncio.timeout(5):
                while not true(one.getsockopt(socket.IPPROTO_TCP, _TCP_WINDOW_CLAMP)):
                    await asyncio.sleep(0.005)

        async with Yielding(transport, turn):
            await until(lambda window: window == FIRST_BYTES)
            clear = False
            await until(lambda window: window < 1500)
            assert not transport.is_reading()
            clear = True
            await until(lambda window: window >= FIRST_BYTES)
            assert transport.is_reading()
    finally:
        for each in (writer, *accepted):
            each.close()
            await each.wait_closed()
        server.close()
        await server.wait_closed()


async def test_nothing_is_begun_while_others_begin_something():
    clear = False
    turn = Turn(None, Label(Urgency.BACKGROUND, Bulk.LARGE), clear=lambda: clear)
    asked = []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        fetching = asyncio.create_task(HttpFetcher(f"http://127.0.0.1:{port}/").fetch(turn))
        await asyncio.sleep(0.1)
        assert not asked
        clear = True
        assert (await asyncio.wait_for(fetching, 5)).content == b"ok"
    assert len(asked) == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "x-gzip", "br", "GZIP", ""])
async def test_a_server_cannot_fill_memory_beyond_a_bound(monkeypatch, encoding):
    """Answer with a bomb, or without an end: 1 MB of gzip took 2 GB of an application's memory."""
    monkeypatch.setattr(http, "MOST_IN_MEMORY_BYTES", 1_000_000)
    body = gzip.compress(bytes(20_000_000)) if encoding else bytes(20_000_000)
    field = f"Content-Encoding: {encoding}\r\n" if encoding else ""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            f"HTTP/1.1 200 OK\r\n{field}Content-Length: {len(body)}\r\n\r\n".encode() + body
        )
        writer.close()

    turn = Turn(None, Label(Urgency.FOREGROUND, Bulk.LARGE), clear=lambda: True)
    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        fetcher = HttpFetcher(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        with pytest.raises(NotThereError, match="compressed" if encoding else "more than"):
            await asyncio.wait_for(fetcher.fetch(turn), 20)
        assert fetcher._part.size == 0


def foreground():
    return Turn(None, Label(Urgency.FOREGROUND, Bulk.LARGE), clear=lambda: True)


@pytest.mark.parametrize("urgency", Urgency)
async def test_a_server_that_sends_byte_by_byte_is_given_up(monkeypatch, urgency):
    """Send a byte now and then: the server held its network's only prefetch; all others waited."""
    monkeypatch.setattr(web, "SILENCE_S", 0.3)
    ended = asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)
        writer.close()
        ended.set()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        turn = Turn(None, Label(urgency, Bulk.LARGE), clear=lambda: True)
        with pytest.raises(FetchError, match="less than 16384 bytes came"):
            await asyncio.wait_for(HttpFetcher(url).fetch(turn), 5)
        await ended.wait()


async def test_what_steps_back_for_long_is_not_given_up(monkeypatch):
    monkeypatch.setattr(web, "SILENCE_S", 0.3)
    clear, began = asyncio.Event(), asyncio.Event()

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n" + bytes(4000))
        await writer.drain()
        await clear.wait()
        writer.write(bytes(4000))
        writer.close()

    def is_clear():
        return clear.is_set() or not began.is_set()

    def received(have, _size):
        if have:
            began.set()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        turn = Turn(None, Label(Urgency.BACKGROUND, Bulk.LARGE), received, is_clear)
        fetching = asyncio.create_task(HttpFetcher(url).fetch(turn))
        await began.wait()
        await asyncio.sleep(0.6)
        clear.set()
        assert (await asyncio.wait_for(fetching, 5)).content == bytes(8000)


async def test_a_server_that_begins_anew_without_end_is_given_up():
    """Break off a little later each time: 343 MB came in 40 s for an item of 120 kB, without end."""
    turn, asked = Turn(None, Label(Urgency.FOREGROUND, Bulk.LARGE), clear=lambda: True), []

    async def answer(reader, writer):
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        body = bytes(10_000 * len(asked))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n" + body)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        fetcher = HttpFetcher(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        for _ in range(http.MOST_ANEW + 1):
            with pytest.raises(FetchError) as failed:
                await fetcher.fetch(turn)
            assert not isinstance(failed.value, NotThereError)
        with pytest.raises(NotThereError, match="anew"):
            await fetcher.fetch(turn)
    assert len(asked) == http.MOST_ANEW + 2


@pytest.mark.parametrize("field", ["Location", "Uri"])
async def test_a_redirect_to_a_host_that_cannot_be_a_name_costs_little(field):
    """Redirect ten times to a host of 21,000 letters: each cost the program 40 s."""
    letters = "".join(chr(0x4E00 + 7919 * at % 20_900) for at in range(4_000))

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\n{field}: http://{letters}/\r\n\r\n".encode())
        writer.close()

    turn = Turn(None, Label(Urgency.FOREGROUND, Bulk.LARGE), clear=lambda: True)
    began_s = process_time()
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(FetchError):
            await HttpFetcher(url).fetch(turn)
    assert process_time() - began_s < 0.3


async def test_a_redirect_that_names_no_place_is_tried_again():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(FetchError, match="leads nowhere") as failed:
            await HttpFetcher(url).fetch(foreground())
    assert not isinstance(failed.value, NotThereError)


@pytest.mark.parametrize("leads", [True, False])
async def test_a_server_leads_to_nothing_that_is_nearer(leads, monkeypatch):
    """Lead from 127.0.0.3, which plays the internet, to 127.0.0.2, which plays a private address."""
    monkeypatch.setattr(web, "distance", lambda text: Distance(int(text[-1])))
    asked = []

    async def serve(address, head):
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            asked.append(address)
            writer.write(f"HTTP/1.1 {head}\r\nContent-Length: 2\r\n\r\nok".encode())
            writer.close()

        return await asyncio.start_server(answer, address)

    first, second = ("127.0.0.2", "127.0.0.3") if leads else ("127.0.0.3", "127.0.0.2")
    turn = Turn(None, Label(Urgency.FOREGROUND, Bulk.LARGE), clear=lambda: True)
    async with await serve(second, "200 OK") as there:
        to = f"http://{second}:{there.sockets[0].getsockname()[1]}/"
        async with await serve(first, f"302 Found\r\nLocation: {to}") as server:
            fetching = HttpFetcher(f"http://{first}:{server.sockets[0].getsockname()[1]}/").fetch(
                turn
            )
            if leads:
                assert (await fetching).content == b"ok"
            else:
                with pytest.raises(NotThereError, match="nearer to this host"):
                    await fetching
    assert asked == [first] + [second] * leads
