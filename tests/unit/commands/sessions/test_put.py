"""`cedos-put`, listing and folders: two programs, real kills, what a server does not take."""

import asyncio
import errno
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from kit.waiting import until

from cedos.apps.files import serving
from cedos.apps.files import tree as tree_module
from cedos.apps.files.messages import PutRequest, path_text
from cedos.apps.files.partial import OpenFolder, files_of
from cedos.apps.files.serving import Uploads
from cedos.apps.files.tree import Tree
from cedos.commands.console.tree_copy import TreeCopy
from cedos.commands.sessions import get, put
from cedos.errors import TransferError
from cedos.session import keys
from tests.unit.commands.sessions.conftest import Programs

BIG = random.Random(4).randbytes(30_000_000)


class Inbox(Programs):
    """A server that takes files, and clients that it knows."""

    def __init__(self, folder):
        super().__init__(folder)
        self.inbox = folder / "inbox"
        self.inbox.mkdir()
        own = keys.own_key(folder / "config/cedos/session.key").public
        (folder / "clients.toml").write_text(f'[hosts]\nlaptop = "{keys.to_text(own)}"\n')

    def serve(self, *more):
        return self.serving("--clients", "clients.toml", "--keep-free", "1MB", *more, "inbox")

    def remembered(self):
        """The server is `home` from now on."""
        config = self.folder / "config/cedos/hosts.toml"
        config.write_text(
            f'[hosts.home]\nhost = "127.0.0.1"\nport = {self.port}\nkey = "{self.key}"\n'
        )


@pytest.fixture
def programs(tmp_path):
    programs = Inbox(tmp_path)
    yield programs
    programs.end()


def test_a_folder_goes_there_and_comes_back(programs):
    programs.serve("--writable")
    photos = programs.folder / "photos"
    (photos / "2026 mai").mkdir(parents=True)
    for number in range(30):
        (photos / f"{number:03}.jpg").write_bytes(random.Random(number).randbytes(20_000))
    (photos / "2026 mai" / "ü.jpg").write_bytes(b"")
    (photos / "link").symlink_to("/etc/passwd")
    where = f"127.0.0.1:{programs.port}"
    first = programs.run(
        "cedos-put", "--key", programs.key, "--save", "home", "-r", "photos", f"{where}/my/"
    )
    assert first.returncode == 1
    assert first.stderr == f"cedos-put: {photos}/link: is a symbolic link, which is not sent\n"
    (photos / "link").unlink()
    assert "photos/000.jpg: 20 kB" in first.stdout
    assert "" not in first.stdout.splitlines()
    listed = programs.run("cedos-get", "home/")
    assert listed.stdout.split()[-1] == "my/"
    listed = programs.run("cedos-get", "--json", "home/my/photos/")
    found = json.loads(listed.stdout)["files"]
    assert [each["from"] for each in found[:2]] == [
        "home/my/photos/000.jpg",
        "home/my/photos/001.jpg",
    ]
    assert (len(found), found[-1]["folder"]) == (31, True)
    back = programs.run("cedos-get", "-r", "-o", "back", "home/my/photos/")
    assert back.returncode == 0, back.stderr
    for path in photos.rglob("*.jpg"):
        copy = programs.folder / "back/photos" / path.relative_to(photos)
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_mtime == pytest.approx(path.stat().st_mtime)
    assert not (programs.inbox / "my/photos/link").exists()
    again = programs.run("cedos-get", "-r", "-o", "back", "home/my/photos/")
    assert (again.returncode, again.stdout.strip()) == (0, "back/photos: 31 files are here already")
    later = programs.run(
        "cedos-get", "--by", "5min", "--json", "-r", "-o", "later", "home/my/photos/"
    )
    assert later.returncode == 0, later.stderr
    found = json.loads(later.stdout)["files"]
    assert len(found) == 31
    assert all(each["in_time"] and each["error"] is None for each in found)
    assert max(each["seconds"] for each in found) < 12  # one after the other, but not one a second
    for path in photos.rglob("*.jpg"):
        copy = programs.folder / "later/photos" / path.relative_to(photos)
        assert copy.read_bytes() == path.read_bytes()
    again = programs.run("cedos-put", "-r", "photos", "home/my/")
    assert again.returncode == 0, again.stderr  # what is there is what was wanted
    lines = again.stdout.splitlines()
    assert len(lines) == 31
    assert lines[0] == "home/my/photos/000.jpg: 20 kB, was there already"
    (photos / "000.jpg").write_bytes(b"x" * 20_000)
    (photos / "001.jpg").write_bytes(b"longer")
    again = programs.run("cedos-put", "-r", "photos", "home/my/")
    assert again.returncode == 1
    assert again.stderr.count("it is not overwritten") == 2
    assert "000.jpg is there already, with another content" in again.stderr
    assert (programs.inbox / "my/photos/000.jpg").read_bytes() != b"x" * 20_000


