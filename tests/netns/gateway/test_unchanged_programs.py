"""Programs that know nothing of cedos, through the gateway: what they began goes on."""

import json
import os
import socket
import sys
import threading
import time

import pytest

from tests.netns.gateway.conftest import GATEWAY, ORIGIN
from tests.netns.gateway.deaths import (
    MOST_STALL_S,
    SIZE,
    renumbered,
    silent,
    unplugged,
    whole_in_spite_of,
)

PROXY = "socks5h://127.0.0.1:1080"


@pytest.mark.parametrize("dies", [silent, unplugged, renumbered])
def test_a_download_by_curl_goes_on(dies, laptop, tmp_path):
    laptop.world.shape("20mbit")
    folder = tmp_path / "served"
    folder.mkdir()
    data = os.urandom(SIZE)
    (folder / "file").write_bytes(data)
    laptop.serve(folder)
    laptop.forward("-D", "1080", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    whole_in_spite_of(dies, laptop, curl, data)


ECHO = f"""
import socket
with socket.create_server(("{ORIGIN}", 7777)) as server:
    print("ready", flush=True)
    one = server.accept()[0]
    while data := one.recv(4096):
        one.sendall(data)
"""


TYPED = """
import socket, sys
with socket.create_connection(("127.0.0.1", 7777)) as one, one.makefile("rb") as answers:
    for line in sys.stdin.buffer:
        one.sendall(line)
        print(answers.readline().decode(), end="", flush=True)
"""


def test_a_shells_words_are_answered_while_its_network_dies(laptop):
    """Type a line each 50 ms, as in SSH."""
    import subprocess

    server = laptop.far.popen(sys.executable, "-c", ECHO, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"ready\n"
    laptop.forward("-L", f"7777:{ORIGIN}:7777")
    typed = laptop.near.popen(
        *(sys.executable, "-c", TYPED), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    took_s = []
    try:
        for number in range(60):
            if number == 20:
                silent(laptop)
            began_s = time.monotonic()
            typed.stdin.write(b"%4d\n" % number)
            typed.stdin.flush()
            assert typed.stdout.readline() == b"%4d\n" % number
            took_s.append(time.monotonic() - began_s)
            time.sleep(0.05)
        typed.stdin.close()
        assert typed.wait(10) == 0
    finally:
        for process in (typed, server):
            process.kill()
            process.wait()
            process.stdout.close()
    print(f"longest answer {1e3 * max(took_s[1:]):.0f} ms")
    assert max(took_s[1:]) < MOST_STALL_S


def test_nothing_is_said_over_the_phone_while_nothing_is_asked(laptop):
    laptop.forward()
    assert laptop.curl("-x", PROXY, "-m", "5", f"http://{ORIGIN}:1/").wait(10) != 0

    def sent():
        (link,) = json.loads(laptop.near.ip("-s", "-j", "link", "show", "lte0"))
        return int(link["stats64"]["tx"]["bytes"])

    time.sleep(1.5)
    before = sent()
    time.sleep(8)
    # (The kernel's own neighbour discovery may come in between.)
    assert sent() - before < 500


def test_without_a_daemon_the_phone_carries_only_what_wifi_cannot(laptop, tmp_path):
    laptop.world.shape("40mbit")
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(4_000_000))
    laptop.serve(folder)
    laptop.forward()

    def carried():
        (link,) = json.loads(laptop.near.ip("-s", "-j", "link", "show", "lte0"))
        return int(link["stats64"]["tx"]["bytes"]) + int(link["stats64"]["rx"]["bytes"])

    before = carried()
    for _ in range(2):
        curl = laptop.curl("-x", PROXY, "-o", "/dev/null", f"http://{ORIGIN}:8080/file")
        assert curl.wait(20) == 0
    assert carried() - before < 400_000
    silent(laptop)
    curl = laptop.curl("-x", PROXY, "-o", "/dev/null", f"http://{ORIGIN}:8080/file")
    assert curl.wait(20) == 0
    assert carried() - before > 4_000_000


def test_strangers_at_the_gateways_port_change_nothing(laptop, tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "small").write_bytes(b"small")
    laptop.serve(folder)
    laptop.forward("--fail", "closed")
    over = threading.Event()

    def shout():
        with laptop.near.entered():
            while not over.is_set():
                try:
                    with socket.create_connection((GATEWAY, 7009), timeout=1) as one:
                        one.sendall(os.urandom(300))
                except OSError:
                    pass

    thread = threading.Thread(target=shout)
    thread.start()
    try:
        for _ in range(10):
            small = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/small")
            assert small.communicate(timeout=20)[0] == b"small"
    finally:
        over.set()
        thread.join()
    assert laptop.gateway.poll() is None
