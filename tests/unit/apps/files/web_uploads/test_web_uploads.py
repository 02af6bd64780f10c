"""Uploads to web servers, put together at the gateway, also over TLS."""

import asyncio
import errno
import os
import shutil
import socket
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from kit.nginx import certificate, nginx
from kit.waiting import until

from cedos.apps.files import client_store, web_uploads
from cedos.apps.files.client_store import Cost
from cedos.apps.files.messages import PutAnswer, PutRequest, WebAnswer, pack, read
from cedos.apps.files.objects.object_serving import client_of
from cedos.apps.files.partial import Partial
from cedos.apps.files.web_uploads import UploadRecord, UploadState, UploadStore
from cedos.errors import TransferError
from cedos.session.protocol.crypto import KeyPair
from tests.unit.apps.files.web_uploads.conftest import CREATED

SERVERS = """
server {{
  listen 127.0.0.1:{tls_port} ssl; root {folder}/www; dav_methods PUT; create_full_put_path on;
  ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
}}
server {{ listen 127.0.0.1:{port}; return 308 https://127.0.0.1:{tls_port}$request_uri; }}
"""


class TlsOrigin:
    """`requests` has a line of status, method and scheme for each; `authority` is its own."""

    def __init__(self, folder):
        self.folder = folder
        self.authority = certificate(folder, "127.0.0.1")
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            self.port, self.tls_port = one.getsockname()[1], two.getsockname()[1]
        (folder / "www").mkdir()
        servers = SERVERS.format(folder=folder, port=self.port, tls_port=self.tls_port)
        self._nginx = nginx(folder, servers, log="$status $request_method $scheme")

    def requests(self):
        return (self.folder / "access.log").read_text().splitlines()

    def close(self):
        self._nginx.kill()
        self._nginx.wait(20)


@pytest.fixture
def dav(tmp_path):
    made = TlsOrigin(tmp_path / "dav")
    yield made
    made.close()