def test_a_folder_that_can_wait_goes_there(programs):
    """Over loopback, which costs nothing, at once; all over one session."""
    programs.serve("--writable")
    programs.remembered()
    photos = programs.folder / "photos"
    photos.mkdir()
    for number in range(30):
        (photos / f"{number:03}.jpg").write_bytes(random.Random(number).randbytes(20_000))
    sent = programs.run("cedos-put", "--by", "5min", "--json", "-r", "photos", "home/my/")
    assert sent.returncode == 0, sent.stderr
    found = json.loads(sent.stdout)["files"]
    assert len(found) == 30
    assert all(each["in_time"] and each["error"] is None for each in found)
    assert all(each["sent_bytes"]["lo"] >= 20_000 for each in found)
    assert max(each["seconds"] for each in found) < 12
    for path in photos.iterdir():
        assert (programs.inbox / "my/photos" / path.name).read_bytes() == path.read_bytes()
    again = programs.run("cedos-put", "--by", "5min", "photos/000.jpg", "home/my/photos/")
    assert again.stdout == "home/my/photos/000.jpg: 20 kB, was there already\n", again.stderr


def test_pieces_become_one_file_whoever_is_killed(programs):
    server = programs.serve("--writable")
    programs.remembered()
    (programs.folder / "big").write_bytes(BIG)
    client = programs.start("cedos-put", "big", "home/upload")
    part = files_of(programs.inbox / "upload")[0]
    for who in ("client", "server", "client"):
        before = part.stat().st_size if part.exists() else 0
        wanted, ends_s = before + 2_000_000, time.monotonic() + 30
        while not (programs.inbox / "upload").exists():
            if part.exists() and part.stat().st_size > wanted:
                break
            assert time.monotonic() < ends_s
            time.sleep(0.0005)
        else:
            break
        if who == "client":
            client.kill()
            client.wait()
            client = programs.start("cedos-put", "big", "home/upload")
        else:
            server.kill()
            server.wait()
            server = programs.serve("--writable")
    out, said = client.communicate(timeout=60)
    assert client.returncode == 0, said
    got = (programs.inbox / "upload").read_bytes()
    assert hashlib.sha256(got).digest() == hashlib.sha256(BIG).digest()
    assert [each.name for each in programs.inbox.iterdir()] == ["upload"]
    assert "from an earlier attempt" in out


NOT_TAKEN = {
    "../out": "cannot be kept", "a/../../out": "cannot be kept", ".ssh": "cannot be kept",
    ".ssh/authorized_keys": "cannot be kept", "x.0123456789abcdef.part.json": "cannot be kept",
    "link/x": "there is no folder", "there": "is there already", "dangling": "is there already",
}  # fmt: skip


def test_what_a_server_does_not_take(programs):
    programs.serve("--writable")
    programs.remembered()
    (programs.folder / "small").write_text("x")
    (programs.folder / "outside").mkdir()
    (programs.inbox / "link").symlink_to(programs.folder / "outside")
    (programs.inbox / "dangling").symlink_to(programs.folder / "outside/made")
    (programs.inbox / "there").write_text("before")
    for name, why in NOT_TAKEN.items():
        refused = programs.run("cedos-put", "small", f"home/{name}")
        assert refused.returncode == 1, (name, refused.stdout)
        assert why in refused.stderr, name
        assert "/proc/" not in refused.stderr
    assert list((programs.folder / "outside").iterdir()) == []
    assert (programs.inbox / "there").read_text() == "before"
    assert not (programs.folder / "out").exists()


