"""A part of a file on the disk and its note: continued, locked, replaced, found out."""

import asyncio
import ctypes
import errno
import hashlib
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from kit.waiting import until

from cedos.apps.files import partial
from cedos.apps.files.objects.stored_object import ObjectRecord, StoredObject
from cedos.apps.files.partial import (
    PART_NAME,
    NotedBytes,
    Partial,
    PartNote,
    PartOf,
    files_of,
    when_free,
)
from cedos.apps.files.putting import Putting, UploadBody
from cedos.apps.files.tree import FileHash, Tree
from cedos.errors import DiskError, TransferError
from cedos.kernel import own_file
from cedos.kernel.own_file import to_its_end

FILE = PartOf("http://a.test/1", '"v1"', 6_000_000)


@pytest.mark.parametrize(
    "counts",
    [b"", b"{", b"[1, 2]", b'{"boot": 1}', b'{"sure_bytes": -1}', bytes(5000)],
)
def test_where_counts_are_something_else_the_part_is_gone_on_with(tmp_path, counts):
    note = PartNote(tmp_path / "one")
    note.write(FILE, NotedBytes("boot", 7))
    path = files_of(tmp_path / "one")[1]
    first = path.read_bytes().split(b"\n")[0]
    path.write_bytes(first + b"\n" + counts)
    assert note.read() == (FILE, NotedBytes())
    path.write_bytes(first)
    assert note.read() == (FILE, NotedBytes())


@pytest.mark.parametrize("content", [b"", b"{}", b"{\n", b"[1", bytes(5000), b"1" * (2 << 20)])
def test_a_file_of_something_else_is_no_note(tmp_path, content):
    files_of(tmp_path / "one")[1].write_bytes(content)
    assert PartNote(tmp_path / "one").read() is None


def test_a_link_is_neither_read_nor_written_through(tmp_path):
    other = tmp_path / "other"
    PartNote(other).write(FILE, NotedBytes("boot", 7))
    theirs = files_of(tmp_path / "other")[1]
    before = theirs.read_bytes()
    files_of(tmp_path / "one")[1].symlink_to(theirs)
    note = PartNote(tmp_path / "one")
    assert note.read() is None
    with pytest.raises(OSError, match="symbolic links"):
        note.write_bytes(NotedBytes("boot", 8))
    assert theirs.read_bytes() == before


TEXT = random.Random(5).randbytes(3_000_000)
DIGEST = hashlib.sha256(TEXT).digest()


def test_a_file_in_one_go(tmp_path):
    target = tmp_path / "file"
    partial = Partial(target, "server/file")
    assert (partial.have, partial.version) == (0, "")
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT[:100])
    partial.write(memoryview(TEXT)[100:])
    assert not target.exists()
    assert partial.is_right(DIGEST)
    partial.finish(1_000_000_000.5)
    partial.close()
    assert target.read_bytes() == TEXT
    assert target.stat().st_mtime == 1_000_000_000.5
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_part_is_continued_however_its_program_ended(tmp_path):
    partial = Partial(tmp_path / "file", "server/file")
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT[:2_500_000])
    partial.close()  # a killed program does no more than that
    partial = Partial(tmp_path / "file", "server/file")
    assert (partial.have, partial.version) == (2_500_000, "v1")
    partial.begin(2_500_000, "v1", len(TEXT))
    partial.write(TEXT[2_500_000:])
    assert partial.is_right(DIGEST)
    partial.finish(0.0)
    partial.close()
    assert (tmp_path / "file").read_bytes() == TEXT


@pytest.mark.parametrize("what", ["other source", "no note", "broken note", "longer", "empty"])
def test_a_part_that_cannot_be_continued_is_not(tmp_path, what):
    partial = Partial(tmp_path / "file", "server/file")
    partial.begin(0, "v1", 1000)
    partial.write(b"" if what == "empty" else bytes(1001 if what == "longer" else 500))
    partial.close()
    note = files_of(tmp_path / "file")[1]
    if what == "no note":
        note.unlink()
    if what == "broken note":
        note.write_text("{")
    partial = Partial(tmp_path / "file", "other" if what == "other source" else "server/file")
    assert (partial.have, partial.version) == (0, "")
    partial.begin(0, "v2", 4)
    partial.write(b"four")
    assert partial.is_right(hashlib.sha256(b"four").digest())
    partial.finish(0.0)
    partial.close()
    assert (tmp_path / "file").read_bytes() == b"four"


