"""Programs that were written for `socket` run over sessions: http.client, http.server, files."""

import errno
import http.client
import http.server
import json
import os
import random
import socket as bsd
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cedos.session.known_hosts import KnownHosts, KnownServer
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets import blocking

BODY = random.Random(5).randbytes(3_000_000)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/until-the-end":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"got": len(text), "right": text == BODY}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_arguments: Any) -> None:
        return


class Server(http.server.ThreadingHTTPServer):
    """The standard library's server, unchanged but for where its socket comes from."""

    def __init__(self, key: KeyPair) -> None:
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.socket.close()
        made: Any = blocking.create_server(("127.0.0.1", 0), key=key)
        self.socket = made
        self.server_address = made.getsockname()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Of a web server over sessions, which is in the user's file as `web`."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = KeyPair(os.urandom(32))
    server = Server(key)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,))
    serving.start()
    host, port = server.server_address[:2]
    KnownHosts().save(KnownServer(str(host), port, key.public), "web")
    yield str(host), port
    server.shutdown()
    serving.join()
    server.server_close()


def test_http_client_asks_as_it_always_does(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bsd, "create_connection", blocking.create_connection)
    client = http.client.HTTPConnection(*address, timeout=20)
    for _ in range(2):  # the second one over the same session
        client.request("GET", "/")
        answer = client.getresponse()
        assert answer.status == 200
        assert answer.read() == BODY
    client.request("POST", "/", body=BODY)
    assert json.loads(client.getresponse().read()) == {"got": len(BODY), "right": True}
    client.request("GET", "/until-the-end")  # the client closes its socket, and reads on
    answer = client.getresponse()
    parts = []
    while part := answer.read(50_000):
        parts.append(part)
    assert b"".join(parts) == BODY
    client.close()


def test_a_name_from_the_file_and_a_wrong_one(address: tuple[str, int]) -> None:
    with blocking.create_connection("web") as made:
        assert made.getpeername() == address
        assert made.getsockname()[0] == "127.0.0.1"
        assert made.getsockname()[1] not in (0, address[1])
    with blocking.create_connection(("web", address[1]), timeout=5) as made:
        assert made.gettimeout() == made.timeout == 5
    with pytest.raises(OSError, match="no key is known") as unknown:
        blocking.create_connection("wbe")
    assert unknown.value.errno == errno.EINVAL
    alone = blocking.socket()
    assert alone.connect_ex(("127.0.0.1", 9)) == errno.EINVAL
    alone.close()
    with pytest.raises(OSError, match="SO_NETWORKS"):
        blocking.create_connection(address, source_address=("127.0.0.1", 0))


@pytest.fixture
def ends() -> Iterator[tuple[blocking.socket, blocking.socket]]:
    key = KeyPair(os.urandom(32))
    with blocking.create_server(("127.0.0.1", 0), key=key) as listening:
        near = blocking.create_connection(
            listening.getsockname(), server_key=key.public, key=KeyPair(os.urandom(32))
        )
        far, peer = listening.accept()
        assert far.getpeername() == peer == near.getsockname()
        yield near, far
        near.close()
        far.close()


def test_flags(ends: tuple[blocking.socket, blocking.socket]) -> None:
    near, far = ends
    with pytest.raises(BlockingIOError) as empty:
        far.recv(10, blocking.MSG_DONTWAIT)
    assert empty.value.errno == errno.EAGAIN
    near.sendall(b"hello ", bsd.MSG_NOSIGNAL)
    assert far.recv(3, blocking.MSG_PEEK) == b"hel"
    assert far.recv(100, blocking.MSG_PEEK) == b"hello "
    sending = threading.Timer(0.1, near.sendmsg, [[b"wor", bytearray(b"ld")]])
    sending.start()
    assert far.recv(11, blocking.MSG_WAITALL) == b"hello world"
    sending.join()
    big = random.Random(1).randbytes(5_000_000)
    sending_all = threading.Thread(target=near.sendall, args=(big,))
    sending_all.start()
    assert far.recv(len(big), blocking.MSG_WAITALL) == big  # more than is read ahead
    sending_all.join()
    for call in (lambda: far.recv(1, bsd.MSG_OOB), lambda: near.send(b"x", bsd.MSG_OOB)):
        with pytest.raises(OSError, match=f"Errno {errno.EOPNOTSUPP}"):
            call()
    near.sendall(b"the end")
    near.shutdown(blocking.SHUT_WR)
    assert far.recv(100, blocking.MSG_WAITALL) == b"the end"
    assert far.recv(100, blocking.MSG_WAITALL) == b""
    assert far.recvfrom(1) == (b"", far.getpeername())


def test_files(ends: tuple[blocking.socket, blocking.socket], tmp_path: Path) -> None:
    near, far = ends
    lines = far.makefile("r", encoding="utf-8", newline="\n")
    with near.makefile("rwb", 0) as raw:
        raw.write("eins\nzwölf\n".encode())
    assert lines.readline() == "eins\n"
    assert lines.readline() == "zwölf\n"
    answering = far.makefile("wb")
    far.close()  # its files are still open
    answering.write(b"still here")
    answering.flush()
    assert near.recv(100) == b"still here"
    (tmp_path / "sent").write_bytes(BODY)
    with (tmp_path / "sent").open("rb") as file:
        sending = threading.Thread(target=near.sendfile, args=(file, 10, 1_000_000))
        sending.start()
        assert lines.buffer.read(1_000_000) == BODY[10:1_000_010]
        sending.join()
    answering.close()
    lines.close()  # now it ends
    assert near.recv(1) == b""
    with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
        far.recv(1)


def test_options_that_every_program_sets(ends: tuple[blocking.socket, blocking.socket]) -> None:
    near, _ = ends
    for level, option in (
        (bsd.IPPROTO_TCP, bsd.TCP_NODELAY),
        (bsd.SOL_SOCKET, bsd.SO_KEEPALIVE),
        (bsd.SOL_SOCKET, bsd.SO_REUSEADDR),
        (bsd.IPPROTO_TCP, bsd.TCP_KEEPIDLE),
    ):
        near.setsockopt(level, option, 1)
        assert near.getsockopt(level, option) == 1
    assert near.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR) == 0
    assert near.type == bsd.SOCK_STREAM
    with pytest.raises(OSError, match="SOCK_STREAM"):
        blocking.socket(bsd.AF_INET, bsd.SOCK_DGRAM)


def test_time_outs(ends: tuple[blocking.socket, blocking.socket]) -> None:
    near, far = ends
    near.settimeout(0.2)
    with pytest.raises(TimeoutError):
        near.recv(1)
    with near.makefile("rb") as file, pytest.raises(TimeoutError):
        file.read(1)
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        near.sendall(bytes(64_000_000))  # nobody reads: the windows are full some time
    assert time.monotonic() - began_s < 5
    assert near.timeout == 0.2
    far.shutdown(blocking.SHUT_RD)
    while far.recv(1 << 20):
        pass