@pytest.mark.parametrize("by", [(), ("--by", "5min")], ids=["now", "later"])
def test_no_link_that_another_user_places_meanwhile_is_followed(programs, monkeypatch, by):
    """A user who could write in a sent folder had any file of the sender sent."""
    programs.serve("--writable")
    programs.remembered()
    (programs.folder / "secret").mkdir()
    (programs.folder / "secret" / "key").write_text("secret")
    shared = programs.folder / "shared"
    (shared / "folder").mkdir(parents=True)
    (shared / "folder" / "key").write_text("harmless")
    (shared / "key").write_text("harmless")

    def listed(*arguments):
        found = list(files_to_send(*arguments))
        (shared / "key").unlink()
        (shared / "key").symlink_to(programs.folder / "secret" / "key")
        (shared / "folder").rename(programs.folder / "away")
        (shared / "folder").symlink_to(programs.folder / "secret")
        return found

    files_to_send = put._files
    monkeypatch.setattr(put, "_files", listed)
    sent = programs.run("cedos-put", "-r", *by, "shared", "home/")
    assert sent.returncode == 1
    assert "shared/key: is a link, which is not followed" in sent.stderr
    assert "shared/folder/key: Not a directory" in sent.stderr
    assert not any(each.is_file() for each in programs.inbox.rglob("key"))


def test_no_link_that_comes_during_the_walk_is_followed(tmp_path, monkeypatch):
    """Follow none: the walk sent the names of folders that only the sender could read."""
    (tmp_path / "secret" / "salaries").mkdir(parents=True)
    (tmp_path / "sent" / "a").mkdir(parents=True)
    (tmp_path / "sent" / "b").mkdir()
    (tmp_path / "sent" / "a" / "file").write_text("")
    left_out, found = {}, []
    with ExitStack() as opened:
        for path, _, _ in put._files(
            (tmp_path / "sent",), "", lambda path, why: left_out.setdefault(path.name, why), opened
        ):
            found.append(path.name)
            if path.name == "file":
                (tmp_path / "sent" / "b").rmdir()
                (tmp_path / "sent" / "b").symlink_to(tmp_path / "secret")
    assert found == ["file"]
    assert left_out == {"b": "Not a directory"}


def test_a_file_that_goes_during_the_walk_leaves_the_others_of_its_folder(tmp_path, monkeypatch):
    """Leave out that one alone: all of the folder was left out."""
    for name in ("lock", "photo"):
        (tmp_path / name).write_text("")
    real = put._kind

    def kind(each):
        (tmp_path / "lock").unlink(missing_ok=True)
        return real(each)

    monkeypatch.setattr(put, "_kind", kind)
    left_out = []
    with ExitStack() as opened:
        found = [
            path.name
            for path, _, _ in put._files(
                (tmp_path,), "", lambda path, _why: left_out.append(path.name), opened
            )
        ]
    assert (found, left_out) == (["photo"], ["lock"])


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_a_link_of_another_user_is_no_file_that_is_here(tmp_path):
    """The copy ended as complete, with another user's bytes under the name."""
    (tmp_path / "other").write_text("12345")
    for name, uid in (("own", 0), ("others", 4711)):
        (tmp_path / name).symlink_to("other")
        os.lchown(tmp_path / name, uid, uid)
    with OpenFolder.of(tmp_path) as top:
        sizes = {each: get._size_here(tmp_path / each, top) for each in ("own", "others", "no")}
    assert sizes == {"own": 5, "others": None, "no": None}


def is_open(folder):
    """Return whether the number still is the folder's: another file may have got it since."""
    with suppress(OSError):
        return Path(f"/proc/self/fd/{folder.number}").readlink().name == folder.path.name
    return False


