"""Both ends of a file transfer over connections in memory that break where a test says."""

import asyncio
import hashlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial as bound
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.waiting import until

from cedos.apps.files import getting, partial, putting, server_link, serving
from cedos.apps.files import tree as tree_module
from cedos.apps.files.getting import MOST_ANEW, Getting
from cedos.apps.files.messages import (
    Answer,
    AnyRequest,
    FileRequest,
    Listing,
    ListRequest,
    PutAnswer,
    PutRequest,
    pack,
    read,
)
from cedos.apps.files.partial import Partial, files_of
from cedos.apps.files.putting import Putting, UploadBody
from cedos.apps.files.server_link import Progress, ServerLink
from cedos.apps.files.serving import (
    THREADS_OF_ADDRESS,
    Serving,
    Uploads,
    client_names,
)
from cedos.apps.files.tree import Tree, Version
from cedos.errors import SessionError, SessionRefusedError, TransferError


async def test_a_server_that_was_given_up_is_not_waited_for_with_each_file():
    """Fail at once with the same words: 200 files waited 30 s each."""
    asked = []

    async def connect():
        asked.append(1)
        raise SessionError("no answer")

    link = ServerLink(connect)
    for _ in range(3):
        with pytest.raises(SessionError, match="no answer"):
            await link.until_done(None, Progress(), 5.0)
    assert len(asked) == 1


TEXT = random.Random(8).randbytes(900_000)


class End:
    """An end of a session in memory; `left` bytes can still be read before it breaks."""

    peer_key = bytes(32)
    acknowledged_bytes = 1 << 35
    resumed = False
    ended = False
    flow = SimpleNamespace(paths={1: "a path"})

    def __init__(self, left=None):
        self.inbox = asyncio.Queue()
        self.other: End
        self.left = left
        self.buffer = b""
        self.over = None
        self.aborted = ""
        self.eof = False
        self.written_bytes = 0

    async def write(self, data):
        if self.over:
            raise self.over
        self.written_bytes += len(data)
        self.other.inbox.put_nowait(bytes(data))

    async def write_source(self, fetch, length):
        for offset in range(0, length, 50_000):
            await self.write(fetch(offset, min(50_000, length - offset)))

    def sent_by_network(self):
        return {"a network": self.written_bytes}

    def received_by_network(self):
        return {"a network": self.other.written_bytes}

    def finish(self):
        self.other.inbox.put_nowait(None)

    async def wait_connected(self): ...

    async def read(self, most=1 << 18):
        while not self.buffer and not self.eof:
            if self.over:
                raise self.over
            part = await self.inbox.get()
            if part is None and self.over:
                raise self.over
            self.eof = part is None
            self.buffer += part or b""
        data, self.buffer = self.buffer[:most], self.buffer[most:]
        if self.left is not None:
            if len(data) > self.left:
                self.broken("the server no longer knows this session")
                data = data[: self.left]
                if not data:
                    raise self.over or AssertionError
            self.left -= len(data)
        return data

    async def first_byte(self):
        return await self.read(1)

    async def read_exactly(self, size):
        data = b""
        while len(data) < size:
            part = await self.read(size - len(data))
            if not part:
                raise SessionError("the stream ended")
            data += part
        return data

    def broken(self, why):
        for end in (self, self.other):
            end.over = SessionError(why)
            end.inbox.put_nowait(None)

    async def close(self):
        if self.over:
            raise self.over

    def abort(self, why):
        self.aborted = why
        if not self.over:
            self.broken(why)

    def paths(self):
        return []


class PlacedEnd(End):
    """A session from an address, with a key of its own."""

    def __init__(self, address):
        super().__init__()
        self.peer_key, self._address = os.urandom(32), address

    def paths(self):
        return [SimpleNamespace(peer=self._address)]


def joined(client=None, server=None):
    """Return both ends of a session."""
    client, server = client or End(), server or End()
    client.other, server.other = server, client
    return client, server


