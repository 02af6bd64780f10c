"""Objects of the web at the gateway: asked for, resumed, kept, validated."""

import asyncio
import errno
import os
import socket
import threading

import aiohttp
import pytest
from kit.waiting import until
from yarl import URL

from cedos.apps.files.getting import Getting
from cedos.apps.files.objects.origin_client import OriginClient, words
from cedos.apps.files.partial import Partial, files_of
from cedos.apps.files.server_link import ServerLink
from cedos.errors import TransferError
from cedos.proxy.gateway.origin import DestinationRules, Origins
from cedos.session.protocol.crypto import KeyPair


def said(port, why="", *, host="127.0.0.1"):
    async def ask():
        client = OriginClient(lambda _address, _port: why)
        try:
            await client.ask(URL(f"http://{host}:{port}/x"), {})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return words(error)
        finally:
            await client.close()
        raise AssertionError("somebody answers")

    return asyncio.run(ask())


def test_a_port_where_nobody_listens_is_no_python():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert said(port) == "it refuses the connection"
    assert said(port, host="localhost") == "it refuses the connection"
    assert said(port, "that is this gateway's own host") == "that is this gateway's own host"


async def test_names_that_nobody_answers_for_keep_only_their_own_client_waiting(monkeypatch):
    """aiohttp's resolver has as many threads as processors, and four: one client had them all."""
    answers = threading.Event()

    def resolve(host, *_, **__):
        if host.startswith("stalls"):
            answers.wait(10)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = OriginClient(lambda *_: "", Origins(DestinationRules()).look_up)

    async def ask(host, asker):
        url = URL(f"http://{host}:{port}/")
        answer = await client.ask(url, {}, asker)
        answer.close()
        return answer.status

    names = [*(f"stalls{n}.test" for n in range(40)), "quick.test"]
    floods = [asyncio.create_task(ask(name, "one")) for name in names]
    await asyncio.sleep(0.1)
    try:
        async with asyncio.timeout(4):
            # The first one's look-up of the same name waits behind its others.
            assert await ask("quick.test", "other") == 204
            for each in floods:
                each.cancel()
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) < 30, "names are looked up that no request waits for"
    finally:
        answers.set()
        await asyncio.gather(*floods, return_exceptions=True)
        await client.close()
        server.close()


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
def test_others(error, why):
    key = aiohttp.client_reqrep.ConnectionKey("there", 80, False, True, None, None, None)
    assert words(aiohttp.ClientConnectorError(key, error)) == why


async def kept_whole(fetching):
    await until(
        lambda: any(each.whole for each in fetching.fetcher.store.of(client_of(fetching))), 20
    )


def client_of(fetching):
    (client,) = fetching.fetcher.store._kept
    return str(client)


async def test_what_is_fresh_is_fetched_once(fetching):
    await fetching.start()
    data = os.urandom(3_000_000)
    fetching.publish(data)
    for _ in range(2):
        assert await fetching.get(fetching.url("/fresh/file")) == data
    assert fetching.requests == ["200 /fresh/file -"]


async def test_what_somebody_deleted_is_fetched_again(fetching):
    await fetching.start()
    fetching.publish(b"here")
    assert await fetching.get(fetching.url("/fresh/file")) == b"here"
    (kept,) = fetching.fetcher.store.of(client_of(fetching))
    kept.path.unlink()
    assert await fetching.get(fetching.url("/fresh/file")) == b"here"
    assert len(fetching.requests) == 2


async def test_many_who_want_one_object_at_once_have_it_fetched_once(fetching):
    await fetching.start()
    data = os.urandom(2_000_000)
    fetching.publish(data)
    got = await asyncio.gather(
        *(fetching.get(fetching.url("/slow/file"), f"got{number}") for number in range(5))
    )
    assert got == [data] * 5
    assert fetching.requests == ["200 /slow/file -"]


async def test_what_may_have_changed_is_asked_about(fetching):
    await fetching.start()
    fetching.publish(b"old" * 1000)
    url = fetching.url("/file")
    assert await fetching.get(url) == b"old" * 1000
    # By its date it is fresh for 6 s (a tenth of its age, RFC 9111, 4.2.2).
    (kept,) = fetching.fetcher.store.of(client_of(fetching))
    kept.record.headers["date"] = ["Mon, 23 Nov 2026 08:00:00 GMT"]
    assert await fetching.get(url) == b"old" * 1000
    (kept,) = fetching.fetcher.store.of(client_of(fetching))
    kept.record.headers["date"] = ["Mon, 23 Nov 2026 08:00:00 GMT"]
    fetching.publish(b"newer" * 1000)
    assert await fetching.get(url) == b"newer" * 1000
    assert fetching.requests == ["200 /file -", "304 /file -", "200 /file -"]
    assert len(fetching.fetcher.store.of(client_of(fetching))) == 1


async def test_what_may_not_be_stored_goes_when_it_was_handed_on(fetching):
    await fetching.start()
    fetching.publish(b"secret" * 1000)
    for _ in range(2):
        assert await fetching.get(fetching.url("/secret/file")) == b"secret" * 1000
        client = client_of(fetching)
        await until(lambda client=client: not fetching.fetcher.store.of(client))
    assert fetching.requests == ["200 /secret/file -"] * 2
    assert list((fetching.folder / "objects" / client).iterdir()) == []