@pytest.mark.parametrize("by", [(), ("--by", "5min")], ids=["now", "later"])
def test_a_folder_that_cannot_be_opened_does_not_end_the_others(programs, monkeypatch, by):
    programs.serve("--writable")
    programs.remembered()
    for name in ("one", "two", "three"):
        (programs.folder / name).mkdir()
        (programs.folder / name / "file").write_text(name)
    opened = []

    def of(path):
        if path.name == "two":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(folder_of(path))
        return opened[-1]

    folder_of = OpenFolder.of
    monkeypatch.setattr(OpenFolder, "of", of)
    sent = programs.run("cedos-put", "-r", *by, "one", "two", "three", "home/")
    assert sent.returncode == 1
    assert "cedos-put: two: Too many open files\n" in sent.stderr
    there = sorted(each.parent.name for each in programs.inbox.rglob("file"))
    assert there == ["one", "three"]
    assert {each.path.name for each in opened} >= {"one", "three"}
    assert not any(map(is_open, opened))


@pytest.mark.parametrize("by", [(), ("--by", "5min")], ids=["now", "later"])
def test_the_folders_of_a_copy_are_closed(programs, monkeypatch, by):
    programs.serve()
    programs.remembered()
    for name in ("one", "two"):
        (programs.inbox / name).mkdir()
        (programs.inbox / name / "file").write_text(name)
    tops = []

    class Watched(TreeCopy):
        def __init__(self, *arguments, **named):
            assert by or not any(map(is_open, tops)), "one after the other"
            super().__init__(*arguments, **named)
            tops.append(self.top)

    monkeypatch.setattr(get, "TreeCopy", Watched)
    got = programs.run("cedos-get", "-r", *by, "-o", "here/", "home/one/", "home/two/")
    assert got.returncode == 0, got.stderr
    assert (programs.folder / "here/two/file").read_text() == "two"
    assert [each.path.name for each in tops] == ["one", "two"]
    assert not any(map(is_open, tops))


def test_limits_and_strangers(programs):
    server = programs.serve("--writable")
    programs.remembered()
    (programs.folder / "large").write_bytes(bytes(1001))
    stranger = programs.run("cedos-put", "--own-key", "other.key", "large", "home/")
    assert "the server refuses" in stranger.stderr
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
    server = programs.serve("--writable", "--keep-free", "1000TB")
    assert "not enough room" in programs.run("cedos-put", "large", "home/").stderr
    server.kill()
    server.wait()
    programs.serve()
    assert "takes no files" in programs.run("cedos-put", "large", "home/").stderr
    assert "is a folder; -r sends it" in programs.run("cedos-put", "inbox", "home/").stderr
    assert "curl -T" in programs.run("cedos-put", "large", "https://a.example/").stderr
    alone = programs.run("cedos-serve", "--writable", "inbox")
    assert "--writable goes with --clients" in alone.stderr


def test_to_standard_output_and_at_a_limited_rate(programs):
    programs.serve()
    programs.remembered()
    (programs.inbox / "song").write_bytes(BIG[:1_500_000])
    with subprocess.Popen(
        [Path(sys.executable).with_name("cedos-get"), "-o", "-", "home/song"],
        env=programs.environment,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.read() == BIG[:1_500_000]
    assert process.returncode == 0


def test_odd_names_go_there_and_come_back(programs):
    """Names of 255 bytes, no UTF-8, control letters, empty folders, 300 levels, names of parts."""
    server = programs.serve("--writable")
    programs.remembered()
    deep = "/".join(["d"] * 300)
    names = [
        b"n" * 255, "\u4eca".encode() * 85, b"\xff\xfe", b"caf\xe9", b"\xed\xb2\x80", b"new\nline",
        b"\x1b[2Jred", b"a", b"a.part", b"a.part.json", b"%41", b" ", b"-rf", b"con", b"trailing.",
        deep.encode() + b"/end",
    ]  # fmt: skip
    top = programs.folder / "odd"
    for number, name in enumerate(names):
        path = top / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1000)
    (top / "empty" / "in it").mkdir(parents=True)
    (top / os.fsdecode(b"empty\xff")).mkdir()

    def all_in(folder):
        return {
            str(each.relative_to(folder)): each.read_bytes() if each.is_file() else None
            for each in folder.rglob("*")
        }

    sent = programs.run("cedos-put", "-r", "odd", "home/")
    assert sent.returncode == 0, sent.stderr
    assert "\x1b" not in sent.stdout
    assert all_in(programs.inbox / "odd") == all_in(top)
    back = programs.run("cedos-get", "-r", "-o", "back", "home/odd/")
    assert back.returncode == 0, back.stderr
    assert "\x1b" not in back.stdout
    assert all_in(programs.folder / "back" / "odd") == all_in(top)
    again = programs.run("cedos-get", "--json", "-r", "-o", "again", "home/odd/")
    found = json.loads(again.stdout)["files"]
    assert {each["error"] for each in found} == {None}
    named = {Path(each["path"]).relative_to("again/odd") for each in found}
    assert named == {Path(os.fsdecode(name)) for name in names}
    server.terminate()
    assert server.wait(timeout=30) == 0


