"""Uploads whose web server speaks TLS: a real nginx with DAV, certified by an authority of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cedos.errors import TransferError

pytestmark = pytest.mark.anyio

Uploading = Any
NGINX = """
user root; daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
  log_format short '$status $request_method $scheme'; access_log {folder}/access.log short;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5; client_max_body_size 20m;
  server {{
    listen 127.0.0.1:{tls_port} ssl; root {folder}/www; dav_methods PUT; create_full_put_path on;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
  }}
  server {{ listen 127.0.0.1:{port}; return 308 https://127.0.0.1:{tls_port}$request_uri; }}
}}
"""


class TlsOrigin:
    """`requests` has a line of status, method and scheme for each; `authority` is its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "authority.pem"
        with (
            socket.create_server(("127.0.0.1", 0)) as one,
            socket.create_server(("127.0.0.1", 0)) as two,
        ):
            self.port, self.tls_port = one.getsockname()[1], two.getsockname()[1]
        (folder / "www").mkdir(parents=True)
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        self._openssl(
            *("req", "-x509", *kind, "-keyout", "authority.key", "-out", "authority.pem"),
            *("-subj", "/CN=an authority of its own"),
        )
        self._openssl("req", *kind[:-2], "-keyout", "key.pem", "-out", "asked", "-subj", "/CN=dav")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl(
            *("x509", "-req", "-in", "asked", "-CA", "authority.pem", "-CAkey", "authority.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", "names", "-out", "cert.pem"),
        )
        (folder / "nginx.conf").write_text(
            NGINX.format(folder=folder, port=self.port, tls_port=self.tls_port)
        )
        program = shutil.which("nginx") or "/usr/sbin/nginx"
        self._nginx = subprocess.Popen(
            [program, "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
        )
        deadline_s = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                assert time.monotonic() < deadline_s, (folder / "error.log").read_text()
                time.sleep(0.02)
            else:
                return

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, check=True, capture_output=True)

    def requests(self) -> list[str]:
        return (self.folder / "access.log").read_text().splitlines()

    def close(self) -> None:
        self._nginx.kill()
        self._nginx.wait(20)


@pytest.fixture
def dav(tmp_path: Path) -> Iterator[TlsOrigin]:
    made = TlsOrigin(tmp_path / "dav")
    yield made
    made.close()


async def test_it_arrives_where_the_gateways_host_trusts_the_authority(
    uploading: Uploading, dav: TlsOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    data = os.urandom(3_000_000)
    url = f"https://127.0.0.1:{dav.tls_port}/2026/photo.jpg"
    done = await uploading.put(uploading.file(data), "PUT", url=url)
    assert done.answer.status == 201
    assert (dav.folder / "www/2026/photo.jpg").read_bytes() == data
    assert dav.requests() == ["201 PUT https"]


async def test_a_stranger_gets_nothing_and_it_goes_on_once_he_is_trusted(
    uploading: Uploading, dav: TlsOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = uploading.file(os.urandom(300_000))
    url = f"https://127.0.0.1:{dav.tls_port}/photo.jpg"
    with pytest.raises(TransferError, match="its certificate is not one to trust"):
        await uploading.put(source, "PUT", url=url)
    assert dav.requests() == []
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    await uploading.begin_anew()
    done = await uploading.put(source, "PUT", url=url)
    assert done.answer.status == 201
    assert done.progress.began_bytes == 300_000, "it was at the gateway all the time"
    assert (dav.folder / "www/photo.jpg").read_bytes() == source.read_bytes()


async def test_a_server_that_sends_it_on_to_its_https(
    uploading: Uploading, dav: TlsOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(dav.authority))
    source = uploading.file(os.urandom(300_000))
    done = await uploading.put(source, "PUT", url=f"http://127.0.0.1:{dav.port}/photo.jpg")
    assert done.answer.status == 201
    assert (dav.folder / "www/photo.jpg").read_bytes() == source.read_bytes()
    assert dav.requests() == ["308 PUT http", "201 PUT https"]
