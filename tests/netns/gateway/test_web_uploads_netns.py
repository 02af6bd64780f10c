"""Uploads of a laptop that walks away, to a real nginx with DAV: it sees one request."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from kit.nginx import nginx
from kit.waiting import wait_until

from tests.netns.gateway.conftest import ORIGIN

PUT = str(Path(sys.executable).with_name("cedos-put"))
SIZE = 4_000_000
# An origin less patient than most: who is silent for 1 s is given up.
SERVER = """
server {{
  listen {origin}:80; root {folder}/www; dav_methods PUT; create_full_put_path on;
  client_body_timeout 1s;
  location /small/ {{ client_max_body_size 1m; }}
}}
"""


def serve(laptop):
    folder = laptop.folder / "nginx"
    (folder / "www").mkdir(parents=True)
    server = SERVER.format(folder=folder, origin=ORIGIN)
    log = "$status $request_method $request_length $request_time"
    laptop.keep(nginx(folder, server, log=log, where=laptop.far))
    return folder


def requests(folder):
    log = folder / "access.log"
    return [" ".join(line.split()[:2]) for line in log.read_text().splitlines()]


def away(laptop, seconds):
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "down")
    time.sleep(seconds)
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "up")
        laptop.world.route(name)


def put(laptop, source, url, *more):
    process = laptop.near.popen(
        *(PUT, "--via", "gateway", "--json", *more, str(source), url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=laptop.environment("laptop"),
    )
    laptop.keep(process)
    return process


def test_pieces_become_one_request(laptop, tmp_path):
    folder = serve(laptop)
    laptop.world.shape("8mbit")
    source = tmp_path / "photo.jpg"
    source.write_bytes(os.urandom(SIZE))
    url = f"http://{ORIGIN}/2026/"
    kept = laptop.folder / "server" / "cache"
    first = put(laptop, source, url)

    def have():
        return sum(each.stat().st_size for each in kept.rglob("*.part"))

    wait_until(lambda: have() > 500_000)
    first.kill()  # the program, then the gateway, then both networks
    first.wait()
    laptop.gateway.kill()
    laptop.gateway.wait()
    had = have()
    assert 0 < had < SIZE
    laptop.start_gateway_again()
    second = put(laptop, source, url)
    wait_until(lambda: have() > had)
    away(laptop, 2.0)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    (fact,) = json.loads(out)["files"]
    assert fact["status"] == 201
    assert fact["here_before_bytes"] >= had
    assert (folder / "www" / "2026" / "photo.jpg").read_bytes() == source.read_bytes()
    assert requests(folder) == ["201 PUT"]
    taken_s = float((folder / "access.log").read_text().split()[3])
    assert taken_s < 1.0, "it came at the laptop's speed"
    assert have() == 0
    when = time.strftime("%H:%M", time.localtime(time.time() + 300))
    waiting = put(laptop, source, f"http://{ORIGIN}/later/", "--by", when)
    out, err = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, err
    assert json.loads(out)["files"][0]["status"] == 201
    # What the origin refuses comes back, too.
    third = put(laptop, source, f"http://{ORIGIN}/small/")
    out, err = third.communicate(timeout=60)
    assert third.returncode == 1
    assert "the web server answers 413 Request Entity Too Large" in err