async def test_one_clients_objects_leave_threads_to_others(fetching, monkeypatch):
    """Objects that ended together waited for the disk in all threads of a small host."""
    await fetching.start()
    waiting, go_on = [], threading.Event()

    def slow(number):
        waiting.append(number)
        go_on.wait(10)

    monkeypatch.setattr(os, "fdatasync", slow)
    urls = []
    for number in range(4):
        fetching.publish(b"x", f"{number}")
        urls.append(fetching.url(f"/fresh/{number}"))
    got = [asyncio.create_task(fetching.get(url, f"got{at}")) for at, url in enumerate(urls)]
    try:
        await until(lambda: len(waiting) >= 2)
        threads = fetching.fetcher.store.threads[client_of(fetching)]
        await until(lambda: len(threads._waiters or ()) == 2)
        assert len(waiting) == 2
    finally:
        go_on.set()
        await asyncio.gather(*got)
    assert len(waiting) == 4


async def test_clients_do_not_see_each_others(fetching):
    await fetching.start()
    fetching.publish(b"private")
    other = KeyPair(os.urandom(32))
    fetching.invited[other.public] = "phone"
    assert await fetching.get(fetching.url("/fresh/file")) == b"private"
    assert await fetching.get(fetching.url("/fresh/file"), who=other) == b"private"
    assert len(fetching.requests) == 2
    assert len(list((fetching.folder / "objects").iterdir())) == 2


async def test_it_is_read_whole_while_its_client_is_away(fetching):
    """The client goes after a piece and comes back in another session: nothing is fetched again."""
    await fetching.start()
    data = os.urandom(6_000_000)
    fetching.publish(data)
    url, sessions = fetching.url("/slow/file"), []

    async def session():
        sessions.append(await fetching.connect())
        return sessions[-1]

    partial = Partial(fetching.folder / "got", url)
    getting = Getting(url, partial, ServerLink(session), 20.0)
    task = asyncio.create_task(getting.run())
    await until(lambda: partial.have >= 500_000)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    had = partial.have
    assert had < len(data)
    await kept_whole(fetching)
    again = Getting(url, partial, ServerLink(session), 20.0)
    await asyncio.wait_for(again.run(), 20)
    assert again.progress.began_bytes == had
    assert (fetching.folder / "got").read_bytes() == data
    assert fetching.requests == ["200 /slow/file -"]
    assert sessions[1].received_bytes < len(data) - had + 1000


async def test_an_origin_that_breaks_off_is_asked_for_the_rest(fetching):
    await fetching.start()
    data = os.urandom(6_000_000)
    fetching.publish(data)
    getting = asyncio.create_task(fetching.get(fetching.url("/slow/file")))
    part = files_of(fetching.folder / "got")[0]
    await until(lambda: not (not part.exists() or part.stat().st_size < 500_000))
    fetching.stop_nginx()
    await asyncio.sleep(0.2)
    fetching.start_nginx()
    assert await getting == data
    assert fetching.requests[-1].startswith("206 /slow/file bytes=")


async def test_of_an_unknown_size_it_comes_once_it_is_whole(fetching):
    await fetching.start()
    data = b"no size is told\n" * 20_000
    fetching.publish(data)
    assert await fetching.get(fetching.url("/pieces/file")) == data


async def test_the_gateway_is_the_end_of_tls(fetching, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(fetching.folder / "cert.pem"))
    await fetching.start()
    fetching.publish(b"over TLS")
    assert await fetching.get(fetching.url("/fresh/file", tls=True)) == b"over TLS"
    with pytest.raises(TransferError, match="without encryption"):
        await fetching.get(fetching.url("/down/", tls=True))


async def test_an_origin_that_cannot_prove_who_it_is_is_not_asked(fetching):
    await fetching.start()
    with pytest.raises(TransferError, match="certificate is not one to trust"):
        await fetching.get(fetching.url("/file", tls=True))
    assert fetching.requests == []


async def test_it_follows_where_an_origin_leads(fetching):
    await fetching.start()
    fetching.publish(b"here")
    for _ in range(2):
        assert await fetching.get(fetching.url("/moved/file")) == b"here"
    assert fetching.requests == ["302 /moved/file -", "200 /fresh/file -", "302 /moved/file -"]
    with pytest.raises(TransferError, match="10 times"):
        await fetching.get(fetching.url("/round/"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/none", "the gateway says: .* answers 404 Not Found"),
        ("file:///etc/passwd", "no http"),
        ("", "no http"),
    ],
)
async def test_refusals_say_why(fetching, path, why):
    await fetching.start()
    with pytest.raises(TransferError, match=why):
        await fetching.get(fetching.url(path) if path.startswith("/") else path)
    fetching.publish(b"x")
    assert await fetching.get(fetching.url("/file")) == b"x"


async def test_it_goes_nowhere_where_connections_may_not_go(fetching):
    await fetching.start(local=False)
    with pytest.raises(TransferError, match="own host"):
        await fetching.get(fetching.url("/file"))
    assert fetching.requests == []


async def test_who_is_not_invited_any_more_gets_nothing(fetching):
    await fetching.start()
    fetching.publish(b"x")
    link = ServerLink(fetching.connect)
    partial = Partial(fetching.folder / "got", "x")
    link._connection = await fetching.connect()
    fetching.invited.clear()
    with pytest.raises(TransferError, match="no longer invited"):
        await Getting(fetching.url("/file"), partial, link, 5.0).run()
    partial.close()


async def test_more_than_may_be_kept_is_refused(fetching):
    await fetching.start(most_bytes=100_000)
    fetching.publish(bytes(60_000))
    with pytest.raises(TransferError, match="larger than the 50000 bytes"):
        await fetching.get(fetching.url("/file"))
    fetching.publish(b"x" * 60_000)
    with pytest.raises(TransferError):
        await fetching.get(fetching.url("/pieces/file"))
    assert fetching.fetcher.store.of("anybody") == []
