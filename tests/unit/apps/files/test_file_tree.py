"""The files that a server gives away: regular files below its folder, whatever a client requests."""

import asyncio
import contextlib
import errno
import hashlib
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.apps.files import tree as tree_module
from cedos.apps.files.messages import (
    Answer,
    Entry,
    decode,
    path_of,
    path_text,
    read,
    unix_time,
)
from cedos.apps.files.partial import files_of
from cedos.apps.files.putting import UploadBody
from cedos.apps.files.tree import FileHash, Tree, Version
from cedos.commands.console import render
from cedos.errors import TransferError


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "served"
    (root / "music" / "old").mkdir(parents=True)
    (root / "music" / "old" / "song ü").write_bytes(b"la la")
    (tmp_path / "secret").write_text("not served")
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "inside").symlink_to("music/old/song ü")
    (root / "out").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    return root


def test_files_are_found_by_their_path(root):
    tree = Tree(root)
    for path in ("music/old/song ü", "/music//old/./song ü"):
        number = tree.open(path)
        assert os.pread(number, 10, 0) == b"la la"
        os.close(number)


@pytest.mark.parametrize(
    "path",
    [
        "", "/", ".", "music", "none", "music/none", "none/none", "../secret", "music/../../secret",
        "link", "inside", "out/secret", "pipe", "music/old/song ü/x", "a\0b", "x" * 300,
    ],
)  # fmt: skip
def test_nothing_else_is_and_no_descriptor_is_left(root, path):
    tree = Tree(root)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(TransferError, match="there is no file"):
        tree.open(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_served_folder_is_the_same_wherever_its_path_leads_later(root, tmp_path):
    """A user who could write beside it put a link in its place: another folder was served."""
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    tree = Tree(root)
    root.rename(tmp_path / "away")
    root.symlink_to(tmp_path / "private")
    with pytest.raises(TransferError, match="there is no file"):
        tree.open("key")
    assert "music" in [each.name for each in asyncio.run(tree.entries(""))]
    os.close(tree.open("music/old/song ü"))
    os.close(tree.folder(["new"], make=True))
    assert (tmp_path / "away" / "new").is_dir()


def test_a_folder_is_told(root):
    with pytest.raises(TransferError, match="there is no file 'music', but a folder: with -r"):
        Tree(root).open("music")
    with pytest.raises(TransferError, match=r"there is no file 'out'$"):  # a link leads out of it
        Tree(root).open("out")


def test_a_tree_is_a_folder_that_can_be_opened(root, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(root)
    assert Tree(tmp_path / "link").root == root.resolve()
    with pytest.raises(TransferError, match="not a folder that can be served: No such file"):
        Tree(root / "none")

    def full(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(TransferError, match="served: Too many open files"):
        Tree(root)


async def test_a_large_folder_is_listed_beside_others_work(root, monkeypatch):
    """Three addresses that asked for one again and again had others' lists wait for 3 s."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    folder, entry, looked_at = root / "large", tree_module._entry, []
    folder.mkdir()
    for number in range(200):
        (folder / f"{number}").touch()

    def slow(each):
        looked_at.append(each)
        time.sleep(0.005)
        return entry(each)

    monkeypatch.setattr(tree_module, "_entry", slow)
    monkeypatch.setattr(tree_module, "_LISTED_AT_ONCE", 10)
    listing = asyncio.create_task(Tree(root).entries("large"))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(lambda: None)
    assert len(looked_at) < 200
    assert len(await listing) == 200


def test_a_digest_is_of_the_version_that_it_is_asked_for(root):
    tree = Tree(root)
    file = root / "file"
    file.write_bytes(b"one")

    def digest(version):
        return asyncio.run(tree.digest(FileHash(number, version.size), version, lambda: True))

    number = tree.open("file")
    first = Version.of(os.fstat(number))
    assert digest(first) == hashlib.sha256(b"one").digest()
    assert list(tree._digests) == [first]
    with file.open("r+b") as writer:
        writer.write(b"two")
    second = Version.of(os.fstat(number))
    assert str(second) != str(first)
    assert digest(second) == hashlib.sha256(b"two").digest()
    os.close(number)


@pytest.mark.parametrize("whose", ["served", "sent"])
def test_a_file_that_is_changed_in_memory_has_changed(root, monkeypatch, whose):
    """A program's mapped file came as a mix of two versions: its times told nothing for half a minute."""
    path, size, preadv = root / "mapped", 2 * tree_module._READ_AT_ONCE, os.preadv
    path.write_bytes(bytes(size))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        times = []
        for _ in range(2):
            mapped[0] = mapped[-1] = 1
            times.append(path.stat().st_mtime_ns)
            os.fdatasync(file.fileno())
        if times[0] == times[1]:
            pytest.skip("this file system has no times for what is changed in memory")
        mapped[0] = mapped[-1] = 1  # from now on the kernel does not know of changes there
        tree, body = Tree(root), UploadBody(path)
        number = tree.open("mapped")

        def between(*given):
            if given[2]:
                mapped[0] = mapped[-1] = 2
            return preadv(*given)

        monkeypatch.setattr(os, "preadv", between)
        try:
            if whose == "served":
                hashing = FileHash(number, size)
                assert asyncio.run(tree.digest(hashing, body.version, lambda: True)) is None
                assert not tree._digests
            else:
                with pytest.raises(TransferError, match="changed while it was sent"):
                    asyncio.run(body.digest())
        finally:
            os.close(number)
            body.close()


@pytest.mark.parametrize("age_s", [0, 7200])
def test_only_a_file_that_changed_lately_waits_for_the_disk(root, monkeypatch, age_s):
    synced, now_s = [], time.time()
    monkeypatch.setattr(os, "fdatasync", synced.append)
    monkeypatch.setattr(time, "time", lambda: now_s + age_s)
    number = Tree(root).open("music/old/song ü")
    assert FileHash(number, 5).go_on(lambda: True) == hashlib.sha256(b"la la").digest()
    os.close(number)
    assert synced == ([] if age_s else [number])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_clear_error(data):
    async def exactly(size):
        nonlocal data
        part, data = data[:size], data[size:]
        return part.ljust(size, b"x")

    with contextlib.suppress(TransferError):
        assert isinstance(asyncio.run(read(Answer, exactly)), Answer)


def test_a_folder_is_listed_with_all_but_half_files(root):
    half, note, draft = files_of(root / "half")
    for each in (half, note, draft):
        each.write_bytes(b"1")
    own = ["own.part", "own.part.json", half.name.replace("half", "own")]
    for name in own:
        (root / name).write_bytes(b"1")
    odd = os.fsdecode(b"\xff")
    (root / odd).write_bytes(b"no text")
    tree = Tree(root)
    found = {path_of(each.name): each for each in asyncio.run(tree.entries(""))}
    assert found.keys() == {"music", "link", "inside", "out", "pipe", *own, odd}
    assert {found[name].kind for name in ("link", "inside", "out")} == {"link"}
    assert found["pipe"].kind == "other"
    assert (found["music"].kind, found[odd].kind, found[odd].size) == ("folder", "file", 7)
    for name in (found[odd].name, *own):
        os.close(tree.open(name))
    for each in (half, note, draft):  # another client's unfinished upload
        with pytest.raises(TransferError, match="there is no file"):
            tree.open(each.name)
    assert [each.name for each in asyncio.run(tree.entries("/music/./old/"))] == ["song ü"]
    for path in ("none", "..", "music/../..", "out", "link", "own.part", "a\0b", "music\0"):
        with pytest.raises(TransferError, match="there is no folder"):
            asyncio.run(tree.entries(path))


@given(st.binary(min_size=1, max_size=255).filter(lambda name: not {0, 47} & set(name)))
def test_every_name_of_a_file_system_is_text_and_comes_back(name):
    text = path_text(os.fsdecode(name))
    assert msgspec.json.decode(msgspec.json.encode(text)) == text
    assert os.fsencode(path_of(text)) == name


@pytest.mark.parametrize("seconds", [-1e300, -62_135_596_801.0, 1e12, 1e300])
def test_odd_times_are_told_as_the_nearest_ones(seconds):
    answer = Answer(1, 0, "v", unix_time(seconds))
    assert decode(msgspec.json.encode(answer), Answer) == answer
    assert render.local_time(answer.modified_unix_s).year in (1, 9999)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a\0", "\x002f", "\x002e", "\0fg", "x" * 766]
)
def test_a_listed_name_cannot_lead_elsewhere(name):
    data = msgspec.json.encode([{"name": name}])
    with pytest.raises(TransferError, match="the peer sent"):
        decode(data, list[Entry])