def test_bytes_that_were_never_on_the_disk_are_found_out(tmp_path):
    partial = Partial(tmp_path / "file", "s")
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT[:1000])
    partial.close()
    files_of(tmp_path / "file")[0].write_bytes(bytes(1000))  # what a power cut may leave
    partial = Partial(tmp_path / "file", "s")
    partial.begin(1000, "v1", len(TEXT))
    partial.write(TEXT[1000:])
    assert not partial.is_right(DIGEST)
    partial.discard()
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT)
    assert partial.is_right(DIGEST)
    partial.close()


def test_two_programs_do_not_write_one_file(tmp_path):
    one = Partial(tmp_path / "file", "s")
    with pytest.raises(TransferError, match="another program"):
        Partial(tmp_path / "file", "s")
    one.close()
    Partial(tmp_path / "file", "s").close()
    assert list(tmp_path.iterdir()) == []


async def test_who_leaves_while_a_part_is_opened_leaves_it_to_others(tmp_path, monkeypatch):
    """The part stayed open and locked: an upload went on only once its gateway had restarted."""
    begun, go_on = Event(), Event()

    class SlowPartial(Partial):
        def __init__(self, target, source):
            super().__init__(target, source)
            begun.set()
            go_on.wait(5)

    monkeypatch.setattr(partial, "Partial", SlowPartial)
    opening = asyncio.create_task(when_free(tmp_path / "one", "a"))
    await until(begun.is_set)
    opening.cancel()
    go_on.set()
    await asyncio.gather(opening, return_exceptions=True)
    monkeypatch.setattr(partial, "Partial", Partial)
    (await asyncio.wait_for(when_free(tmp_path / "one", "a"), 5)).close()
    assert not list(tmp_path.iterdir())


