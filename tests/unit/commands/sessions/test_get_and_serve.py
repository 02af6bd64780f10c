"""`cedos-get` and `cedos-serve` as processes, with real kills of either."""

import asyncio
import hashlib
import json
import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from cedos import session
from cedos.apps.files import messages
from cedos.apps.files.partial import files_of
from cedos.commands.sessions import get, serve
from cedos.errors import SessionError
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair
from tests.unit.commands.sessions.conftest import Programs

SIZE = 40_000_000


class Served(Programs):
    """A served folder with one file, and a client that gets it as `target`."""

    def __init__(self, folder):
        super().__init__(folder)
        self.served = folder / "served"
        self.served.mkdir()
        self.target = folder / "got"
        self.part = files_of(folder / "got")[0]
        text = random.Random(1).randbytes(SIZE)
        (self.served / "file").write_bytes(text)
        self.digest = hashlib.sha256(text).digest()

    def serve(self, *more):
        return self.serving(*more, "served")

    def get(self, *more):
        where = f"127.0.0.1:{self.port}/file"
        return self.start("cedos-get", "--key", self.key, "-o", "got", *more, where)

    def have(self):
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def until(self, n_bytes, process):
        """Waits for so many bytes; False if the file was whole before."""
        ends_s = time.monotonic() + 60
        while time.monotonic() < ends_s:
            if self.target.exists() or process.poll() is not None:
                return False
            if self.have() >= n_bytes:
                return True
            time.sleep(0.0005)
        raise AssertionError(f"{self.have()} of {n_bytes} bytes after a minute")

    def assert_whole(self):
        assert hashlib.sha256(self.target.read_bytes()).digest() == self.digest
        left = sorted(each.name for each in self.folder.iterdir() if each.name.startswith("got"))
        assert left == ["got"]


@pytest.fixture
def programs(tmp_path):
    programs = Served(tmp_path)
    yield programs
    programs.end()