async def test_it_arrives_where_the_gateways_host_trusts_the_authority(uploading, dav, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    data = os.urandom(3_000_000)
    url = f"https://127.0.0.1:{dav.tls_port}/2026/photo.jpg"
    done = await uploading.put(uploading.file(data), url=url)
    assert done.answer.status == 201
    assert (dav.folder / "www/2026/photo.jpg").read_bytes() == data
    assert dav.requests() == ["201 PUT https"]


async def test_a_stranger_gets_nothing_and_it_goes_on_once_he_is_trusted(
    uploading, dav, monkeypatch
):
    source = uploading.file(os.urandom(300_000))
    url = f"https://127.0.0.1:{dav.tls_port}/photo.jpg"
    with pytest.raises(TransferError, match="its certificate is not one to trust"):
        await uploading.put(source, url=url)
    assert dav.requests() == []
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    await uploading.begin_anew()
    done = await uploading.put(source, url=url)
    assert done.answer.status == 201
    assert done.progress.began_bytes == 300_000, "it was at the gateway all the time"
    assert (dav.folder / "www/photo.jpg").read_bytes() == source.read_bytes()


async def test_a_server_that_sends_it_on_to_its_https(uploading, dav, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    source = uploading.file(os.urandom(300_000))
    done = await uploading.put(source, url=f"http://127.0.0.1:{dav.port}/photo.jpg")
    assert done.answer.status == 201
    assert (dav.folder / "www/photo.jpg").read_bytes() == source.read_bytes()
    assert dav.requests() == ["308 PUT http", "201 PUT https"]


REFUSED = b"HTTP/1.1 413 Too Large\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\n2 MB!\n"


def disk(uploading):
    found = [each.name for each in (uploading.folder / "uploads").rglob("*") if each.is_file()]
    return sorted(name for name in found if not name.startswith("."))


async def test_what_waits_of_a_client_that_is_revoked_meanwhile_is_not_sent(uploading):
    uploading.invited = False
    with pytest.raises(TransferError, match="no longer invited"):
        await uploading.put(uploading.file(b"data"))
    assert uploading.origin.got == []


async def test_the_origin_sees_one_request_and_its_answer_comes_back(uploading):
    uploading.origin.answers = [CREATED]
    data = os.urandom(3_000_000)
    done = await uploading.put(uploading.file(data), headers=(("X-Own", "1"),))
    assert (done.answer.status, done.answer.text) == (201, "ok")
    ((head, body),) = uploading.origin.got
    assert head.startswith(b"PUT /in HTTP/1.1\r\n")
    assert b"x-own: 1\r\n" in head.lower()
    assert b"content-type: image/jpeg\r\n" in head.lower()
    assert b"expect" not in head.lower()
    assert body == data
    await until(lambda: not uploading.store.all()[0][1].writes)
    (name,) = disk(uploading)  # the body is gone, and so are its headers
    (record,) = (uploading.folder / "uploads").rglob("*.json")
    assert b"X-Own" not in record.read_bytes()
    assert record.stat().st_mode & 0o077 == 0
    assert name.endswith(".json")


async def test_what_was_sent_is_not_sent_twice(uploading):
    uploading.origin.answers = [CREATED, CREATED]
    source = uploading.file(b"x" * 1000)
    for _ in range(2):
        assert (await uploading.put(source)).answer.status == 201
    assert len(uploading.origin.got) == 1
    os.utime(source, (1.0, 1.0))
    assert (await uploading.put(source)).answer.status == 201
    assert len(uploading.origin.got) == 2


async def test_a_client_that_was_killed_goes_on_and_hears_the_answer(uploading):
    source = uploading.file(os.urandom(2_000_000))
    putting, link = uploading.putting(source)
    connection = await link._connect()
    body, asked = putting._body, putting._web
    await connection.write(pack(PutRequest(uploading.url, body.size, str(body.version), web=asked)))
    assert (await read(PutAnswer, connection.read_exactly)).start == 0
    await connection.write(source.read_bytes()[:700_000])
    await connection.acknowledged(connection.written_bytes)
    await asyncio.sleep(0.1)
    connection.abort("killed")
    putting.close()
    assert uploading.origin.got == []
    uploading.origin.answers = [CREATED]
    uploading.origin.waits.clear()
    second, link = uploading.putting(source)
    running = asyncio.create_task(second.run())
    await until(lambda: uploading.origin.got)
    assert second.progress.began_bytes == 700_000
    running.cancel()  # away while the origin thinks
    await asyncio.gather(running, return_exceptions=True)
    second.close()
    uploading.origin.waits.set()
    await until(lambda: uploading.store.all()[0][1].record.answer is not None)
    third = await uploading.put(source)
    assert third.answer.status == 201
    assert third.progress.began_bytes == 2_000_000
    assert uploading.origin.got == [(uploading.origin.got[0][0], source.read_bytes())]


async def test_an_upload_whose_note_finds_no_room_is_sent_all_the_same(uploading, monkeypatch):
    """Bring all of it: the gateway never sent it, and its client waited until the gateway's end."""
    keep = UploadStore.keep

    async def full(store, client, upload):
        if upload.record.state is UploadState.WHOLE:
            raise TransferError("the gateway cannot store it: No space left on device")
        await keep(store, client, upload)

    monkeypatch.setattr(UploadStore, "keep", full)
    uploading.origin.answers = [CREATED]
    source = uploading.file(b"data")
    with pytest.raises(TransferError, match="No space left"):
        await uploading.put(source)
    assert (await asyncio.wait_for(uploading.put(source), 5)).answer.status == 201


async def test_who_ends_a_session_that_completes_an_upload_ends_nothing_else(
    uploading, monkeypatch
):
    """The thread that named the file went on with the numbers of closed ones, which others may have."""
    finish, begun, go_on, opened = Partial.finish, Event(), Event(), []

    def slow(part, modified_unix_s):
        begun.set()
        go_on.wait(5)
        opened.append(Path(f"/proc/self/fd/{part.number}").exists())
        finish(part, modified_unix_s)

    monkeypatch.setattr(Partial, "finish", slow)
    uploading.origin.answers += [CREATED, CREATED]
    data = os.urandom(300_000)
    source = uploading.file(data)
    first = asyncio.create_task(uploading.put(source))
    await until(begun.is_set)
    ((_, upload),) = uploading.store.all()
    bringer = upload.bringer
    second = asyncio.create_task(uploading.put(source))
    await until(lambda: upload.bringer is not bringer)
    first.cancel()
    await asyncio.sleep(0.1)
    go_on.set()
    assert (await second).answer.status == 201
    await until(lambda: not uploading.uploads._sending)
    assert [body for _, body in uploading.origin.got] == [data]
    assert opened == [True]


async def test_an_origin_that_refuses_early_is_heard(uploading):
    uploading.origin.answers, uploading.origin.answers_first = [REFUSED], True
    with pytest.raises(TransferError, match="413"):
        await uploading.put(uploading.file(os.urandom(4_000_000)))


async def test_a_put_that_an_origin_leaves_unanswered_goes_again(uploading):
    uploading.origin.answers = [b"", CREATED]
    assert (await uploading.put(uploading.file(b"y" * 5000))).answer.status == 201
    assert len(uploading.origin.got) == 2


async def test_a_gateway_that_is_killed_while_it_sends(uploading):
    uploading.origin.answers = [CREATED, CREATED]
    uploading.origin.waits.clear()
    source = uploading.file(b"z" * 5000)
    putting, link = uploading.putting(source)
    running = asyncio.create_task(putting.run())
    await until(lambda: uploading.origin.got)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    putting.close()
    await link.close()
    await uploading.begin_anew()
    uploading.origin.waits.set()
    await until(lambda: len(uploading.origin.got) == 2)
    assert (await uploading.put(source)).answer.status == 201


async def test_what_is_whole_is_sent_by_the_next_process(uploading):
    await uploading.origin.close()
    source = uploading.file(b"w" * 5000)
    with pytest.raises(TransferError, match="cannot be asked: it refuses the connection"):
        await uploading.put(source)
    ((client, kept),) = uploading.store.all()
    kept.record.state, kept.record.answer = UploadState.WHOLE, None
    await uploading.store.keep(client, kept)
    await uploading.origin.start()
    kept.record.url = uploading.url
    await uploading.store.keep(client, kept)
    uploading.origin.answers = [CREATED]
    await uploading.begin_anew()
    await until(lambda: uploading.origin.got)


async def leave_behind(uploading):
    """Begin an upload that is kept for 100 s, and leave it after 1,000 bytes."""
    source = uploading.file(os.urandom(100_000))
    putting, link = uploading.putting(source, keep_s=100.0)
    connection = await link._connect()
    body, asked = putting._body, putting._web
    await connection.write(pack(PutRequest(uploading.url, body.size, str(body.version), web=asked)))
    await read(PutAnswer, connection.read_exactly)
    await connection.write(b"x" * 1000)
    await connection.acknowledged(connection.written_bytes)
    connection.abort("gone")
    putting.close()
    await until(lambda: uploading.store.all()[0][1].bringer is None)


async def test_who_does_not_come_back_is_forgotten(uploading):
    await leave_behind(uploading)
    await uploading.store.tidy(time.time() + 90)
    assert len(disk(uploading)) == 3
    await uploading.store.tidy(time.time() + 110)
    assert disk(uploading) == []


async def test_a_clock_that_is_set_ahead_forgets_no_upload(uploading, monkeypatch):
    """With a lying time server, any upload removed all that waited for their clients."""
    await leave_behind(uploading)
    now_s = time.time
    monkeypatch.setattr(time, "time", lambda: now_s() + 400 * 86_400)
    uploading.origin.answers = [CREATED]
    await uploading.put(uploading.file(b"w" * 5000, "another"))
    assert len(uploading.store.all()) == 2


async def announced(store, client, name, size):
    """Return an upload of which no byte came."""
    record = UploadRecord(name * 32, "http://a/", [], size, "v", 60.0, time.time())
    return await store.create(client * 32, record)


async def bring(store, client, upload, count):
    """Bring the next bytes of an upload, as a session does."""
    with closing(Partial(upload.path, "v")) as part:
        part.begin(part.have, "v", upload.record.size)
        await store.grow(client * 32, upload, part, bytes(count))


@pytest.fixture
def store(tmp_path):
    made = UploadStore(tmp_path / "uploads", 1_000_000)
    made.open()
    yield made
    made.close()


async def test_what_a_client_announces_takes_no_room_from_others(store):
    """Two clients that brought no byte kept out all others for 31 days."""
    for client in "01":
        await announced(store, client, client, 480_000)
        with pytest.raises(TransferError, match="no room"):
            await announced(store, client, "9", 480_000)
    third = await announced(store, "2", "2", 480_000)
    await bring(store, "2", third, 480_000)
    assert third.have == 480_000


@pytest.mark.timeout(20)
async def test_a_request_in_the_moment_of_a_write_waits_for_it(store):
    """Ask for an upload before the writer's task has begun: the gateway did nothing else for good."""
    upload = await announced(store, "1", "1", 1_000)
    _, found = await asyncio.gather(store.keep("1" * 32, upload), store.settled("1" * 32, "1" * 32))
    assert found is upload
    assert not found.writes


async def test_what_clients_brought_leaves_room_to_one_more(store):
    """Two that brought half of their uploads, and went, kept out all others for 31 days."""
    uploads = {client: await announced(store, client, client, 480_000) for client in "012"}
    await bring(store, "0", uploads["0"], 470_000)
    for client, count in (("1", 250_000), ("2", 120_000)):
        await bring(store, client, uploads[client], count)
        with pytest.raises(TransferError, match="no room"):
            await bring(store, client, uploads[client], 20_000)
        assert uploads[client].have == count
    with pytest.raises(TransferError, match="no room"):
        await announced(store, "3", "3", 100_000)
    await bring(store, "3", await announced(store, "3", "4", 40_000), 40_000)


async def test_what_was_removed_meanwhile_counts_no_more(store):
    """What asked its origin about an object that a PUT had made invalid counted it again, for a week."""
    upload = await announced(store, "0", "0", 100_000)
    store.remove("0" * 32, upload)
    newer = await announced(store, "0", "0", 200_000)
    with pytest.raises(TransferError, match="removed it meanwhile"):
        await store.counted("0" * 32, upload)
    store.remove("0" * 32, upload)
    assert store.all() == [("0" * 32, newer)]
    store.remove("0" * 32, newer)
    assert (store._total.disk, store._total.memory, store._total.coming) == (0, 0, 0)


async def test_what_came_counts_after_a_restart_too(store, tmp_path):
    for client, count in (("0", 470_000), ("1", 240_000)):
        await bring(store, client, await announced(store, client, client, count), count)
    store.close()
    again = UploadStore(tmp_path / "uploads", 1_000_000)
    again.open()
    with pytest.raises(TransferError, match="no room"):
        await announced(again, "2", "2", 140_000)
    again.close()


async def test_only_bytes_that_come_push_others_out(store):
    """Announce an upload: that removed bodies of others that waited for a repetition."""
    for client in "01":
        waiting = await announced(store, client, client, 480_000)
        waiting.path.write_bytes(bytes(480_000))
        waiting.record.state = UploadState.ANSWERED
        store.account(client * 32, waiting)
    third = await announced(store, "2", "2", 480_000)
    assert len(list(store._folder.glob("*/????????????????????????????????"))) == 2
    await bring(store, "2", third, 100_000)
    assert not (store._folder / ("0" * 32) / ("0" * 32)).exists()


async def test_the_disk_is_looked_at_when_bytes_come(store, monkeypatch):
    """Uploads that began together, or what others wrote meanwhile, filled the disk."""
    usage = SimpleNamespace(free=client_store._KEEP_FREE + 800_000)
    monkeypatch.setattr(client_store, "disk_usage", lambda _folder: usage)
    upload = await announced(store, "0", "0", 300_000)
    await bring(store, "0", upload, 100_000)
    usage.free = client_store._KEEP_FREE + 50_000
    with pytest.raises(TransferError, match="no room"):
        await bring(store, "0", upload, 100_000)
    assert upload.have == 100_000


async def test_a_disk_that_lets_no_body_go_refuses_in_words(uploading, monkeypatch):
    """Make room on a disk that is read-only now: the error ended the session of the new upload."""
    uploading.store.open()
    uploading.store._most = Cost(1_000_000, 1 << 20)
    first, second = (
        UploadRecord(name * 32, "http://a/", [], 400_000, "", 60.0, time.time()) for name in "ab"
    )
    (await uploading.store.create("0" * 32, first)).path.write_bytes(bytes(400_000))
    first.state = UploadState.ANSWERED

    def refuse(_path, **_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(TransferError, match="cannot make room: Read-only"):
        await uploading.store.create("0" * 32, second)


async def test_there_are_limits_for_each_and_for_all(uploading):
    uploading.store._most = Cost(1_000_000, 1 << 20)
    with pytest.raises(TransferError, match=r"the gateway says: .*larger than the 500000 bytes"):
        await uploading.put(uploading.file(b"x" * 600_000))
    uploading.origin.waits.clear()
    uploading.origin.answers = [CREATED] * 3
    tasks = [
        asyncio.create_task(
            uploading.put(uploading.file(b"x" * size, f"{size}"), who=KeyPair(os.urandom(32)))
        )
        for size in (200_000, 380_000)
    ]
    await until(lambda: len(uploading.origin.got) == 2)
    with pytest.raises(TransferError, match="no room for it while"):
        await uploading.put(uploading.file(b"x" * 400_000))
    uploading.origin.waits.set()
    await asyncio.gather(*tasks)
    assert (await uploading.put(uploading.file(b"x" * 400_000))).answer.status == 201


async def test_one_clients_uploads_leave_threads_to_others(uploading, monkeypatch):
    """Eight that ended together waited for the disk in all threads of a small host."""
    ending, go_on, finish = [], threading.Event(), Partial.finish

    def slow(self, modified_unix_s):
        ending.append(self)
        go_on.wait(10)
        finish(self, modified_unix_s)

    monkeypatch.setattr(Partial, "finish", slow)
    uploading.origin.answers = [CREATED] * 5
    sent = [
        asyncio.create_task(uploading.put(uploading.file(b"x", f"{number}"))) for number in range(5)
    ]
    try:
        await until(lambda: len(ending) >= 2)
        (threads,) = uploading.store.threads.values()
        await until(lambda: len(threads._waiters or ()) == 3)
        assert len(ending) == 2
    finally:
        go_on.set()
        await asyncio.gather(*sent)
    assert len(ending) == 5


async def test_records_reach_the_disk_in_threads(uploading, monkeypatch):
    """Four waits for the disk an upload kept all others' requests waiting."""
    waited_in = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def noted(number, real=real):
            waited_in.append(threading.current_thread())
            real(number)

        monkeypatch.setattr(os, name, noted)
    uploading.origin.answers = [CREATED]
    assert (await uploading.put(uploading.file(b"x"))).answer.status == 201
    # The file that is sent, the body, and four records with their folder.
    await until(lambda: len(waited_in) == 10)
    assert threading.main_thread() not in waited_in
    ((_, upload),) = uploading.store.all()
    assert upload.record.told


async def test_a_part_that_is_of_no_use_is_emptied_in_a_thread(uploading, monkeypatch):
    """A GB of it took as long as its removal."""
    emptied_in, ftruncate = [], os.ftruncate

    def noted(*args):
        emptied_in.append(threading.current_thread())
        ftruncate(*args)

    monkeypatch.setattr(os, "ftruncate", noted)
    monkeypatch.setattr(Partial, "is_right", lambda *_: False)
    with pytest.raises(TransferError, match="differs"):
        await uploading.put(uploading.file(b"x" * 1000))
    ((_, upload),) = uploading.store.all()
    assert upload.have == 0
    assert len(emptied_in) == 2
    assert threading.main_thread() not in emptied_in


async def test_what_is_written_last_is_what_the_record_says_last(uploading, monkeypatch):
    """Hold the first of two writes back: the second one comes after it, and nothing drops it."""
    store = uploading.store
    store.open()
    upload = await store.create("1" * 32, upload_record(1))
    begun, go_on, fdatasync = threading.Event(), threading.Event(), os.fdatasync

    def slow(number):
        first = not begun.is_set()
        begun.set()
        if first:
            go_on.wait(10)
        fdatasync(number)

    monkeypatch.setattr(os, "fdatasync", slow)
    upload.record.state = UploadState.ANSWERED
    first = asyncio.create_task(store.keep("1" * 32, upload))
    await until(begun.is_set)
    upload.record.told = True
    second = asyncio.create_task(store.keep("1" * 32, upload))
    await asyncio.sleep(0.05)
    assert not upload.may_make_room
    await store.tidy(time.time() + 100 * 86_400)
    go_on.set()
    await asyncio.gather(first, second)
    assert b'"told":true' in upload.path.with_suffix(".json").read_bytes()
    assert upload.may_make_room


async def test_another_client_has_nothing_of_it(uploading):
    uploading.origin.answers = [CREATED, CREATED]
    source = uploading.file(b"mine" * 1000)
    await uploading.put(source)
    other = await uploading.put(source, who=KeyPair(os.urandom(32)))
    assert other.progress.began_bytes == 0
    assert len(uploading.origin.got) == 2


async def test_what_was_changed_is_fetched_anew(uploading):
    """A good answer to a PUT makes what is kept of that URL stale (RFC 9111, 4.4)."""
    uploading.origin.answers = [CREATED]
    uploading.fetcher.store.open()
    client = client_of(uploading.client.public)
    kept = await uploading.fetcher.store.create(
        client, uploading.url, "v", {}, {"etag": ['"a"']}, reusable=True, size=1
    )
    kept.write(b"x")
    await kept.finish()
    await uploading.fetcher.store.write(client, kept)
    await uploading.put(uploading.file(b"new"))
    assert uploading.fetcher.store.of(client) == []


ODD_ANSWERS = {
    "a reason": b"HTTP/1.1 201 \xe2\x98\x83\r\nContent-Length: 0\r\n\r\n",
    "a reason that is no text": b"HTTP/1.1 201 \xff\xfe\r\nContent-Length: 0\r\n\r\n",
    "a field": b"HTTP/1.1 201 Created\r\nX-Odd: \xe2\x98\x83\xff\r\nContent-Length: 0\r\n\r\n",
    "a place": b"HTTP/1.1 307 Other\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
    "a port": b"HTTP/1.1 308 Other\r\nLocation: http://x:99999999/\r\nContent-Length: 0\r\n\r\n",
    "a long field": b"HTTP/1.1 201 Created\r\nX: %s\r\nContent-Length: 0\r\n\r\n" % (b'"' * 8_000),
    "a status": b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
async def test_an_odd_answer_is_an_answer(uploading, odd):
    uploading.origin.answers = [ODD_ANSWERS[odd]] * 3
    source = uploading.file(b"x" * 1000)
    async with asyncio.timeout(20):
        if b" 201 " in ODD_ANSWERS[odd]:
            assert (await uploading.put(source)).answer.status == 201
        else:
            with suppress(TransferError):
                await uploading.put(source)
    assert len(uploading.origin.got) == 1


async def test_a_failure_at_the_gateway_is_told(uploading, monkeypatch):
    """Whatever fails while the upload is sent, the client hears of it, and the slot is free again."""

    async def fails(*_):
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(uploading.uploads._sender, "send", fails)
    for number in range(10):
        with pytest.raises(TransferError, match="the gateway failed"):
            await uploading.put(uploading.file(b"x" * 1000, f"file{number}"))


@pytest.fixture
async def never_reading():
    """Return the URL of an origin that takes connections and nothing else; it counts them."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.bind(("127.0.0.1", 0))
        one.listen(64)
        yield f"http://127.0.0.1:{one.getsockname()[1]}/in"


async def test_an_origin_that_reads_no_upload_keeps_no_other_one_waiting(uploading, never_reading):
    """Eight of 8 MB held all of a client's slots for good: no time-out counted while a body was sent."""
    waiting = [
        asyncio.create_task(
            uploading.put(uploading.file(bytes(8_000_000), f"file{number}"), url=never_reading)
        )
        for number in range(8)
    ]
    await until(lambda: len(uploading.uploads._sending) == 8)
    uploading.origin.answers = [CREATED]
    assert (await uploading.put(uploading.file(b"good"))).answer.status == 201
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


DRIPS = b"HTTP/1.1 201 Created\r\nContent-Length: 10000\r\n\r\n"


async def test_an_upload_that_an_origin_neither_reads_nor_answers_fails(
    uploading, never_reading, monkeypatch
):
    monkeypatch.setattr(web_uploads, "_ANSWER_S", 0.3)
    with pytest.raises(TransferError, match="no answer in time"):
        await uploading.put(uploading.file(bytes(8_000_000)), url=never_reading)

    async def drips(reader, writer):
        with suppress(ConnectionError), closing(writer):
            writer.write(DRIPS)
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.05)

    async with await asyncio.start_server(drips, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/in"
        answer = (await uploading.put(uploading.file(b"x", "other"), url=url)).answer
    assert (answer.status, answer.shortened) == (201, True)


async def test_answers_of_one_clients_servers_leave_room_for_the_uploads_of_others(uploading):
    """They were not counted before others came: 1,000 of 24 KiB shut all clients out for a week."""
    store = uploading.store
    store.open()
    store._most = Cost(1 << 30, 600_000)
    one, other = "1" * 32, "2" * 32
    long = WebAnswer(200, "OK", [("x", "y" * 8_000)], bytes(24_000), at_unix_s=time.time())
    for each in [await store.create(one, upload_record(number)) for number in range(20)]:
        await uploading.uploads._is_answered(one, each, long)
    assert store._accounts[one].memory <= 300_000
    assert [each.record.answer.status for each in store.of(one)] == [200] * 20
    assert store.of(one)[0].record.answer.body == bytes(24_000)
    assert store.of(one)[-1].record.answer.body == b""
    assert store.of(one)[-1].record.answer.shortened
    assert await store.create(other, upload_record(99))


def upload_record(number):
    return UploadRecord(f"{number:032x}", "http://192.0.2.1/", [], 1, "v", 60.0, time.time())


async def test_two_clients_may_choose_one_id(uploading):
    """The second one's took what the first one's cost off the accounts: no limit held."""
    store = uploading.store
    store.open()
    for client in "12":
        record = UploadRecord("a" * 32, "http://a/", [], 480_000, "v", 60.0, time.time())
        await store.create(client * 32, record)
    assert store._accounts["1" * 32].disk == store._accounts["2" * 32].disk > 480_000


async def test_a_crash_before_the_answer_is_noted_loses_no_upload(uploading, monkeypatch):
    """The next process told the client that the gateway had lost what the origin had."""
    uploading.origin.answers = [CREATED] * 2
    source, folder, keep = uploading.file(b"photo"), uploading.folder / "uploads", UploadStore.keep

    async def copied(self, client, upload):
        if upload.record.state is UploadState.ANSWERED and not upload.record.told:
            shutil.copytree(folder, uploading.folder / "crashed", dirs_exist_ok=True)
        await keep(self, client, upload)

    monkeypatch.setattr(UploadStore, "keep", copied)
    assert (await uploading.put(source)).answer.status == 201
    await uploading.stop()
    shutil.rmtree(folder)
    (uploading.folder / "crashed").rename(folder)
    uploading.running = uploading.start_gateway()
    await asyncio.sleep(0.05)
    assert (await uploading.put(source)).answer.status == 201
    assert [body for _, body in uploading.origin.got] == [b"photo"] * 2, "a PUT is idempotent"
    # The record was noted, and the body not removed yet.
    ((_, found),) = uploading.store.all()
    found.path.write_bytes(b"photo")
    await uploading.begin_anew()
    assert not found.path.exists()


async def test_killed_clients_leave_their_places_to_others(uploading, monkeypatch):
    """Their sessions wait for them, a day long."""
    monkeypatch.setattr(web_uploads, "_AT_ONCE", 2)
    left = []

    async def begin():
        putting, link = uploading.putting(uploading.file(os.urandom(100_000)))
        left.append(connection := await link._connect())
        body, asked = putting._body, putting._web
        await connection.write(
            pack(PutRequest(uploading.url, body.size, str(body.version), web=asked)) + b"x" * 1000
        )
        putting.close()
        return connection, await read(PutAnswer, connection.read_exactly)

    for _ in range(4):
        connection, answer = await begin()
        assert not answer.refused
        await connection.acknowledged(connection.written_bytes)
        connection.flow.dialler.close()
        for path in list(connection.flow.paths.values()):
            path.close("killed", reset=True)
        await asyncio.sleep(0.1)
    assert sum(each.bringer is not None for _, each in uploading.store.all()) == 2
    for _ in range(3):
        _, answer = await begin()
    assert "at once" in answer.refused, "clients that are there keep their places"
    for each in left:
        each.abort("the test is over")