class FileServer:
    """A server of a tree, to sessions in memory."""

    def __init__(self, tree, *, uploads=True):
        taken = Uploads(tree, 0) if uploads else None
        self._come = asyncio.Queue()
        self.serving = Serving(tree, self, {}, taken)

    async def accept(self):
        return await self._come.get()

    async def close(self): ...

    async def __aenter__(self):
        self._running = asyncio.create_task(self.serving.run())
        return self

    async def __aexit__(self, *_):
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self.serving.close()

    def session(self, client=None, server=None):
        """Begin one between these ends; return the client's."""
        client, server = joined(client, server)
        self._come.put_nowait(server)
        return client

    def ask(self, address, *requests, end=PlacedEnd):
        """Return the client of a new session that has asked this."""
        client = self.session(server=end(address))
        client.other.inbox.put_nowait(b"".join(map(pack, requests)))
        return client


class World:
    """A served folder, and connections that break after so many bytes each."""

    def __init__(self, root, breaks):
        self.breaks = list(breaks)
        self.before = []
        self.root = root
        self.served = self.told_bytes = 0
        self.server_ends = []

    async def fetch(self, target, path="file", patience_s=60.0, *, ask_first=False):
        server = FileServer(Tree(self.root), uploads=False)

        async def connect():
            if self.before:
                self.before.pop(0)()
            left = self.breaks.pop(0) if self.breaks else None
            if left == -1:
                raise SessionError("no connection")
            client = server.session(End(left))
            self.server_ends.append(client.other)
            return client

        partial = Partial(target, "s")
        link = ServerLink(connect)
        one = Getting(path, partial, link, patience_s)
        async with server:
            try:
                if ask_first:
                    await one.ask()
                    self.told_bytes = sum(end.written_bytes for end in self.server_ends)
                await one.run()
            finally:
                await link.close()
                await asyncio.sleep(0.01)  # the server hears of it
                partial.close()
        self.served = server.serving.served
        return one


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(server_link, "_PAUSES_S", (0.0,))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "file").write_bytes(TEXT)
    return tmp_path / "served"