def test_both_ends_are_killed_and_the_file_is_right(programs):
    choose = random.Random(7)
    server = programs.serve()
    client = programs.get()
    kills = {"client": 0, "server": 0}
    for who in ("client", "server", "client", "server", "server", "client"):
        threshold = programs.have() + choose.randint(1, SIZE // 12)
        if not programs.until(threshold, client):
            break
        kills[who] += 1
        if who == "client":
            client.kill()
            client.wait()
            client = programs.get()
        else:
            server.kill()
            server.wait()
            server = programs.serve()
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    programs.assert_whole()
    # On a quick machine the file may be whole before the last ones.
    assert kills["client"] >= 1, kills
    assert kills["server"] >= 1, kills
    assert "from an earlier attempt" in out


def test_ctrl_c_keeps_what_has_come(programs):
    programs.serve()
    client = programs.get()
    if programs.until(1, client):
        client.send_signal(signal.SIGINT)
    _, errors = client.communicate(timeout=60)
    if client.returncode == 0:
        pytest.skip("the file was whole before Ctrl-C")
    assert client.returncode == 130
    assert "the same command goes on" in errors
    assert "Traceback" not in errors
    assert programs.have() > 0
    client = programs.get("--json")
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    (fact,) = json.loads(out)["files"]
    assert fact["here_before_bytes"] > 0
    assert fact["bytes"] == SIZE
    programs.assert_whole()


def test_the_server_ends_cleanly_and_lets_in_only_its_clients(programs):
    clients = programs.folder / "clients.toml"
    clients.write_text("[hosts]\n")
    server = programs.serve("--clients", "clients.toml")
    client = programs.get()
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 1, errors
    assert "refuses" in errors
    server.send_signal(signal.SIGQUIT)  # Ctrl-\
    _, log = server.communicate(timeout=30)
    assert server.returncode == 0, log
    assert "Traceback" not in log
    key = programs.run("cedos-get", "--print-key").stdout.strip()
    clients.write_text(f'[hosts]\nlaptop = "{key}"\n')
    server = programs.serve("--clients", "clients.toml")
    client = programs.get()
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    programs.assert_whole()
    # The key was pinned when it had proved right: another one is not taken any more.
    other = keys.to_text(bytes(range(32)))
    refused = programs.run("cedos-get", "--key", other, f"127.0.0.1:{programs.port}/x")
    assert refused.returncode == 2
    assert f"another key for 127.0.0.1:{programs.port}" in refused.stderr
    missing = programs.run("cedos-get", f"127.0.0.1:{programs.port}/none")
    assert missing.returncode == 1
    assert "there is no file 'none'" in missing.stderr
    assert not files_of(programs.folder / "none")[0].exists()
    server.send_signal(signal.SIGINT)
    _, log = server.communicate(timeout=30)
    assert server.returncode == 0
    assert '"to":"laptop"' in log


def test_every_file_is_tried_whatever_happens_to_one(programs):
    for name in "ab":
        (programs.served / name).write_text(name)
    programs.serve()
    where = f"127.0.0.1:{programs.port}"
    for more in (["--json"], []):
        files = [f"{where}/{name}" for name in ("a", "none", "b")]
        done = programs.run("cedos-get", "--key", programs.key, *more, *files)
        assert done.returncode == 1
        assert done.stderr.count("there is no file 'none'") == 1
        if more:
            first, missing, last = json.loads(done.stdout)["files"]
            assert (first["error"], last["error"]) == (None, None)
            assert (first["bytes"], last["bytes"]) == (1, 1)
            assert missing["from"] == f"{where}/none"
            assert "there is no file 'none'" in missing["error"]
        else:
            assert len(done.stdout.splitlines()) == 2
        for name in "ab":
            got = programs.folder / name
            assert got.read_text() == name
            got.unlink()


def test_what_ends_with_a_slash_is_a_folder(programs):
    programs.serve()
    (programs.served / "small").write_text("small")

    def got(output):
        where = f"127.0.0.1:{programs.port}/small"
        done = programs.run("cedos-get", "--key", programs.key, "-o", output, where)
        return done.returncode, done.stderr

    assert got("new/deep/") == (0, "")
    assert (programs.folder / "new/deep/small").read_text() == "small"
    assert got("new/other") == (0, "")  # as before: its name
    assert (programs.folder / "new/other").read_text() == "small"
    code, errors = got("new/other/")
    assert (code, errors) == (1, "cedos-get: new/other is a file, not a folder\n")
    code, errors = got("nodir/small")
    assert (code, errors) == (1, "cedos-get: there is no folder nodir\n")
    assert not (programs.folder / "nodir").exists()


def test_a_folder_of_the_same_name_here_hides_no_hint(programs):
    programs.serve()
    for name in ("albums", "small"):
        (programs.folder / name).mkdir()
    (programs.served / "albums").mkdir()
    (programs.served / "small").write_text("small")

    def said(name, *more):
        where = f"127.0.0.1:{programs.port}/{name}"
        done = programs.run("cedos-get", "--key", programs.key, *more, where)
        assert done.returncode == 1
        return done.stderr

    for more in ((), ("--by", "5min")):
        assert "with -r it comes whole, albums/ shows what is in it" in said("albums", *more)
    assert "small is a folder here; -o NAME gives the file another name" in said("small")


def test_folders_that_wait_may_be_more_than_the_files_that_a_shell_allows(programs):
    """Fetch a hundred folders by a deadline: each stays open until then."""
    programs.serve()
    for number in range(100):
        (programs.served / f"{number}").mkdir()
        (programs.served / f"{number}" / "one").write_text(f"{number}")
    client = programs.start(
        "cedos-get", "--key", programs.key, "-r", "--by", "5min", "-o", "here/",
        *(f"127.0.0.1:{programs.port}/{number}/" for number in range(100)), files="64:4096",
    )  # fmt: skip
    _, errors = client.communicate(timeout=120)
    assert client.returncode == 0, errors
    assert (programs.folder / "here" / "99" / "one").read_text() == "99"


def test_what_is_dropped_of_another_file_is_said(programs):
    programs.serve()
    (programs.served / "small").write_text("small")
    note = {"source": "another/film", "version": "1", "size": 100}
    programs.part.write_bytes(bytes(50))
    files_of(programs.target)[1].write_text(json.dumps(note))
    where = f"127.0.0.1:{programs.port}/small"
    done = programs.run("cedos-get", "--key", programs.key, "-o", "got", where)
    assert done.returncode == 0
    assert done.stderr == (
        "cedos-get: got: what had come of another file under this name was dropped\n"
    )
    assert programs.target.read_text() == "small"


def test_another_key_than_the_servers_is_told_at_once(programs):
    programs.serve()
    programs.key = keys.to_text(keys.own_key(programs.folder / "other.key").public)
    client = programs.get()
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 1
    assert "another key" in errors
    assert not (programs.folder / "config/cedos/hosts.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "is needed"),
        (["host"], "not a file such as"),
        (["host:0/x"], "not a host such as"),
        (["ho st/x"], "not a host such as"),
        (["-k", "short", "host/x"], "43 letters"),
        (["-k", keys.to_text(bytes(32)), "a/x", "b/x", "-o", "."], "files of one server"),
        (["-o", "no-folder", "a/x", "b/x"], "no folder"),
        (["--by", "2h", "-o", "-", "a/x"], "--by goes without -o -"),
        (
            ["--json", "-o", "-", "a/x"],
            "--json goes without -o -: both would be on standard output",
        ),
        (["--store", "9MB", "-o", "-", "a/x"], "--store goes with --bitrate"),
        (["--store", "10", "--bitrate", "640k", "-o", "-", "a/x"], "80kB is the least"),
        (["--store", "200kB", "--bitrate", "2.5M", "-o", "-", "a/x"], "313kB is the least"),
        (["--store", "60kB", "--bitrate", "8k", "-o", "-", "a/x"], "66kB is the least"),
        (["--by", "soon", "a/x"], "is no time: write"),
        (["-n", "nosuch0", "host/x"], "no interface 'nosuch0'; there are lo"),
        (["host/x"], "no key is known for host:7008"),
        (["[2001:db8::1]/x"], r"no key is known for [2001:db8::1]:7008"),
    ],
)
def test_what_cedos_get_refuses(monkeypatch, tmp_path, arguments, message):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(get.command, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_what_cedos_serve_refuses(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    result = CliRunner().invoke(serve.command, [])
    assert result.exit_code == 2
    assert "FOLDER is needed" in result.output
    for where in ("no", "0", "70000", "host.example:7008", "1.2.3.4", "[::1", ":", "[::1]x7008"):
        result = CliRunner().invoke(serve.command, ["-l", where, str(tmp_path)])
        assert result.exit_code == 2, where
        assert "is not 7008" in result.output
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(serve.command, ["-l", f"127.0.0.1:{port}", str(tmp_path)])
    assert result.exit_code == 4
    assert "cannot listen" in result.output


@pytest.mark.parametrize("command", [get.command, serve.command])
def test_help_has_examples_exit_statuses_and_files(command):
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    for section in ("Examples:", "Exit status:", "Files:"):
        assert section in result.output


async def asked(connection):
    """The size that the server tells of its file, in a session that is there already."""
    await connection.write(messages.pack(messages.FileRequest("file", head=True)))
    answer = await messages.read(messages.Answer, connection.read_exactly)
    return answer.size


@pytest.mark.parametrize("more", [(), ("--forget",)])
async def test_an_idle_session_survives_kill_9_at_once(programs, more):
    server = programs.serve(*more)
    me = KeyPair(os.urandom(32))
    connection = await session.connect(
        ("127.0.0.1", programs.port), server_key=keys.from_text(programs.key), key=me
    )
    assert await asked(connection) == SIZE
    await asyncio.sleep(0.5)  # 20 ms would do on a machine that nobody else uses
    server.kill()
    server.wait()
    server = programs.serve(*more)
    kept = list((programs.folder / "state").glob("cedos/*.sessions"))
    assert len(kept) == (not more)
    for each in kept:
        assert each.stat().st_mode & 0o777 == 0o600
        assert each.parent.stat().st_mode & 0o777 == 0o700
    if "--forget" in more:
        with pytest.raises(SessionError, match="does not know"):
            await asked(connection)
        return
    assert await asked(connection) == SIZE
    await connection.close()


async def test_who_is_not_let_in_any_more_does_not_come_back(programs):
    clients = programs.folder / "clients.toml"
    me = KeyPair(os.urandom(32))
    clients.write_text(f'[hosts]\nlaptop = "{keys.to_text(me.public)}"\n')
    server = programs.serve("--clients", "clients.toml")
    connection = await session.connect(
        ("127.0.0.1", programs.port), server_key=keys.from_text(programs.key), key=me
    )
    assert await asked(connection) == SIZE
    await asyncio.sleep(0.5)
    server.kill()
    server.wait()
    clients.write_text("[hosts]\n")
    programs.serve("--clients", "clients.toml")
    with pytest.raises(SessionError, match="does not know"):
        await asked(connection)


def test_a_server_whose_sessions_cannot_be_kept_serves(programs):
    (programs.folder / "state").write_text("no folder")
    server = programs.start(
        *("cedos-serve", "-l", f"127.0.0.1:{programs.port}", "--own-key", "server.key", "served")
    )
    client = programs.get()
    _, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    server.terminate()
    _, log = server.communicate(timeout=30)
    assert "idle sessions end with this program" in log
    assert server.returncode == 0


async def test_clients_that_ask_and_go_leave_files_for_others(programs):
    """Let clients with new keys ask and go: each left eight files open for as long as it wanted."""
    server = programs.start(
        "cedos-serve", "-l", f"127.0.0.1:{programs.port}", "--own-key", "server.key", "served",
        files=400,
    )  # fmt: skip
    server.stderr.readline()  # what it logs besides must fit into the pipe
    address, ask = ("127.0.0.1", programs.port), messages.FileRequest(path="file")
    for _ in range(12):
        connections = []
        for _ in range(5):
            connections.append(
                await session.connect(
                    address, server_key=keys.from_text(programs.key), key=KeyPair(os.urandom(32))
                )
            )
            await connections[-1].write(messages.pack(ask) * 8)
        await asyncio.sleep(0.3)
        for each in connections:
            each.flow.dialler.close()
            for path in list(each.flow.paths.values()):
                path.close("gone", reset=True)
            each.abort()
    await asyncio.sleep(3.0)
    assert len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 200
    client = programs.get()
    _, errors = await asyncio.to_thread(client.communicate, timeout=60)
    assert client.returncode == 0, errors
