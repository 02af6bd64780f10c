"""Programs that were written for `socket` run over sessions: HTTP, mail, TLS, selectors, files."""

import datetime
import errno
import http.client
import http.server
import json
import os
import random
import selectors
import smtplib
import socket as bsd
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cedos.session import blocking, keys
from cedos.session.known_hosts import KnownHosts, KnownServer
from cedos.session.protocol.crypto import KeyPair

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


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of a server called `web`, and of a client that trusts it."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "web")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, private.public_key(), 7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("web")]), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    (tmp_path / "certificate.pem").write_bytes(
        pem
        + private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "certificate.pem")
    return server, ssl.create_default_context(cadata=pem.decode())


class TlsHandler(Handler):
    """The same, behind TLS of the standard library."""

    context: ssl.SSLContext
    disable_nagle_algorithm = False  # what `detach` gives is no TCP socket

    def setup(self) -> None:
        self.request = self.context.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.request.close()


@pytest.fixture
def serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[type[socketserver.BaseRequestHandler]], tuple[str, int]]]:
    """Servers of the standard library: their module's `socket` is ours, and nothing else is changed."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(socketserver, "socket", blocking)
    running: list[tuple[socketserver.ThreadingTCPServer, threading.Thread]] = []

    def serve(handler: type[socketserver.BaseRequestHandler]) -> tuple[str, int]:
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        running.append((server, thread))
        host, port = server.server_address[:2]
        KnownHosts().save(KnownServer(str(host), port, keys.own(keys.own_key_path()).public), "web")
        return str(host), port

    yield serve
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


Serves = Callable[[type[socketserver.BaseRequestHandler]], tuple[str, int]]


def test_https_through_the_standard_library(
    serves: Serves,
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, here = certificate
    monkeypatch.setattr(TlsHandler, "context", there, raising=False)
    _, port = serves(TlsHandler)
    monkeypatch.setattr(bsd, "create_connection", blocking.create_connection)
    client = http.client.HTTPSConnection("web", port, timeout=20, context=here)
    for _ in range(2):
        client.request("GET", "/")
        answer = client.getresponse()
        assert answer.status == 200
        assert answer.read() == BODY
    client.request("POST", "/", body=BODY)
    assert json.loads(client.getresponse().read()) == {"got": len(BODY), "right": True}
    client.close()


def test_tls_without_a_descriptor(
    ends: tuple[blocking.socket, blocking.socket],
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    def talk(over: blocking.socket, context: ssl.SSLContext, **more: Any) -> bytes:
        come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(come, go, **more)

        def until(do: Callable[[], Any]) -> Any:
            while True:
                try:
                    return do()
                except ssl.SSLWantReadError:
                    over.sendall(go.read())
                    come.write(over.recv(1 << 16))

        until(tls.do_handshake)
        tls.write(b"my name is " + (b"server" if more.get("server_side") else b"client"))
        over.sendall(go.read())
        answer: bytes = until(lambda: tls.read(100))
        return answer

    near, far = ends
    heard: list[bytes] = []
    answering = threading.Thread(
        target=lambda: heard.append(talk(far, certificate[0], server_side=True))
    )
    answering.start()
    assert talk(near, certificate[1], server_hostname="web") == b"my name is server"
    answering.join()
    assert heard == [b"my name is client"]


class MailHandler(socketserver.StreamRequestHandler):
    """Lines over `makefile`, as servers of mail have been written for ever."""

    context: ssl.SSLContext
    letters: list[bytes]

    def handle(self) -> None:
        self.answer("220 here")
        while line := self.rfile.readline().strip().upper():
            match line.split()[0]:
                case b"EHLO":
                    self.answer("250-here\r\n250 STARTTLS")
                case b"STARTTLS":
                    self.answer("220 go on")
                    self.request = self.context.wrap_socket(self.request, server_side=True)
                    self.setup()
                case b"DATA":
                    self.answer("354 go on")
                    letter = []
                    while (part := self.rfile.readline()) != b".\r\n":
                        letter.append(part)
                    self.letters.append(b"".join(letter))
                    self.answer("250 taken")
                case b"QUIT":
                    self.answer("221 good bye")
                    return
                case _:
                    self.answer("250 well")

    def finish(self) -> None:
        super().finish()
        self.request.close()

    def answer(self, words: str) -> None:
        self.wfile.write(words.encode() + b"\r\n")


def test_a_letter_with_and_without_tls(
    serves: Serves,
    certificate: tuple[ssl.SSLContext, ssl.SSLContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there, here = certificate
    letters: list[bytes] = []
    monkeypatch.setattr(MailHandler, "context", there, raising=False)
    monkeypatch.setattr(MailHandler, "letters", letters, raising=False)
    _, port = serves(MailHandler)
    monkeypatch.setattr(smtplib, "socket", blocking)
    for tls in (False, True):
        with smtplib.SMTP("web", port, timeout=20, local_hostname="laptop") as client:
            if tls:
                client.starttls(context=here)
            client.sendmail("a@example.org", ["b@example.org"], f"TLS: {tls}\n")
    assert letters == [b"TLS: False\r\n", b"TLS: True\r\n"]


def test_selectors_serve_many_at_once(address: tuple[str, int]) -> None:
    """Sockets that never block, connected and read as `select` says."""
    with selectors.DefaultSelector() as selector:
        wanted = b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n"
        got: dict[blocking.socket, bytearray] = {}
        for _ in range(4):
            made = blocking.socket()
            made.setblocking(False)
            assert made.connect_ex(address) == errno.EINPROGRESS
            got[made] = bytearray()
            selector.register(made, selectors.EVENT_WRITE)
        ends_s = time.monotonic() + 30
        while selector.get_map() and time.monotonic() < ends_s:
            for key, what in selector.select(1.0):
                made = key.fileobj  # type: ignore[assignment]
                if what & selectors.EVENT_WRITE:
                    assert made.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR) == 0
                    assert made.send(wanted) == len(wanted)
                    selector.modify(made, selectors.EVENT_READ)
                elif data := made.recv(1 << 16):
                    got[made] += data
                else:
                    selector.unregister(made)
                    made.close()
    assert all(each.endswith(BODY) for each in got.values())
