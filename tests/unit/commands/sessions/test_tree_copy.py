"""A copy of a server's folder: what a hostile server, or another file system, makes of it."""

import asyncio
import contextlib
import json
import os
import sys
import tracemalloc
from pathlib import Path

import pytest

from cedos.apps.files.messages import Entry, path_of
from cedos.apps.files.partial import OpenFolder, Partial
from cedos.commands.console import render, tree_copy
from cedos.commands.console.tree_copy import TreeCopy
from cedos.commands.sessions import get
from cedos.errors import TransferError
from cedos.plain_text import plain_json


class Copied:
    """A copy of what `listed` says; `files` are written as they come."""

    def __init__(self, here, monkeypatch, listed, path=""):
        self.asked = []
        self.missing = {}
        self.most_waiting = 0

        async def entries(_link, folder, _patience_s):
            self.asked.append(folder)
            self.most_waiting = max(self.most_waiting, len(copy._waiting))
            return listed(folder)

        def missing(name, target, error):
            self.missing[name] = str(error)

        async def run():
            async for _, target, _ in copy.files():
                if not target.exists():
                    target.write_bytes(b"")

        monkeypatch.setattr(tree_copy, "entries", entries)
        copy = TreeCopy(None, path, here, 1.0, dot_files=False, missing=missing)
        asyncio.run(run())


def folders(count):
    return [Entry(f"{number}", "folder") for number in range(count)]


def test_folders_without_end_are_left_out_with_a_word(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_copy, "_MOST_WAITING", 20)
    monkeypatch.setattr(tree_copy, "_MOST_ENTRIES", 600)
    copied = Copied(tmp_path / "got", monkeypatch, lambda _: folders(50))
    assert copied.most_waiting <= 20
    assert len(copied.asked) == 13
    assert sum(each.is_dir() for each in tmp_path.rglob("*")) == 1 + 20 + 11, "none for the others"
    assert copied.missing[""].startswith("30 of its folders are left out: 20 are waiting")
    assert copied.missing[copied.asked[-1]].startswith("the copy ends here: more than 600 files")


def test_a_tree_is_deep_but_not_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tree_copy, "_DEEPEST", 300)
    copied = Copied(tmp_path / "got", monkeypatch, lambda _: [Entry("d", "folder"), Entry("file")])
    assert len(copied.asked) == 301
    assert copied.missing == {"d/" * 300 + "d": "more than 300 folders deep"}
    assert (tmp_path / "got" / ("d/" * 300) / "file").exists()


def test_one_folder_that_is_refused_does_not_end_the_copy(tmp_path, monkeypatch):
    def listed(folder):
        if folder == "a/":
            raise TransferError("the server says: there is no folder 'a'")
        return [Entry("file")] if folder else [Entry("a", "folder"), Entry("b", "folder")]

    copied = Copied(tmp_path / "got", monkeypatch, listed)
    assert copied.missing == {"a/": "the server says: there is no folder 'a'"}
    assert (tmp_path / "got/b/file").exists()


def test_a_part_is_no_file(tmp_path, monkeypatch):
    name = "x.0123456789abcdef.part.json"
    copied = Copied(tmp_path / "got", monkeypatch, lambda _: [Entry(name)])
    assert copied.missing == {name: "has the name of a file that is not whole"}