def test_an_empty_file(root, tmp_path):
    (root / "file").write_bytes(b"")
    asyncio.run(World(root, []).fetch(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == b""


def test_what_can_wait_costs_only_the_answer_before_its_turn(root, tmp_path):
    world = World(root, [300_000])
    one = asyncio.run(world.fetch(tmp_path / "got", ask_first=True))
    assert (tmp_path / "got").read_bytes() == TEXT
    assert 0 < world.told_bytes < 400
    assert len(world.server_ends) == 2, "the first one broke in the file that it had told of"
    assert one.progress.sessions == 3
    assert world.served == 1, "who asked has nothing yet"


def test_what_changed_since_it_was_asked_for_comes_as_it_is(root, tmp_path):
    files_of(tmp_path / "got")[0].write_bytes(b"old")
    world = World(root, [])
    world.before = [lambda: (root / "file").write_bytes(TEXT[:1000])]
    one = asyncio.run(world.fetch(tmp_path / "got", ask_first=True))
    assert (tmp_path / "got").read_bytes() == TEXT[:1000]
    assert one.progress.size_bytes == 1000


@settings(max_examples=25)
@given(breaks=st.lists(st.one_of(st.just(-1), st.integers(1_000, 400_000)), max_size=6))
def test_sessions_that_end_anywhere(tmp_path_factory, breaks):
    folder = tmp_path_factory.mktemp("transfer")
    (folder / "file").write_bytes(TEXT)
    # The first must succeed to connect: a wrong name is not tried for ever.
    world = World(folder, [400_000, *breaks])
    one = asyncio.run(world.fetch(folder / "got"))
    assert (folder / "got").read_bytes() == TEXT
    assert one.progress.have_bytes == len(TEXT)
    assert one.progress.sessions <= 2 + len(breaks)


def test_a_program_that_was_killed_goes_on(root, tmp_path):
    world = World(root, [300_000, -1])

    def killed():
        raise KeyboardInterrupt

    world.before = [lambda: None, killed]
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(world.fetch(tmp_path / "got"))
    kept = files_of(tmp_path / "got")[0].stat().st_size
    assert 200_000 < kept <= 300_000
    one = asyncio.run(World(root, []).fetch(tmp_path / "got"))
    assert one.progress.began_bytes == kept
    assert (tmp_path / "got").read_bytes() == TEXT


def test_a_file_that_changed_meanwhile_comes_anew(root, tmp_path):
    world = World(root, [300_000])
    world.before = [lambda: None, lambda: (root / "file").write_bytes(TEXT[::-1])]
    one = asyncio.run(world.fetch(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == TEXT[::-1]
    assert one.progress.sessions == 2


def test_a_server_cannot_begin_anew_without_end(root, tmp_path):
    """575 MB of a file of 10 MB came in a minute, over any network: each time it broke off elsewhere."""
    world = World(root, [300_000 + 1_000 * number for number in range(40)])
    texts = [TEXT[number:] + TEXT[:number] for number in range(40)]
    world.before = [bound((root / "file").write_bytes, each) for each in texts]
    with pytest.raises(TransferError, match=f"anew {MOST_ANEW} times"):
        asyncio.run(world.fetch(tmp_path / "got"))
    assert len(world.server_ends) == MOST_ANEW + 2
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("acknowledges", [1 << 40, 0, 1])
def test_a_server_cannot_have_a_file_sent_without_end(root, monkeypatch, acknowledges):
    """A server that dropped what it had, with new words each time, got 55 MB of 5 in 40 s.

    One that acknowledged a byte more in each session got 800 MB.
    """
    monkeypatch.setattr(End, "acknowledged_bytes", acknowledges)
    monkeypatch.setattr(putting, "_SPARE_BYTES", 0)
    ends = []

    async def take(end):
        request = await read(AnyRequest, end.read_exactly)
        await end.write(pack(PutAnswer(0)))
        with suppress(SessionError):
            await end.read_exactly(request.size)
        end.abort(f"the disk has failed for the {len(ends)}th time")

    async def put():
        async def connect():
            client, server = joined()
            ends.append((server, asyncio.create_task(take(server))))
            return client

        one = Putting(UploadBody(root / "file"), "file", ServerLink(connect), 60.0)
        try:
            await one.run()
        finally:
            one.close()

    with pytest.raises(TransferError, match=f"sent {MOST_ANEW} times"):
        asyncio.run(asyncio.wait_for(put(), 30.0))
    assert len(ends) == MOST_ANEW + 3


async def test_a_session_cannot_have_a_file_sent_without_end(root):
    """An attacker on the way held back what the server said, and reset: 710 MB of 5 were sent in 30 s."""
    client, server = joined()

    async def connect():
        return client

    await server.write(pack(PutAnswer(0)))
    one = Putting(UploadBody(root / "file"), "file", ServerLink(connect), 60.0)
    running = asyncio.create_task(one.run())
    await until(lambda: client.written_bytes >= len(TEXT), 60.0)
    client.written_bytes += MOST_ANEW * len(TEXT) + putting._SPARE_BYTES
    with pytest.raises(TransferError, match=f"sent {MOST_ANEW} times"):
        await asyncio.wait_for(running, 5.0)
    one.close()


@pytest.mark.parametrize("text", [b"", pack(Answer(len(TEXT))), pack(Answer(10)) + bytes(10)])
async def test_a_server_cannot_send_without_end_what_is_no_file(tmp_path, monkeypatch, text):
    """Padded Pings within a session came without end: 179 MB in 8 s for a file of 10 MB."""
    monkeypatch.setattr(getting, "_LOOK_S", 0.01)
    client, server = joined()

    async def connect():
        return client

    partial = Partial(tmp_path / "got", "s")
    one = Getting("file", partial, ServerLink(connect), 60.0)
    running = asyncio.create_task(one.run())
    await server.write(text)
    await asyncio.sleep(0.1)
    assert not running.done()
    server.written_bytes += (2 + MOST_ANEW) * len(TEXT) + getting._SPARE_BYTES
    with pytest.raises(TransferError, match=f"{MOST_ANEW} times the file came"):
        await asyncio.wait_for(running, 5.0)
    partial.close()
    assert not (tmp_path / "got").exists()


async def test_a_file_is_open_until_the_server_has_it_whatever_that_says(root):
    """The session read on by a closed file's number: bytes of the next file took its place."""
    client, server = joined()
    client.acknowledged_bytes = 0

    async def wait_acknowledged(up_to_bytes):
        await until(lambda: client.acknowledged_bytes >= up_to_bytes, 60.0)

    async def connect():
        return client

    client.wait_acknowledged = wait_acknowledged
    await server.write(pack(PutAnswer(0)) + pack(PutAnswer(len(TEXT))))
    putting = Putting(UploadBody(root / "file"), "file", ServerLink(connect), 60.0)
    running = asyncio.create_task(putting.run())
    await until(lambda: client.written_bytes >= len(TEXT), 60.0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    client.acknowledged_bytes = 1 << 35  # the digest may come later than this
    await running
    putting.close()


def test_what_is_wrong_here_is_fetched_once_more(root, tmp_path):
    world = World(root, [300_000])

    def damage():
        part = files_of(tmp_path / "got")[0]
        with part.open("r+b") as file:
            file.write(b"power cut")

    # Reopened, as after a crash: the digest of what is on the disk is what counts.
    with pytest.raises(SessionError):
        asyncio.run(World(root, [300_000, -1]).fetch(tmp_path / "got", patience_s=0.0))
    damage()
    one = asyncio.run(world.fetch(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == TEXT
    assert one.progress.sessions >= 2


def test_a_file_that_is_wrong_twice_is_given_up(root, tmp_path, monkeypatch):
    async def lie(self, hashing, version, wanted):
        return hashlib.sha256(b"another").digest()

    monkeypatch.setattr(Tree, "digest", lie)
    with pytest.raises(TransferError, match="twice"):
        asyncio.run(World(root, []).fetch(tmp_path / "got"))
    assert not (tmp_path / "got").exists()


def test_a_file_that_shrinks_while_it_is_sent(root, tmp_path):
    world = World(root, [])
    read = os.pread
    shrunk = []

    def pread(number, count, offset):
        if offset >= 200_000 and not shrunk and count == 50_000:
            shrunk.append((root / "file").write_bytes(TEXT[:100_000]))
        return read(number, count, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cedos.apps.files.tree.os.pread", pread)
        asyncio.run(world.fetch(tmp_path / "got"))
    assert shrunk
    assert (tmp_path / "got").read_bytes() == TEXT[:100_000]


@pytest.mark.parametrize("change", ["grows", "is replaced", "is removed"])
def test_a_file_that_changes_while_it_is_sent(root, tmp_path, change):
    """The server sends the file that it opened, as it was."""
    read = os.pread
    changed = []

    def pread(number, count, offset):
        if offset >= 200_000 and not changed and count == 50_000:
            changed.append(change)
            if change == "grows":
                with (root / "file").open("ab") as log:
                    log.write(b"more")
            elif change == "is replaced":
                (root / "new").write_bytes(b"new")
                (root / "new").replace(root / "file")
            else:
                (root / "file").unlink()
        return read(number, count, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cedos.apps.files.tree.os.pread", pread)
        asyncio.run(World(root, []).fetch(tmp_path / "got"))
    assert changed
    assert (tmp_path / "got").read_bytes() == TEXT


def test_no_server_in_the_beginning_and_none_for_too_long(root, tmp_path):
    with pytest.raises(SessionError, match="no connection"):
        asyncio.run(World(root, [-1]).fetch(tmp_path / "got"))
    assert list(tmp_path.iterdir()) == [root]
    with pytest.raises(SessionError, match="no longer knows"):
        asyncio.run(World(root, [1000, *([-1] * 9)]).fetch(tmp_path / "got", patience_s=0.0))
    assert files_of(tmp_path / "got")[0].exists()


def test_the_same_answer_three_times_is_enough(root, tmp_path):
    world = World(root, [50, 50, -1, 50, 50])
    with pytest.raises(TransferError, match="no longer knows this session; the same 3 times"):
        asyncio.run(world.fetch(tmp_path / "got", patience_s=60.0))
    assert world.breaks == [50], "a server that is away has answered nothing"


def test_a_refusal_is_final(root, tmp_path):
    tries = []

    async def connect():
        tries.append(1)
        raise SessionRefusedError("another key")

    partial = Partial(tmp_path / "got", "s")
    with pytest.raises(SessionRefusedError):
        asyncio.run(Getting("file", partial, ServerLink(connect), 60.0).run())
    partial.close()
    assert len(tries) == 1


@pytest.mark.parametrize(
    "answer",
    [
        Answer(10, 11, "v"),
        Answer(10, 5, "v"),
        Answer(2**61, 2**61, "v"),
        Answer(10, 0, "v", 1e300),
        Answer(10, 0, "v", -1e18),
    ],
)
async def test_a_server_that_answers_absurdly(tmp_path, answer):
    async def connect():
        client, server = joined()
        await server.write(pack(answer))
        server.finish()
        return client

    partial = Partial(tmp_path / "got", "s")
    with pytest.raises(TransferError, match=r"from byte|invalid answer: .*modified"):
        await Getting("file", partial, ServerLink(connect), 60.0).run()
    partial.close()


def test_one_key_is_one_client():
    assert client_names({"a": bytes(32)}) == {bytes(32): "a"}
    with pytest.raises(TransferError, match="a and b have one key"):
        client_names({"a": bytes(32), "b": bytes(32)})


class SlowTree(Tree):
    """A tree whose folder `large` takes until `go_on` to be listed."""

    def __init__(self, root):
        super().__init__(root)
        self.go_on = threading.Event()

    def pieces(self, path):
        if path == "large":
            self.go_on.wait(10)
        yield from super().pieces("")


@pytest.mark.parametrize("request_of", [ListRequest, lambda path: PutRequest(path, 1, "v")])
async def test_one_address_leaves_threads_to_others(root, monkeypatch, request_of):
    """Twenty sessions that had a large folder listed kept others waiting for 4 s of a processor."""
    tree = SlowTree(root)

    def hashed(target, source):
        tree.go_on.wait(10)
        return Partial(target, source)

    monkeypatch.setattr(partial, "Partial", hashed)
    async with FileServer(tree) as server:
        for number in range(100):
            server.ask(f"2001:db8::{number:x}", request_of("large"))
        try:
            await until(lambda: any(each.locked() for each in server.serving._turns.values()))
            other = server.ask("192.0.2.2", ListRequest(""))
            answer = await asyncio.wait_for(read(Listing, other.read_exactly), 5)
            assert answer.size
        finally:
            tree.go_on.set()


@pytest.mark.parametrize("folder", [True, False])
async def test_uploads_of_one_address_leave_threads_to_others(root, monkeypatch, folder):
    """Have folders made and opened in turn: 600 sessions that did so had others wait for 24 s."""
    go_on, made, began = threading.Event(), Uploads._make_folder, []

    def slow(*arguments):
        began.append(arguments)
        go_on.wait(10)
        return made(*arguments)

    monkeypatch.setattr(Uploads, "_make_folder", slow)
    tree = Tree(root)
    async with FileServer(tree) as server:
        for number in range(100):
            request = PutRequest(f"new {number}/file", 0 if folder else 1, "v", folder=folder)
            server.ask(f"2001:db8::{number:x}", request)
        try:
            await until(lambda: len(began) > 1)
            other = server.ask("192.0.2.2", ListRequest(""))
            answer = await asyncio.wait_for(read(Listing, other.read_exactly), 5)
            assert answer.size
        finally:
            go_on.set()


async def test_who_waits_for_an_earlier_session_takes_no_place(root):
    """Uploads whose parts were in use had all places of their address for 5 s, and did nothing."""
    held = [Partial(root / f"new{number}", "s") for number in range(THREADS_OF_ADDRESS)]
    async with FileServer(Tree(root)) as server:
        for number in range(THREADS_OF_ADDRESS):
            server.ask("192.0.2.1", PutRequest(f"new{number}", 1, "v"))
        try:
            await until(lambda: len(server.serving._uploads._running) == THREADS_OF_ADDRESS)
            other = server.ask("192.0.2.1", ListRequest(""))
            answer = await asyncio.wait_for(read(Listing, other.read_exactly), 2)
            assert answer.size
        finally:
            for each in held:
                each.close()


async def test_a_large_file_is_hashed_beside_others_work(root):
    """Three addresses had all threads hash large files: a list was not answered in 40 s."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    with (root / "large").open("wb") as large:
        large.truncate(1 << 35)
    version = str(Version.of((root / "large").stat()))
    async with FileServer(Tree(root)) as server:
        hashed = server.ask("192.0.2.1", FileRequest("large", 1 << 35, version))
        hashed.other.flow = SimpleNamespace(paths={1: None})
        try:
            assert (await read(Answer, hashed.read_exactly)).start == 1 << 35
            (turns,) = server.serving._turns.values()
            await until(lambda: turns._value < THREADS_OF_ADDRESS)
            other = server.ask("192.0.2.2", ListRequest(""))
            answer = await asyncio.wait_for(read(Listing, other.read_exactly), 5)
            assert answer.size
        finally:
            hashed.other.flow.paths.clear()


async def test_files_that_wait_for_the_disk_leave_threads_to_others(root, monkeypatch):
    """Uploads that end together waited in all threads for a slow disk, and others for them."""
    go_on, ending = threading.Event(), []

    def finish(self, _modified_unix_s):
        ending.append(self)
        go_on.wait(10)

    monkeypatch.setattr(Partial, "finish", finish)
    async with FileServer(Tree(root)) as server:
        for number in range(60):
            client = server.ask("192.0.2.1", PutRequest(f"new{number}", 1, "v"))
            await client.write(b"x" + hashlib.sha256(b"x").digest())
        try:
            await until(lambda: server.serving._turns)
            (turns,) = server.serving._turns.values()
            await until(
                lambda: len(turns._waiters or ()) == 60 - THREADS_OF_ADDRESS and len(ending) > 1
            )
            assert len(ending) == THREADS_OF_ADDRESS
        finally:
            go_on.set()


async def test_a_part_that_is_of_no_use_is_emptied_in_a_thread(root, monkeypatch):
    """A GB of it kept all others waiting for 0.3 s."""
    emptied_in, ftruncate = [], os.ftruncate

    def noted(*args):
        emptied_in.append(threading.current_thread())
        ftruncate(*args)

    monkeypatch.setattr(os, "ftruncate", noted)
    async with FileServer(Tree(root)) as server:
        client = server.ask("192.0.2.1", PutRequest("new", 1, "v"))
        await client.write(b"x" + hashlib.sha256(b"y").digest())
        assert (await read(PutAnswer, client.read_exactly)).start == 0
        await until(lambda: len(emptied_in) == 2)
        assert threading.main_thread() not in emptied_in


async def test_requests_that_wait_leave_the_event_loop_to_others(root, monkeypatch):
    """Send 33,000 a second without waiting for answers: others waited for 3.7 s."""
    most_at_once = begun = seen = 0
    open_file = Tree.open

    def opened(tree, path):
        nonlocal begun
        begun += 1
        return open_file(tree, path)

    monkeypatch.setattr(Tree, "open", opened)
    async with FileServer(Tree(root)) as server:
        for _ in range(20):
            server.ask("192.0.2.1", *(100 * [FileRequest("missing")]))
        while begun < 2_000:
            await asyncio.sleep(0)
            most_at_once, seen = max(most_at_once, begun - seen), begun
        assert most_at_once == 1


async def test_no_file_is_hashed_for_a_client_that_is_away(root, monkeypatch):
    """Ask for a large file and leave: the server hashed all of it."""
    left, back, go_on, asked = asyncio.Event(), asyncio.Event(), threading.Event(), 0

    class Leaving(PlacedEnd):
        def __init__(self, address):
            super().__init__(address)
            self.flow = SimpleNamespace(paths={1: "a path"})

        async def wait_connected(self):
            assert not self.flow.paths
            left.set()
            await back.wait()
            self.flow.paths[1] = "a path"

    def slow(number, views, offset):
        nonlocal asked
        asked += 1
        go_on.wait(10)
        return os.preadv(number, views, offset)

    (root / "large").write_bytes(bytes(20 << 20))
    digest = hashlib.sha256(bytes(20 << 20)).digest()
    monkeypatch.setattr(tree_module, "os", SimpleNamespace(**{**vars(os), "preadv": slow}))
    async with FileServer(Tree(root)) as server:
        client = server.ask("192.0.2.1", FileRequest("large"), end=Leaving)
        answer = await asyncio.wait_for(read(Answer, client.read_exactly), 5)
        await client.read_exactly(answer.size)
        await until(lambda: asked)
        client.other.flow.paths.clear()
        go_on.set()
        await asyncio.wait_for(left.wait(), 5)  # nothing is hashed until it is back
        assert asked == 1
        back.set()
        assert await asyncio.wait_for(client.read_exactly(32), 5) == digest
        assert asked == 20


async def test_a_refusal_may_name_what_is_no_text(root):
    """Send another file under a name that is not UTF-8: the server failed at the words of its refusal."""
    (root / os.fsdecode(b"\xff")).write_bytes(b"here")
    async with FileServer(Tree(root)) as server:
        client = server.ask("192.0.2.1", PutRequest("\0ff", 1, "v"))
        answer = await asyncio.wait_for(read(PutAnswer, client.read_exactly), 5)
        assert (
            answer.refused
            == "\\udcff is there already; it is not overwritten; another name would be right"
        )


@pytest.mark.jumping
async def test_a_client_that_acknowledges_nothing_costs_no_time(root):
    """Ask for more files than may be open, and acknowledge none: 400 sessions took 17 % of a core."""
    looks = 0

    class Silent(PlacedEnd):
        @property
        def acknowledged_bytes(self):
            nonlocal looks
            looks += 1
            return 0

        async def wait_acknowledged(self, up_to_bytes):
            assert up_to_bytes > 0
            await asyncio.Event().wait()

    async with FileServer(Tree(root)) as server:
        client = server.ask("192.0.2.1", *(20 * [FileRequest("file", head=True)]), end=Silent)
        await asyncio.sleep(60)
        assert client.inbox.qsize() == 8
        assert looks < 50


async def test_lists_that_no_client_takes_are_bounded(root, monkeypatch):
    """Have a large folder listed and read nothing: 400 sessions of a stranger took 2.7 GB."""
    (root / ("long" * 50)).write_bytes(b"")
    monkeypatch.setattr(serving, "MOST_LISTED_BYTES", 2_000)

    class Unread(PlacedEnd):
        async def write(self, data):
            await super().write(data)
            while not self.over:
                await asyncio.sleep(0.01)
            raise self.over

    async with FileServer(Tree(root)) as server:
        addresses = ["192.0.2.2", *(39 * ["192.0.2.1"])]
        ends = [server.ask(each, ListRequest(""), end=Unread).other for each in addresses]
        await until(lambda: sum(bool(each.aborted) for each in ends) > 25)
        assert not ends[0].aborted
        assert not ends[-1].aborted


def test_a_file_that_changes_while_it_is_sent_and_hashed_is_no_mix(root, tmp_path, monkeypatch):
    """Half of one version and half of the next came out as whole: both readers had met the change."""
    half, new = len(TEXT) // 2, TEXT[::-1]
    monkeypatch.setattr(tree_module, "HASHED_AT_ONCE", half)
    monkeypatch.setattr(tree_module, "_READ_AT_ONCE", half)
    go_on, pieces = tree_module.FileHash.go_on, []

    def hashed(hashing, wanted):
        digest = go_on(hashing, wanted)
        pieces.append(digest)
        if len(pieces) == 1:
            (root / "file").write_bytes(new)
        return digest

    monkeypatch.setattr(tree_module.FileHash, "go_on", hashed)

    async def lazily(end, fetch, length):
        """Read the second half only once the digest is there, as a slow session does."""
        await end.write(fetch(0, half))
        write = end.write

        async def both(data):
            end.write = write
            await write(fetch(half, length - half))
            await write(data)

        end.write = both

    monkeypatch.setattr(End, "write_source", lazily)
    asyncio.run(World(root, []).fetch(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == new
