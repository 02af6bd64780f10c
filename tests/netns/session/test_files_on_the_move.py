"""Files that go on over changes of networks, by a deadline, and after a server was killed."""

import json
import os
import signal
import subprocess
import time

import pytest
from kit.served_file import PORT, ServedFile
from kit.waiting import wait_until

from cedos import session
from cedos.apps.files import messages
from cedos.apps.files.partial import files_of
from cedos.session import keys
from cedos.session.io.idle_sessions import RECORD_BYTES
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES
from cedos.session.protocol.idle_record import IDLE_BYTES, IdleRecord
from tests.netns.session.conftest import NETWORKS, SERVER

SIZE = 16_000_000


class Walk(ServedFile):
    def __init__(self, world, folder):
        self.world = world
        super().__init__(world.near, world.far, SERVER, folder, SIZE, os.environ)

    def more(self, n_bytes, client):
        """Waits until so many more bytes have come."""
        wanted, ends_s = self.have() + n_bytes, time.monotonic() + 60
        while self.have() < wanted:
            assert client.poll() is None, client.communicate()
            assert time.monotonic() < ends_s, f"stuck at {self.have()} bytes"
            time.sleep(0.005)


@pytest.fixture
def walk(world, tmp_path):
    walk = Walk(world, tmp_path)
    yield walk
    walk.close()


def test_a_walk_with_crashes(walk):
    world, step = walk.world, SIZE // 12
    world.shape("20mbit")
    server, client = walk.serve(), walk.get()
    walk.more(step, client)
    # The Wi-Fi gives another address.
    world.near.ip("address", "add", "10.9.1.77/24", "dev", "wlan0")
    world.near.ip("address", "del", "10.9.1.2/24", "dev", "wlan0")
    world.near.ip("address", "replace", "10.9.1.77/24", "dev", "wlan0")
    world.route("wlan0")
    walk.more(step, client)
    world.near.ip("link", "set", "lte0", "down")
    walk.more(step, client)
    client.send_signal(signal.SIGKILL)
    client.wait()
    # While nobody fetches, the Wi-Fi is lost and the phone comes back.
    world.near.ip("link", "set", "wlan0", "down")
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    client = walk.get()
    walk.more(step, client)
    server.kill()
    server.wait()
    time.sleep(0.5)
    server = walk.serve()
    walk.more(step, client)
    world.near.ip("link", "set", "wlan0", "up")
    world.route("wlan0")
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    assert walk.is_whole()
    assert '"sessions": 2' in out  # one ended with the server, none with a network
    server.terminate()
    assert server.wait(20) == 0