def test_a_copy_says_what_is_missing(programs):
    programs.serve()
    programs.remembered()
    for name in (".profile", ".ssh/authorized_keys", "sub/.hidden", "file", "theirs/x", "ours"):
        (programs.inbox / name).parent.mkdir(exist_ok=True)
        (programs.inbox / name).write_text("theirs")
    (programs.inbox / "link").symlink_to("file")
    os.mkfifo(programs.inbox / "pipe")
    here = programs.folder / "here"
    (here / "ours").mkdir(parents=True)
    (here / "theirs").write_text("mine")
    got = programs.run("cedos-get", "-r", "-o", "here", "home/")
    assert got.returncode == 1
    dot = (
        "a name with a dot at the top can change what programs do here; with --dot-files it is fetched,"
        " too"
    )
    assert sorted(got.stderr.splitlines()) == [
        f"cedos-get: here/.profile: {dot}",
        f"cedos-get: here/.ssh: {dot}",
        "cedos-get: here/link: is a symbolic link at the server, which is not sent",
        "cedos-get: here/ours is a folder here; -o NAME gives the file another name",
        "cedos-get: here/pipe: is neither a file nor a folder at the server, which is not sent",
        "cedos-get: here/theirs: here/theirs is a file here, and a folder at the server",
    ]
    assert (here / "theirs").read_text() == "mine"
    assert (here / "sub/.hidden").read_text() == (here / "file").read_text() == "theirs"
    got = programs.run("cedos-get", "-r", "--dot-files", "-o", "new", "home/")
    assert (programs.folder / "new/.ssh/authorized_keys").read_text() == "theirs"
    listed = programs.run("cedos-get", "home/")
    assert "link" in listed.stdout
    assert "pipe" in listed.stdout


def client(key):
    """Return a session of a client that has a network."""
    return Mock(peer_key=key, paths=lambda: ["a path"])


async def test_folders_that_no_program_reaches_are_refused(tmp_path):
    """A path may have 4,000 bytes; the kernel takes 4,096."""
    uploads = Uploads(Tree(tmp_path), 0)
    with pytest.raises(TransferError, match="longer than 4000 bytes"):
        await uploads.make_folder(30 * ("ä" * 120 + "/"))
    await uploads.make_folder(16 * ("a" * 240 + "/"))
    assert len(list(tmp_path.rglob("*"))) == 16


def room_of(monkeypatch, n_bytes):
    """Let all disks have so many free bytes; return the list of that number, to be changed."""
    free, real = [n_bytes], os.fstatvfs

    def fstatvfs(number):
        told = {"f_bavail": free[0], "f_frsize": 1}
        found = {name: getattr(real(number), name) for name in ("f_favail", "f_files")}
        return SimpleNamespace(**found, **told)

    monkeypatch.setattr(os, "fstatvfs", fstatvfs)
    return free


async def test_what_a_client_announces_takes_no_room_from_others(tmp_path, monkeypatch):
    """Seven files of 10 GB of which not a byte came kept out all others' uploads."""
    room_of(monkeypatch, 2_500)
    uploads = Uploads(Tree(tmp_path), 500)
    async with (
        uploads.open_part(client(b"one"), PutRequest("a", 1_000, "v")),
        uploads.open_part(client(b"one"), PutRequest("b", 1_000, "v")),
    ):
        with pytest.raises(TransferError, match="not enough room"):
            async with uploads.open_part(client(b"one"), PutRequest("c", 1, "v")):
                pass
        async with uploads.open_part(client(b"other"), PutRequest("d", 2_000, "v")):
            pass