async def test_a_large_part_is_hashed_beside_others_work(tmp_path):
    """One that was opened again and again held a thread for as long as it takes to read it."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    part = Partial(tmp_path / "one", "a")
    part.begin(0, "v", 1 << 35)
    os.ftruncate(part.number, 1 << 35)
    part.have = 1 << 35
    part.close()
    opening = asyncio.create_task(when_free(tmp_path / "one", "a"))
    await until(files_of(tmp_path / "one")[0].exists)
    await asyncio.sleep(0.1)
    try:
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 5)
        assert not opening.done()
    finally:
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)


async def test_a_part_is_hashed_from_its_beginning(tmp_path):
    data = os.urandom(3 << 20)
    part = Partial(tmp_path / "one", "a")
    part.begin(0, "v", len(data) + 1)
    part.write(data)
    part.close()
    for opened in (Partial(tmp_path / "one", "a"), None):
        again = opened or await when_free(tmp_path / "one", "a")
        again.begin(len(data), "v", len(data) + 1)
        again.write(b"x")
        assert again.is_right(hashlib.sha256(data + b"x").digest())
        os.ftruncate(again.number, len(data))
        again.close()


async def test_what_a_thread_does_comes_to_its_end_before_its_file_is_closed(tmp_path):
    """The thread went on with the file's number, which another file had by then."""
    done, go_on = [], Event()

    async def work():
        await asyncio.to_thread(go_on.wait, 5)
        done.append(1)

    working = asyncio.create_task(to_its_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        working.cancel()
    await asyncio.sleep(0)
    assert not working.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert done == [1]

    async def fails():
        raise TransferError("no")

    with pytest.raises(TransferError):
        await to_its_end(fails())


@pytest.mark.parametrize("whose", ["object", "served", "sent"])
async def test_files_are_open_for_as_long_as_a_thread_uses_them(tmp_path, monkeypatch, whose):
    """The thread went on with the file's number, which another file had by then."""
    begun, go_on, used = Event(), Event(), []

    def use(number):
        begun.set()
        go_on.wait(5)
        used.append(os.fstat(number).st_ino)
        return b"digest"

    monkeypatch.setattr(os, "fdatasync", use)
    monkeypatch.setattr(FileHash, "go_on", lambda self, _wanted: use(self.number))
    path = tmp_path / "one"
    path.write_bytes(b"data")
    body, found = UploadBody(path), None
    if whose == "object":
        path.unlink()
        found = StoredObject(path, ObjectRecord("one", "http://a.test/", "v", {}, {}, True, 0.0, 4))
        work = found.finish()
    elif whose == "served":
        hashing = FileHash(os.open(path, os.O_RDONLY), 4)
        work = Tree(tmp_path).digest(hashing, body.version, lambda: True)
    else:
        work = Putting(body, "one", None, 1.0)._send(SimpleNamespace(write=None), body.size)
    inode = path.stat().st_ino
    task = asyncio.create_task(work)
    await asyncio.to_thread(begun.wait, 5)
    if found is not None:
        found.fail("others need the room")
    task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert used == [inode]
    body.close()


def test_no_other_user_can_open_and_lock_a_part(tmp_path):
    """Open the part to read it, and lock it: it was "fetched by another program" for as long."""
    target = tmp_path / "file"
    (tmp_path / "other").touch()
    partial = Partial(target, "s")
    partial.begin(0, "v", 1)
    assert partial.path.stat().st_mode & 0o777 == 0o600
    partial.write(b"x")
    partial.finish(0.0)
    partial.close()
    assert target.stat().st_mode == (tmp_path / "other").stat().st_mode
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "other"]


def test_an_existing_file_is_never_overwritten(tmp_path):
    target = tmp_path / "file"
    partial = Partial(target, "s")
    partial.begin(0, "v", 3)
    partial.write(b"new")
    target.write_bytes(b"somebody else's")
    with pytest.raises(TransferError, match="kept"):
        partial.finish(0.0)
    partial.close()
    assert target.read_bytes() == b"somebody else's"
    assert files_of(tmp_path / "file")[0].read_bytes() == b"new"
    with pytest.raises(TransferError, match="not overwritten"):
        Partial(target, "s")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(TransferError, match=r"there is no folder .*/no$"):
        Partial(tmp_path / "no" / "file", "s")


@pytest.mark.parametrize("why", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_a_whole_part_whose_name_is_refused_is_gone_on_with(tmp_path, monkeypatch, why):
    """Each further attempt had fetched all of it again."""

    def refuses(*_):
        ctypes.set_errno(why)
        return -1

    partial = Partial(tmp_path / "file", "s")
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT)
    with monkeypatch.context() as patched:
        patched.setattr(own_file, "_libc", SimpleNamespace(renameat2=refuses))
        with pytest.raises(DiskError, match="kept"):
            partial.finish(0.0)
    partial.close()
    again = Partial(tmp_path / "file", "s")
    assert (again.have, again.version, again.size) == (len(TEXT), "v1", len(TEXT))
    assert again.is_right(DIGEST)
    again.finish(0.0)
    again.close()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("can", [True, False])
def test_a_file_gets_its_name_over_no_other_one(tmp_path, monkeypatch, can):
    def cannot(*_):
        ctypes.set_errno(errno.EINVAL)
        return -1

    if not can:  # a file system such as NFS
        monkeypatch.setattr(own_file, "_libc", SimpleNamespace(renameat2=cannot))
    partial = Partial(tmp_path / "file", "s")
    partial.begin(0, "v1", 3)
    partial.write(b"one")
    partial.finish(0.0)
    partial.close()
    assert (tmp_path / "file").read_bytes() == b"one"
    partial = Partial(tmp_path / "other", "s")
    partial.begin(0, "v1", 3)
    partial.write(b"one")
    (tmp_path / "other").write_bytes(b"somebody else's")
    with pytest.raises(TransferError, match="kept"):
        partial.finish(0.0)
    partial.close()
    assert (tmp_path / "other").read_bytes() == b"somebody else's"


