"""`cedos-get --via gateway` on a laptop that walks away: the gateway goes on, and nothing comes twice."""

import os
import subprocess
import sys
import time
from pathlib import Path

from kit.nginx import certificate, nginx
from kit.waiting import wait_until

from cedos.apps.files.partial import files_of
from tests.netns.gateway.conftest import ORIGIN

GET = str(Path(sys.executable).with_name("cedos-get"))
SIZE = 6_000_000
SERVER = """
server {{
  listen {origin}:80; listen {origin}:443 ssl;
  ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
  root {folder}/www; limit_rate 3m;
}}
"""


def serve(laptop, data):
    """Over TLS by nginx, 3 MB a second, as /file; the folder with its log."""
    folder = laptop.folder / "nginx"
    (folder / "www").mkdir(parents=True)
    (folder / "www" / "file").write_bytes(data)
    os.utime(folder / "www" / "file", (1e9, 1e9))
    certificate(folder, ORIGIN)
    laptop.keep(nginx(folder, SERVER.format(folder=folder, origin=ORIGIN), where=laptop.far))
    return folder


def get(laptop, target):
    process = laptop.near.popen(
        *(GET, "--via", "gateway", "--json", "-o", str(target), f"https://{ORIGIN}/file"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=laptop.environment("laptop"),
    )
    laptop.keep(process)
    return process


def test_a_laptop_that_is_away_finds_at_the_gateway_what_it_asked_for(
    laptop, tmp_path, monkeypatch
):
    monkeypatch.setenv("SSL_CERT_FILE", str(laptop.folder / "nginx" / "cert.pem"))
    data = os.urandom(SIZE)
    served = serve(laptop, data)
    laptop.gateway.kill()
    laptop.gateway.wait()
    laptop.start_gateway_again()  # with the origin's certificate among those it trusts
    laptop.world.shape("8mbit")
    target = tmp_path / "got"
    getting = get(laptop, target)
    part = files_of(tmp_path / "got")[0]
    wait_until(lambda: part.exists() and part.stat().st_size > 500_000)
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "down")
    log = served / "access.log"
    wait_until(lambda: log.read_text() != "")  # nginx has sent all of it
    had = part.stat().st_size
    assert had < SIZE // 2
    assert log.read_text() == f"200 {SIZE}\n"
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "up")
        laptop.world.route(name)
    began_s = time.monotonic()
    _, err = getting.communicate(timeout=60)
    print(f"{SIZE - had} bytes in {time.monotonic() - began_s:.1f} s after it was back")
    assert getting.returncode == 0, err
    assert target.read_bytes() == data
    # What was kept answers once more, from another session, and without the origin.
    target.unlink()
    again = get(laptop, target)
    _, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    assert target.read_bytes() == data
    assert log.read_text() == f"200 {SIZE}\n"


def test_a_program_s_plain_request_survives_an_outage(laptop):
    """curl of plain http through the proxy: its connection goes on once a network is back."""
    data = os.urandom(SIZE)
    serve(laptop, data)
    laptop.world.shape("8mbit")
    laptop.forward("-D", "1080", "--fail", "closed")
    curl = laptop.curl("-x", "http://127.0.0.1:1080", f"http://{ORIGIN}/file")
    got = bytearray()
    while len(got) < 500_000:
        got += curl.stdout.read1(1 << 16)
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "down")
    time.sleep(2)
    for name in ("wlan0", "lte0"):
        laptop.near.ip("link", "set", name, "up")
        laptop.world.route(name)
    rest, err = curl.communicate(timeout=60)
    assert curl.returncode == 0, err
    assert got + rest == data


def test_apt_s_plain_requests_are_carried(laptop):
    serve(laptop, b"package" * 100_000)
    laptop.forward("-D", "1080", "--fail", "closed")
    words = ("-o", "Acquire::http::Proxy=http://127.0.0.1:1080", "-o", "APT::Sandbox::User=root")
    target = laptop.folder / "got"
    got = laptop.near.run(
        "/usr/lib/apt/apt-helper", *words, "download-file", f"http://{ORIGIN}/file", str(target)
    )
    assert got.returncode == 0, got.stderr
    assert target.read_bytes() == b"package" * 100_000