async def test_bytes_that_have_come_need_no_more_room(tmp_path, monkeypatch):
    """They were on the disk, and counted as what is to come as well."""
    free = room_of(monkeypatch, 2_500)
    uploads = Uploads(Tree(tmp_path), 500)
    async with uploads.open_part(client(b"one"), PutRequest("a", 1_000, "v")) as partial:
        partial.begin(0, "v", 1_000)
        uploads.write(partial, bytes(900))
        free[0] -= 900
        async with uploads.open_part(client(b"one"), PutRequest("b", 1_000, "v")):
            with pytest.raises(TransferError, match="not enough room"):
                async with uploads.open_part(client(b"one"), PutRequest("c", 1, "v")):
                    pass


async def test_no_upload_takes_what_stays_free(tmp_path, monkeypatch):
    free = room_of(monkeypatch, 2_000)
    uploads = Uploads(Tree(tmp_path), 500)
    async with uploads.open_part(client(b"one"), PutRequest("a", 1_000, "v")) as partial:
        partial.begin(0, "v", 1_000)
        uploads.write(partial, bytes(400))
        free[0] = 1_000
        with pytest.raises(TransferError, match="not enough room on the server's disk"):
            uploads.write(partial, bytes(600))
        assert partial.have == 400


async def test_a_full_disk_gets_no_folder(tmp_path, monkeypatch):
    """Check for room first: else each refused request may make thousands of folders."""
    room_of(monkeypatch, 400)
    uploads = Uploads(Tree(tmp_path), 500)
    with pytest.raises(TransferError, match="not enough room"):
        await uploads.make_folder("a/b")
    assert not list(tmp_path.iterdir())


async def test_no_writer_makes_a_folder_that_cannot_be_listed(tmp_path, monkeypatch):
    """One client's 9,000 names, of bytes that need eight each in a list, hid it from all for good."""
    monkeypatch.setattr(serving, "LONGEST_LISTING", 20_000)
    now = [100.0]
    (tmp_path / "honest.txt").touch()
    monkeypatch.setattr(serving.time, "monotonic", lambda: now[0])
    tree = Tree(tmp_path)
    uploads, made = Uploads(tree, 0), []

    def name(number):
        return os.fsdecode(b"\xff" * 240 + b"%06d" % number)

    for number in range(20):
        with suppress(TransferError):
            await uploads.make_folder(name(number))
            made.append(number)
    assert 5 < len(made) < 15
    listed = await tree.entries("")
    assert len(listed) == 1 + len(made)
    assert len(msgspec.json.encode(listed)) < 20_000
    await uploads.make_folder(f"{name(0)}/below")
    request = PutRequest(path_text(name(99)), 5, "1")
    with pytest.raises(TransferError, match="no more can be listed"):
        async with uploads.open_part(client(b"a" * 32), request):
            pass
    # The owner makes room.
    for number in made[1:]:
        (tmp_path / name(number)).rmdir()
    now[0] += 10.0
    await uploads.make_folder(name(7))


async def break_off(uploads, key, path):
    """Upload the first byte of two."""
    async with uploads.open_part(client(key), PutRequest(path, 2, "v")) as partial:
        partial.begin(0, "v", 2)
        uploads.write(partial, b"x")


async def test_unfinished_uploads_hide_no_folder(tmp_path, monkeypatch):
    """Count what is listed alone: parts and notes made the folder too full to be listed, for good."""
    for module in (serving, tree_module):
        monkeypatch.setattr(module, "MOST_ENTRIES", 50)
    tree = Tree(tmp_path)
    uploads = Uploads(tree, 0)
    for number in range(40):
        (tmp_path / f"{number}").touch()
    for number in range(30):
        with suppress(TransferError):  # as soon as all names were counted, for 10 s
            await break_off(uploads, b"one", f"part {number}")
    assert len(list(tmp_path.iterdir())) > 50
    assert len(await tree.entries("")) == 40