@pytest.mark.parametrize("which", [1, 2], ids=["note", "draft"])
def test_notes_follow_no_link_that_others_have_laid(tmp_path, which):
    victim = tmp_path / "victim"
    victim.write_bytes(b"not yours")
    files_of(tmp_path / "file")[which].symlink_to(victim)
    partial = Partial(tmp_path / "file", "server/file")
    partial.begin(0, "v1", len(TEXT))
    partial.write(TEXT)
    partial.finish(0.0)
    partial.close()
    assert victim.read_bytes() == b"not yours"
    assert (tmp_path / "file").read_bytes() == TEXT


def test_no_link_is_followed_that_others_have_laid(tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"not yours")
    files_of(tmp_path / "file")[0].symlink_to(victim)
    with pytest.raises(TransferError, match="is a link, which is not followed"):
        Partial(tmp_path / "file", "server/file")
    assert victim.read_bytes() == b"not yours"


def test_a_dangling_link_makes_no_file_elsewhere(tmp_path):
    files_of(tmp_path / "file")[0].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TransferError, match="is a link"):
        Partial(tmp_path / "file", "server/file")
    assert not (tmp_path / "elsewhere").exists()


def test_a_pipe_in_the_way_is_an_error_and_no_wait(tmp_path):
    os.mkfifo(files_of(tmp_path / "file")[0])
    with pytest.raises(TransferError, match="no plain file"):
        Partial(tmp_path / "file", "server/file")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EINVAL, "this file system does not take such a name"),
        (errno.EILSEQ, "this file system does not take such a name"),
        (errno.ENAMETOOLONG, "is too long for this file system"),
        (errno.EROFS, "Read-only file system"),
    ],
)
def test_a_name_that_a_file_system_does_not_take(tmp_path, monkeypatch, number, words):
    """As vfat does with `a:b`, and others with names that are not UTF-8."""

    def refuse(*_arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("cedos.apps.files.partial.os.open", refuse)
    with pytest.raises(DiskError, match=words) as caught:
        Partial(tmp_path / "a:b", "s")
    assert caught.value.full is (number == errno.EROFS)


@pytest.mark.parametrize(
    "name", ["a", "n" * 255, "\u4eca" * 85, os.fsdecode(b"\xff" * 255), "x.part"]
)
def test_a_part_has_a_short_name_of_its_own(tmp_path, name):
    target = tmp_path / name
    files = files_of(target)
    assert max(len(os.fsencode(each.name)) for each in files) <= 143  # eCryptfs
    assert all(PART_NAME.fullmatch(each.name) for each in files)
    assert not PART_NAME.fullmatch(name)
    (tmp_path / f"{name[:20]}.part").write_bytes(b"mine")
    partial = Partial(target, os.fsdecode(b"server/\xff"))
    partial.begin(0, "v", 3)
    partial.write(b"one")
    partial.finish(0.0)
    partial.close()
    assert target.read_bytes() == b"one"
    assert (tmp_path / f"{name[:20]}.part").read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_left_where_a_note_finds_no_room(tmp_path, monkeypatch):
    """A full disk was left with an empty file for each one that `cedos-get -r` tried."""

    def full(*_paths):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    part = Partial(tmp_path / "file", "server")
    with pytest.raises(DiskError, match="No space left"):
        part.begin(0, "v", 10)
    part.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", [0, 1], ids=["part", "note"])
def test_what_cannot_be_removed_ends_nothing_else(tmp_path, which):
    """Another user's folder in a name's place ended cedos-pod, and held a client's place at a server."""
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    partial = Partial(tmp_path / "file", "s")
    there = files_of(tmp_path / "file")[which]
    there.unlink(missing_ok=True)
    there.mkdir()
    partial.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