@pytest.mark.parametrize(
    ("one", "other"),
    [("A", "a"), ("\u00e9", "e\u0301"), ("stra\u00dfe", "STRASSE"), ("name", "name. ")],
)
def test_names_that_are_one_file_here_are_told(tmp_path, monkeypatch, one, other):
    """A second name of the same file stands for a file system that does not tell the two apart."""
    got = tmp_path / "got"
    got.mkdir()
    (got / one).write_bytes(b"")
    os.link(got / one, got / other)
    names = sorted([Entry(one), Entry(other), Entry("b")], key=lambda each: each.name)
    copied = Copied(got, monkeypatch, lambda _: names)
    first, second = sorted([one, other])
    assert copied.missing == {
        second: f"is {first} here: this file system does not tell the two names apart"
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
@pytest.mark.parametrize("laid", ["got", "got/docs"])
def test_a_link_to_a_folder_that_another_user_laid_is_not_followed(laid, tmp_path, monkeypatch):
    home, link = tmp_path / "home", tmp_path / laid
    home.mkdir()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(home)
    os.lchown(link, 4711, 4711)

    def listed(folder):
        return [Entry("docs", "folder")] if not folder else [Entry(".profile")]

    with contextlib.suppress(TransferError):
        Copied(tmp_path / "got", monkeypatch, listed)
    assert list(home.iterdir()) == []


def test_a_folder_that_is_replaced_meanwhile_leads_nowhere(tmp_path, monkeypatch):
    """A user who could write beside the copy put a link there: files came where that led."""
    here, private = tmp_path / "got", tmp_path / "private"
    private.mkdir()

    async def entries(_link, folder, _patience_s):
        return [Entry("file")] if folder else [Entry("docs", "folder"), Entry("more", "folder")]

    async def run():
        copy = TreeCopy(None, "", here, 1.0, dot_files=False, missing=print)
        async for _, target, _ in copy.files():
            partial = Partial(target, "server", copy.top)
            if here.is_symlink() is False:
                here.rename(tmp_path / "away")
                here.symlink_to(private)
            partial.begin(0, "v", 1)
            partial.write(b"x")
            partial.finish(0.0)
            partial.close()

    monkeypatch.setattr(tree_copy, "entries", entries)
    asyncio.run(run())
    assert list(private.iterdir()) == []
    found = [each for each in (tmp_path / "away").rglob("*") if each.is_file()]
    assert [each.name for each in found] == ["file"] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a link to another user")
def test_own_links_in_a_copy_are_followed_and_those_of_others_are_not(tmp_path):
    (tmp_path / "got").mkdir()
    (tmp_path / "disk").mkdir()
    for name, owner in (("mine", 0), ("others", 4711)):
        (tmp_path / "got" / name).symlink_to("../disk")
        os.lchown(tmp_path / "got" / name, owner, owner)
    top = OpenFolder.of(tmp_path / "got")
    Partial(tmp_path / "got" / "mine" / "file", "server", top).close()
    with pytest.raises(TransferError, match="is a link of another user, which is not followed"):
        Partial(tmp_path / "got" / "others" / "file", "server", top)
    os.close(top.number)


@pytest.mark.parametrize("name", ["\x002essh", "\x002Essh", "\x00aessh", "\x00c0\x00aessh"])
def test_no_coding_of_a_name_hides_its_dot(name):
    with contextlib.suppress(ValueError):
        assert not path_of(name).startswith(".")


@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_come_is_told_a_thousand_times_and_kept_nowhere(tmp_path, monkeypatch, as_json):
    """200,000 links below a long path took 23 GB of memory, and 0.7 GB on standard error."""
    out, said = (tmp_path / "out").open("w"), (tmp_path / "said").open("w")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", said)
    run = get._Run(False, True, False, True, as_json, None)
    tracemalloc.start()
    for number in range(3_000):
        run.report_failure("s/" + "d/" * 2_000 + f"{number}", Path("d"), TransferError("is a link"))
    assert tracemalloc.get_traced_memory()[0] < 500_000
    tracemalloc.stop()
    run.end()
    out.close()
    said.close()
    lines = (tmp_path / "said").read_text().splitlines()
    assert (len(lines), lines[-1]) == (1_001, "cedos-get: 2000 more failed, and are not listed")
    assert run.status == 1
    if as_json:
        told = json.loads((tmp_path / "out").read_text())
        assert (len(told["files"]), told["errors_left_out"]) == (1_000, 2_000)
        assert told["files"][999]["from"].endswith("/999")


def test_files_are_json_as_they_come(capsys):
    for facts in ([], [{"path": "a\udc80", "bytes": 1}], [{"path": "b"}, {"path": "c", "in": [1]}]):
        files = render.JsonFiles()
        for fact in facts:
            files.add(fact)
        files.end()
        assert capsys.readouterr().out == plain_json({"files": facts}, indent=2) + "\n"
