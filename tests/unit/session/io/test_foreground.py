"""Foreground data that holds background data back, also of other processes."""

import asyncio
import os
import socket
import subprocess
import sys

from cedos import session
from cedos.model import Bulk, Label, Urgency
from cedos.session.io.driver import Foreground
from cedos.session.protocol.crypto import KeyPair

OTHER = """
import sys, pathlib
from cedos.session.io.driver import Foreground
mine = Foreground(pathlib.Path(sys.argv[1]))
mine.on_sent(7)
mine.on_sent(8)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_two_in_one_process_see_each_other(tmp_path):
    one, other = Foreground(tmp_path), Foreground(tmp_path)
    one.on_sent(3)
    other.on_sent(5)
    assert [other.idle_s(each) < 60 for each in (3, 4, 5)] == [True, False, True]
    assert [one.idle_s(each) < 60 for each in (3, 4, 5)] == [True, False, True]
    one.close()
    other.close()


def test_another_process_and_its_death(tmp_path):
    mine = Foreground(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        assert mine.idle_s(8) < 60
        assert mine.idle_s(9) == float("inf")
        process.kill()
    # Its slots are free again: the next two claims get them.
    mine.on_sent(1)
    mine.on_sent(2)
    third = Foreground(tmp_path)
    assert third.idle_s(2) < 60
    assert third.idle_s(8) == float("inf")
    mine.close()
    third.close()


def test_what_cannot_be_mapped_is_not_shared(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert not Foreground(blocked / "below").shared
    link = tmp_path / "run"
    link.mkdir()
    (link / "foreground").symlink_to(tmp_path / "elsewhere")
    assert not Foreground(link).shared
    assert not (tmp_path / "elsewhere").exists()


BULK = Label(Urgency.BACKGROUND, Bulk.LARGE)
LOOPBACK = socket.if_nametoindex("lo")


async def test_what_one_program_sends_another_makes_room_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CEDOS_RUNTIME_DIR", str(tmp_path))
    other = Foreground(tmp_path)  # has a slot of its own, as another process would

    key = KeyPair(os.urandom(32))
    async with (
        asyncio.timeout(100),
        await session.listen(("127.0.0.1", 0), key=key) as listener,
    ):
        near = await session.connect(
            listener.address, server_key=key.public, key=KeyPair(os.urandom(32))
        )
        far = await listener.accept()
        (path,) = near.flow.paths.values()

        async def background():
            await asyncio.sleep(0.02)  # the estimator polls every 10 ms
            await near.send(bytes(1000), BULK)
            assert await far.receive() is not None

        await background()
        assert path.facts.foreground_at_s == float("-inf")
        assert other.idle_s(LOOPBACK) == float("inf")

        other.on_sent(LOOPBACK)
        began_s = asyncio.get_running_loop().time()
        await background()
        assert abs(path.facts.foreground_at_s - began_s) < 60

        await asyncio.sleep(0.02)
        await near.send(b"urgent")
        await asyncio.sleep(0.02)
        assert other.idle_s(LOOPBACK) < 60
        near.abort()
        await near.drained()
    other.close()
