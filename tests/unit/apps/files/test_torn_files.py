"""Programs that move files are killed, or refused by the disk, at each of their calls in turn."""

import asyncio
import errno
import mmap
import os
import random
import sys
import traceback

import pytest

from cedos.apps.files import server_link, web_getting
from cedos.apps.files.partial import when_free
from cedos.apps.files.putting import Putting, UploadBody
from cedos.apps.files.server_link import ServerLink
from cedos.apps.files.tree import Tree
from cedos.errors import CedosError
from cedos.kernel import own_file
from cedos.web import WebWay
from tests.unit.apps.files.test_getting_files import End, FileServer, World

CONTENT = random.Random(1).randbytes(300_000)
CALLS = (
    "open", "pread", "preadv", "pwrite", "write", "ftruncate", "link", "unlink", "rename", "replace",
    "mkdir", "fsync", "fdatasync", "fchmod", "utime", "lstat", "fstatvfs",
)  # fmt: skip
KILLED, REFUSED, FAILED = 77, 1, 2


def by_open_folders(folder):
    """Return a hook that ends a program which lets another user's link lead it elsewhere."""

    def on_event(event, arguments):
        if event not in ("open", "os.rename", "os.remove", "os.link", "os.chmod", "os.truncate"):
            return
        path = arguments[0]
        by_path = isinstance(path, str) and path.startswith(f"{folder}/here/")
        follows = False
        if (
            event == "open"
            and isinstance(path, str)
            and (path.startswith("/proc/self/fd/") or "/" not in path)
        ):
            follows = not arguments[2] & (os.O_NOFOLLOW | os.O_EXCL | os.O_DIRECTORY)
        if by_path or follows:
            print(f"{event} of {path} may follow a link", file=sys.stderr)
            os._exit(FAILED)

    return on_event


class Torn:
    """A program in a process of its own, with a fault at its `at`-th call; 0: none."""

    def __init__(self, at, fault):
        self.at, self.fault = at, fault
        self._counted = mmap.mmap(-1, 8)  # of both processes

    @property
    def count(self):
        return int.from_bytes(self._counted[:8])

    def run(self, program, folder):
        """Return its exit status."""
        sys.stdout.flush()
        if child := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = FAILED
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            for name in CALLS:
                setattr(os, name, self._torn(getattr(os, name)))
            own_file.rename_new = self._torn(own_file.rename_new)
            sys.addaudithook(by_open_folders(folder))
            asyncio.run(program(folder))
            status = 0
        except CedosError:
            status = REFUSED
        except BaseException:
            traceback.print_exc()  # for whom the test fails
        finally:
            os._exit(status)

    def _torn(self, call):
        def torn(*arguments, **more):
            if str(arguments[0]).endswith((".py", ".pyc")):  # it is imported
                return call(*arguments, **more)
            self._counted[:8] = (self.count + 1).to_bytes(8)
            if self.count == self.at and self.fault == "killed":
                os._exit(KILLED)
            if self.count == self.at and self.fault != "killed":
                raise OSError(self.fault, os.strerror(self.fault))
            return call(*arguments, **more)

        return torn


async def get(folder):
    await World(folder / "served", [100_000]).fetch(folder / "here" / "file")


async def put(folder):
    breaks = [60_000]
    async with FileServer(Tree(folder / "here")) as server:

        async def connect():
            client = server.session(server=End(breaks.pop() if breaks else None))
            client.wait_acknowledged = nothing
            return client

        async def nothing(*_): ...

        one = Putting(UploadBody(folder / "served" / "file"), "file", ServerLink(connect), 5.0)
        try:
            await one.run()
        finally:
            one.close()


async def fetch(folder):
    body = (folder / "served" / "file").read_bytes()
    cuts = [100_000]

    async def answer(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        had = int(head.partition("bytes=")[2].partition("-")[0] or 0)
        tag = f'"{hash(body)}"'
        if had and tag in head:
            writer.write(b"HTTP/1.1 206 Partial Content\r\nContent-Range: ")
            writer.write(f"bytes {had}-{len(body) - 1}/{len(body)}\r\n".encode())
        else:
            had = 0
            writer.write(b"HTTP/1.1 200 OK\r\n")
        writer.write(f"ETag: {tag}\r\nContent-Length: {len(body) - had}\r\n\r\n".encode())
        writer.write(body[had:][: cuts.pop() if cuts else None])
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for attempt in range(4):
            part = await when_free(folder / "here" / "file", "episode")
            try:
                await web_getting.fetch(url, part, WebWay())
                return
            except CedosError:
                if attempt == 3 or not isinstance(sys.exc_info()[1], web_getting.WebError):
                    raise
            finally:
                part.close()


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", ["killed", errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("program", [get, put, fetch])
def test_whatever_fails_the_next_run_has_the_file_and_leaves_nothing(
    program, fault, every, tmp_path, monkeypatch
):
    """A program that was killed at the end of a file left its part, under a second name, for ever."""
    monkeypatch.setattr(server_link, "_PAUSES_S", (0.0,))

    def run(folder, at):
        torn = Torn(at, fault)
        status = torn.run(program, folder)
        assert status in (0, KILLED, REFUSED), f"no words tell of the error of call {at}"
        return status, torn.count

    def prepared(at):
        folder = tmp_path / str(at)
        (folder / "served").mkdir(parents=True)
        (folder / "here").mkdir()
        (folder / "served" / "file").write_bytes(CONTENT)
        return folder

    _, calls = run(prepared(0), 0)
    assert 20 < calls < 100
    for at in {*range(1, calls + 1, every), *range(calls - 9, calls + 1)}:
        folder = prepared(at)
        there = folder / "here" / "file"
        status, _ = run(folder, at)
        if status != 0 and not there.exists():
            status, _ = run(folder, 0)
            assert status == 0, at
        assert there.read_bytes() == CONTENT, at
        assert list(there.parent.iterdir()) == [there], at