def test_both_networks_are_gone_for_a_while(walk):
    world = walk.world
    world.shape("20mbit")
    walk.serve()
    client = walk.get()
    walk.more(SIZE // 8, client)
    for name in ("wlan0", "lte0"):
        world.near.ip("link", "set", name, "down")
    time.sleep(1.5)
    before = walk.have()
    time.sleep(0.5)
    assert walk.have() == before < SIZE
    assert client.poll() is None
    world.near.ip("link", "set", "lte0", "up")
    world.route("lte0")
    out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    assert '"sessions": 1' in out
    assert walk.is_whole()


_ASKED_BYTES = 200_000
"""Handshakes and the question for the size go over any network."""


@pytest.fixture
def slow_walk(walk):
    walk.world.shape("20mbit")
    return walk


def fact(process):
    out, said = process.communicate(timeout=90)
    assert process.returncode == 0, said
    (found,) = json.loads(out)["files"]
    assert found["bytes"] == SIZE
    assert found["in_time"]
    return dict(found)


@pytest.mark.long
def test_without_wifi_the_metered_network_begins_in_time(slow_walk):
    slow_walk.world.near.ip("link", "set", "wlan0", "down")
    slow_walk.serve()
    found = fact(slow_walk.get("--by", "15s"))
    assert found["received_bytes"]["lte0"] >= SIZE


def test_an_upload_waits_for_wifi_though_its_program_is_killed(slow_walk):
    """Each of two runs sends a piece, and the server has one file."""
    slow_walk.world.near.ip("link", "set", "wlan0", "down")
    inbox, photo = slow_walk.folder / "inbox", slow_walk.folder / "photo"
    inbox.mkdir()
    photo.write_bytes((slow_walk.folder / "served" / "file").read_bytes())
    me = keys.to_text(keys.own_key(slow_walk.folder / "client.key").public)
    (slow_walk.folder / "friends.toml").write_text(f'[hosts]\nme = "{me}"\n')
    slow_walk.serve("--writable", "--clients", "friends.toml", "inbox")

    def put():
        return slow_walk.start(
            slow_walk.world.near, "put", "--json", "--by", "1h", "--key", slow_walk.key,
            "--own-key", "client.key", "photo", f"{SERVER}:{PORT}/in/",
        )  # fmt: skip

    process = put()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3.0)
    assert not list(inbox.rglob("photo*"))
    slow_walk.world.near.ip("link", "set", "wlan0", "up")
    slow_walk.world.route("wlan0")
    part, ends_s = files_of(inbox / "in" / "photo")[0], time.monotonic() + 60
    while not (part.exists() and part.stat().st_size > SIZE // 4):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends_s
        time.sleep(0.005)
    process.kill()
    process.wait()
    out, said = put().communicate(timeout=90)
    (found,) = json.loads(out)["files"]
    assert found["in_time"], said
    assert found["here_before_bytes"] > SIZE // 5
    assert SIZE - found["here_before_bytes"] <= found["sent_bytes"]["wlan0"] < SIZE
    assert found["sent_bytes"].get("lte0", 0) < _ASKED_BYTES
    assert slow_walk.is_whole(inbox / "in" / "photo")


RATE = "12mbit"  # each network: the file takes 5.6 s over both


async def asked(connection):
    """The size that the server tells of its file."""
    await connection.write(messages.pack(messages.FileRequest("file", head=True)))
    answer = await messages.read(messages.Answer, connection.read_exactly)
    return answer.size


async def connected(walk):
    """A session of another program of the same person's: it has the same key."""
    key = keys.own_key(walk.folder / "config" / "cedos" / "session.key")
    server_key = keys.from_text(walk.key)
    return await session.connect((SERVER, PORT), server_key=server_key, key=key, timeout_s=20)


def until(true, what, seconds=20.0):
    wait_until(true, seconds, describe=lambda: what)


def written_down(walk, connection):
    """Return whether the server's file has the session as it is after the first answer."""
    (file,) = (walk.folder / "state" / "cedos").glob("serve-*.sessions")
    text = file.read_bytes()
    start = text.find(connection.flow_id)
    record = text[start : start + RECORD_BYTES]
    if start < 0:
        return False
    idle = IdleRecord.from_bytes(record[CREDENTIALS_BYTES : CREDENTIALS_BYTES + IDLE_BYTES])
    return idle.stream_received == connection.written_bytes and idle.stream_sent > 0


def received(walk):
    """Bytes that came over each of the client's interfaces, headers and all."""
    found = json.loads(walk.world.near.ip("-j", "-s", "link", "show"))
    counts = {each["ifname"]: int(each["stats64"]["rx"]["bytes"]) for each in found}
    return {name: counts[name] for name in NETWORKS}


def grown(now, since):
    return {name: now[name] - since[name] for name in now}


def test_a_fetch_and_an_idle_session_go_on_with_the_next_server(walk):
    """The fetch ends well by itself, without what was here already; the idle session is the same."""
    world = walk.world
    world.shape(RATE)
    server = walk.serve()
    idle = world.client.do(connected(walk))
    assert world.client.do(asked(idle)) == SIZE
    until(lambda: len(idle.paths()) == len(NETWORKS), "the idle session has not both networks")
    until(lambda: written_down(walk, idle), "the idle session is not written down")

    begun = received(walk)
    client = walk.get()
    walk.more(SIZE // 2, client)
    server.kill()
    server.wait()
    killed = received(walk)
    assert walk.have() < SIZE * 3 // 4
    asking = world.client.start(asked(idle))  # while nobody listens
    walk.serve()
    assert asking.result(20) == SIZE
    out, errors = client.communicate(timeout=30)
    whole = received(walk)

    assert client.returncode == 0, errors
    assert walk.is_whole()
    assert '"sessions": 2' in out
    for part in (grown(killed, begun), grown(whole, killed)):
        assert min(part.values()) > SIZE // 16, part  # both networks, before and after
    assert sum(grown(whole, begun).values()) < 1.25 * SIZE  # with all of it again it were 1.5
    assert world.client.do(asked(idle), 20) == SIZE
    world.client.do(idle.close())
