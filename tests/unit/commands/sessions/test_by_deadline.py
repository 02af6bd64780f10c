"""Files that can wait: one session with their server for all of them, in the process's own table."""

import asyncio
import os
import time
from datetime import datetime
from types import SimpleNamespace

import pytest
from kit.waiting import until

from cedos import session
from cedos.api.transfers import TurnMessage
from cedos.apps.files.server_link import Progress
from cedos.apps.files.serving import Serving
from cedos.apps.files.tree import Tree
from cedos.commands.console import by_deadline, waiting_files
from cedos.commands.console.by_deadline import FilesByDeadline, SessionPool
from cedos.commands.console.servers import SOURCE, Source
from cedos.commands.console.transfers import Endpoints, too_late
from cedos.errors import SessionError, TransferError
from cedos.session.known_hosts import KnownServer
from cedos.session.protocol.crypto import KeyPair


class Counting:
    """A listener that keeps whom it let in."""

    def __init__(self, listener):
        self._listener = listener
        self.sessions = []

    async def accept(self):
        self.sessions.append(await self._listener.accept())
        return self.sessions[-1]

    async def close(self):
        await self._listener.close()


def source(text):
    found = SOURCE.convert(text, None, None)
    assert isinstance(found, Source)
    return found


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    for name in ("CEDOS_RUNTIME_DIR", "CEDOS_STATE_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


async def test_they_share_one_session_and_one_that_is_not_there_harms_nobody(tmp_path):
    served, here = tmp_path / "served", tmp_path / "here"
    served.mkdir()
    here.mkdir()
    files = {f"{number}.bin": os.urandom(50_000 * (number + 1)) for number in range(8)}
    for name, content in files.items():
        (served / name).write_bytes(content)
    done = []
    failed = []
    done_s = []
    after_s = []

    def ends(fact):
        done.append(fact)
        done_s.append(time.monotonic())

    def fails(name, target, error):
        failed.append(f"{target.name}: {error}")

    key = KeyPair(os.urandom(32))
    listener = await session.listen(("127.0.0.1", 0), key=key)
    counting = Counting(listener)
    serving = Serving(Tree(served), counting, {})
    running = asyncio.create_task(serving.run())
    server = KnownServer("127.0.0.1", listener.address[1], key.public)
    both = Endpoints(KeyPair(os.urandom(32)), server, None, None, (), 10.0, 60.0)
    later = FilesByDeadline(time.time() + 300.0, True, ends, fails)
    for name in ("absent.bin", *files):
        later.add(waiting_files.download(source(f"there/{name}"), here / name, both), both)
    async with asyncio.timeout(40.0):
        await later.run()
    after_s.append(time.monotonic() - done_s[-1])
    await until(lambda: all(each.ended for each in counting.sessions), 1.0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await serving.close()
    sessions = counting.sessions
    assert {name: (here / name).read_bytes() for name in files} == files
    assert len(failed) == 1
    assert failed[0].startswith("absent.bin: the server says:")
    # (What a server refuses ends the session, as what follows would be of no use.)
    assert len(sessions) == 2
    assert all(fact["in_time"] and fact["sessions"] == 1 for fact in done)
    carried = sum(sum(fact["received_bytes"].values()) for fact in done)
    assert sum(map(len, files.values())) < carried < 1.1 * sum(map(len, files.values()))
    assert not list(here.glob("*.part*"))
    assert after_s[0] < 1.0  # the goodbye has a way


async def test_a_server_that_is_not_there_is_waited_for_once(tmp_path):
    """Not once a file, one after the other."""
    failed = []

    def fails(name, target, error):
        failed.append(f"{target.name}: {error}")

    server = KnownServer("127.0.0.1", 1, KeyPair(os.urandom(32)).public)
    ends = Endpoints(KeyPair(os.urandom(32)), server, None, None, (), 0.4, 60.0)
    later = FilesByDeadline(time.time() + 300.0, True, lambda _: None, fails)
    for number in range(20):
        later.add(
            waiting_files.download(source(f"there/{number}"), tmp_path / str(number), ends), ends
        )
    async with asyncio.timeout(6.0):
        await later.run()
    assert len(failed) == 20
    assert len({text.partition(": ")[2] for text in failed}) == 1
    assert not list(tmp_path.glob("*.part.json"))


def test_who_is_here_already_waits_for_nothing(tmp_path, monkeypatch):
    """It may have come while no daemon was there: the same command, given again, has it forgotten."""
    forgotten = []
    monkeypatch.setattr(waiting_files, "forget", lambda _socket, key: forgotten.append(key))
    server = KnownServer("127.0.0.1", 1, KeyPair(os.urandom(32)).public)
    ends = Endpoints(KeyPair(os.urandom(32)), server, None, None, (), 0.4, 60.0)
    later = FilesByDeadline(time.time() + 300.0, True, lambda _: None, lambda *_: None)
    (tmp_path / "song").write_bytes(b"here")
    with pytest.raises(TransferError, match="is there already"):
        later.add(waiting_files.download(source("there/song"), tmp_path / "song", ends), ends)
    assert len(forgotten) == 1


@pytest.mark.jumping
@pytest.mark.parametrize("terminal", [False, True])
async def test_that_it_will_be_late_is_said_once_where_no_line_is_drawn(
    terminal, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    server = KnownServer("127.0.0.1", 1, KeyPair(os.urandom(32)).public)
    both = Endpoints(KeyPair(os.urandom(32)), server, None, None, (), 0.4, 60.0)
    by_unix_s = time.time() + 300.0

    later = FilesByDeadline(by_unix_s, False, lambda _: None, lambda *_: None)
    later.add(waiting_files.download(source("there/film"), tmp_path / "film", both), both)
    (file,) = later._waiting
    line = by_deadline._Line(later._waiting, False)
    drawing = asyncio.create_task(line.run())
    await asyncio.sleep(1.0)
    end_unix_s = by_unix_s + 6.0
    file.following.turn = TurnMessage(networks=("lo",), end_unix_s=end_unix_s, late=True)
    await asyncio.sleep(4.0)  # by what is thought of a network that was never used
    file.progress.have_bytes = 1_000
    file.following.turn = TurnMessage(networks=("lo",), end_unix_s=end_unix_s)
    await asyncio.sleep(4.0)
    file.following.turn = TurnMessage(networks=("lo",), end_unix_s=end_unix_s, late=True)
    await asyncio.sleep(4.0)
    drawing.cancel()
    file.close()
    said = capsys.readouterr().err
    assert said.count("cedos-get: ") == (not terminal)
    if not terminal:
        when, end = (datetime.fromtimestamp(at) for at in (by_unix_s, by_unix_s + 6.0))
        late = f"film: may not be done by {when:%H:%M:%S} (expected {end:%H:%M:%S})"
        assert said.strip().endswith(late)


@pytest.mark.parametrize(
    ("late_s", "said"),
    [
        (0.0, ""),
        (0.04, "; too late by 40 ms"),
        (6.12, "; too late by 6.1 s"),
        (187.0, "; too late by 3 min"),
    ],
)
def test_by_how_much_it_was_too_late(late_s, said):
    assert too_late({"late_s": late_s}) == said
    assert too_late({}) == ""


class Session:
    """A session with a server over two networks; it keeps the paths that it may, and opens no others."""

    def __init__(self, may_use):
        self._may_use = may_use
        self.up = {"wlan0": False, "lte0": True}
        self.open = {name for name in self.up if may_use(name)}
        self.goodbye_over = None
        self.ended = False

    def networks(self):
        return self.up

    def check_networks(self):
        self.open = {name for name in self.up if self._may_use(name)}

    def paths(self):
        return [SimpleNamespace(network=name) for name in sorted(self.open)]

    @property
    def has_network(self):
        return any(self._may_use(name) for name in self.up)

    def received_by_network(self):
        return {}

    sent_by_network = received_by_network

    def finish(self):
        if self.ended:
            raise SessionError("over")

    async def close(self):
        await until(lambda: self.open)
        self.goodbye_over, self.ended = set(self.open), True

    def abort(self, why):
        self.ended = True


class Ends:
    def __init__(self):
        self.sessions = []

    def dialling(self, made, may_use):
        async def dial():
            self.sessions.append(Session(may_use))
            made(self.sessions[-1])
            return self.sessions[-1]

        return dial


class User:
    def __init__(self, *networks):
        self._networks = networks

    def may_use(self, interface):
        return interface in self._networks

    async def mine(self): ...


async def used(pool, *networks):
    async def over(_connection):
        return True

    async with pool.session(User(*networks)) as session:
        await session.link.until_done(over, Progress(), 1.0)


@pytest.mark.parametrize("networks", [("wlan0",), ("lte0",), ("wlan0", "lte0")])
async def test_the_goodbye_goes_over_what_is_in_use(networks):
    ends = Ends()
    pool = SessionPool(ends)
    await used(pool, *networks)
    async with asyncio.timeout(1.0):
        await pool.close()
    assert ends.sessions[0].goodbye_over == set(networks)


@pytest.mark.jumping
async def test_a_session_without_a_user_holds_no_network_for_long():
    ends = Ends()
    pool = SessionPool(ends)
    await used(pool, "wlan0", "lte0")
    (session,) = ends.sessions
    assert session.open == {"wlan0", "lte0"}
    await asyncio.sleep(5.0)
    assert session.open == set()
    async with asyncio.timeout(1.0):
        await pool.close()
    assert session.goodbye_over == {"wlan0"}  # it costs nothing


@pytest.mark.jumping
@pytest.mark.parametrize(("had", "goodbye"), [("lte0", {"lte0"}), ("wlan0", None)])
async def test_a_metered_network_that_was_not_used_is_not_begun_for_a_goodbye(had, goodbye):
    ends = Ends()
    pool = SessionPool(ends)
    await used(pool, had)
    (session,) = ends.sessions
    session.up = {"lte0": True}  # Wi-Fi is gone
    await asyncio.sleep(5.0)
    async with asyncio.timeout(1.0):  # nor is anything waited for
        await pool.close()
    assert session.goodbye_over == goodbye
    assert session.ended