async def test_uploads_that_run_are_counted_at_each_look(tmp_path, monkeypatch):
    for module in (serving, tree_module):
        monkeypatch.setattr(module, "MOST_ENTRIES", 12)
    monkeypatch.setattr(serving, "_LOOKED_S", 0.0)
    tree, begun = Tree(tmp_path), 0
    uploads = Uploads(tree, 0)
    async with AsyncExitStack() as running:
        for host, number in itertools.product((b"one", b"two"), range(8)):
            request = PutRequest(f"{host}{number}", 2, "v")
            with suppress(TransferError):
                partial = await running.enter_async_context(
                    uploads.open_part(client(host), request)
                )
                begun += 1
                partial.begin(0, "v", 2)
                uploads.write(partial, b"ab")
                partial.finish(0.0) if number % 2 else None
    assert begun == 12
    assert len(await tree.entries("")) <= 12
    assert not uploads._listed._coming


async def test_a_client_has_a_limit_of_unfinished_uploads(tmp_path, monkeypatch):
    """Drop its oldest one, and none of another client's: 25,000 in a folder were left for good."""
    monkeypatch.setattr(serving, "_MOST_UNFINISHED", 5)
    uploads = Uploads(Tree(tmp_path), 0)
    await break_off(uploads, b"one", "folder/others")
    await break_off(uploads, b"other", "folder/others")  # has the part from now on
    for number in range(10):
        await break_off(uploads, b"one", f"folder/{number}")
    await break_off(uploads, b"one", "folder/5")
    with pytest.raises(TransferError, match="not enough room"):  # another version of it
        async with uploads.open_part(client(b"one"), PutRequest("folder/6", 1 << 60, "v2")):
            pass
    await break_off(uploads, b"one", "folder/new")
    await break_off(uploads, b"one", "folder/newer")
    left = {each.name for each in (tmp_path / "folder").iterdir()}
    kept = ["others", "9", "5", "6", "new", "newer"]
    assert left == {each.name for one in kept for each in files_of(Path(one))[:2]}
    async with uploads.open_part(client(b"one"), PutRequest("folder/5", 2, "v")) as partial:
        assert partial.have == 1
        partial.begin(1, "v", 2)
        uploads.write(partial, b"y")
        partial.finish(0.0)
    assert "folder/5" not in uploads._unfinished[b"one"]
    async with uploads.open_part(client(b"two"), PutRequest("folder/9", 2, "v")):
        pass  # brings nothing
    async with uploads.open_part(client(b"one"), PutRequest("folder/9", 2, "v")) as partial:
        assert partial.have == 1
    for number in range(5):
        await break_off(uploads, b"one", f"{number}")
    left = {each.name for each in (tmp_path / "folder").iterdir()}
    assert left == {"5", *(each.name for each in files_of(Path("others"))[:2])}


async def test_no_path_is_so_deep_that_it_takes_long(tmp_path):
    """A path of 1,990 names took 20 ms of a thread, which others could not have meanwhile."""
    uploads = Uploads(Tree(tmp_path), 0)
    with pytest.raises(TransferError, match="more than 500 names"):
        await uploads.make_folder("/".join(501 * ["a"]))
    await uploads.make_folder("/".join(500 * ["a"]))


@pytest.mark.parametrize("end", ["part", "part.json"])
async def test_no_folder_has_the_name_of_a_part(tmp_path, end):
    """A folder of that name kept the file's own name from ever being put, or hid a file."""
    uploads = Uploads(Tree(tmp_path), 0)
    with pytest.raises(TransferError, match="without the names of parts"):
        await uploads.make_folder(f"{files_of(Path('song'))[0].stem}.{end}/inside")
    assert not list(tmp_path.iterdir())


async def test_uploads_that_come_together_have_the_limit_of_a_client(tmp_path):
    begun, refused = [], []

    async def upload(uploads, number, end):
        try:
            async with uploads.open_part(client(b"one"), PutRequest(f"{number}", 1, "v")):
                begun.append(number)
                await end.wait()
        except TransferError as error:
            refused.append(str(error))

    uploads, end = Uploads(Tree(tmp_path), 0), asyncio.Event()
    tasks = [asyncio.create_task(upload(uploads, number, end)) for number in range(20)]
    await until(lambda: len(begun) + len(refused) == len(tasks))
    end.set()
    await asyncio.gather(*tasks)
    assert len(begun) == 8
    assert set(refused) == {"8 files at once are the most here; try again later"}
