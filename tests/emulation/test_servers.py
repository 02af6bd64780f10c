"""The emulated server serves any size, takes any upload to its last byte, and speaks MPTCP and TCP."""

import json
import socket
import time
from pathlib import Path

import pytest

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import ADDRESSES, INTERFACES
from emu.testbed.phones import SERVER, Access, Laptop
from emu.testbed.programs.servers import SERVER_NAME, Servers

FAST = Trace.constant(48e6)
URL = f"http://{SERVER}"


@pytest.fixture(scope="module")
def laptop():
    accesses = [
        Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.004),
        Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.008),
    ]
    with Laptop(*accesses, source_rules=True) as laptop:
        yield laptop


@pytest.fixture(scope="module")
def servers(laptop):
    with Servers(laptop, tls=True, access_log=True) as servers:
        yield servers


def curl(laptop, *arguments, mptcp=False):
    """Runs curl in the client; returns status, bytes downloaded, bytes uploaded."""
    line = ["curl", "-sS", "-o", "/dev/null", "--max-time", "20", *arguments]
    line += ["-w", "%{http_code} %{size_download} %{size_upload}"]
    if mptcp:
        line = ["mptcpize", "run", *line]
    status, down, up = laptop.client.run(*line).stdout.split()
    return int(status), int(down), int(up)


@pytest.mark.parametrize("size", [0, 1, 3000, 65537, 2_000_003])
def test_any_size_is_served_from_the_first_time_on(laptop, servers, size):
    for _ in range(2):
        assert curl(laptop, f"{URL}/bytes/{size}") == (200, size, 0)


def test_a_size_made_before_is_there(laptop, servers):
    url = servers.make_size(12_345)
    assert url == f"{URL}/bytes/12345"
    assert curl(laptop, url) == (200, 12_345, 0)
    assert curl(laptop, "-r", "100-199", url) == (206, 100, 0)
    with pytest.raises(ValueError, match="bytes"):
        servers.make_size(-1)


@pytest.mark.parametrize(
    "path",
    ["/bytes/", "/bytes/x", "/bytes/-1", "/bytes/007", "/bytes/9" + "0" * 12, "/x", "/bytes/1/2"],
)
def test_what_is_no_size_is_not_found(laptop, servers, path):
    assert curl(laptop, URL + path)[0] in (403, 404)


@pytest.mark.parametrize("how", [["-T"], ["-H", "Expect:", "-T"], ["-X", "POST", "--data-binary"]])
def test_uploads_of_every_kind_are_taken(laptop, servers, tmp_path, how):
    file = tmp_path / "file"
    file.write_bytes(bytes(3_000_000))
    name = str(file) if "-T" in how else f"@{file}"
    assert curl(laptop, *how, name, f"{URL}/upload/x")[::2] == (200, 3_000_000)
    chunked = f"curl -sS -o /dev/null -w '%{{http_code}}' -T - {URL}/upload/y < {file}"
    assert laptop.client.run("sh", "-c", chunked).stdout == "200"


@pytest.mark.parametrize("protocol", [0, 262])
def test_an_upload_is_answered_after_its_last_byte_and_not_before(laptop, servers, protocol):
    size = 400_000
    with laptop.client.entered():
        client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    with client:
        client.connect((SERVER, 80))
        client.sendall(
            f"PUT /upload/x HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        client.sendall(bytes(size - 1))
        client.settimeout(0.7)
        with pytest.raises(TimeoutError):
            client.recv(1)
        client.sendall(b"!")
        client.settimeout(5)
        assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        # The connection lives on.
        client.sendall(b"GET /bytes/5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while block := client.recv(4096):
            answer += block
        assert answer.endswith(b"\r\n\r\n" + bytes(5))


def test_an_mptcp_transfer_uses_both_networks(laptop, servers):
    laptop.client.ip(*["mptcp", "limits", "set", "subflows", "4"])
    for kind, interface in INTERFACES.items():
        laptop.client.ip("mptcp", "endpoint", "add", ADDRESSES[kind], "dev", interface, "subflow")

    before = {name: laptop.received_bytes(name) for name in INTERFACES.values()}
    assert curl(laptop, f"{URL}/bytes/8000000", mptcp=True)[:2] == (200, 8_000_000)
    for interface, received in before.items():
        assert laptop.received_bytes(interface) - received > 1_000_000
    laptop.client.ip(*["mptcp", "endpoint", "flush"])


def test_tls_is_trusted_by_its_certificate(laptop, servers):
    trust = ["--cacert", str(servers.certificate)]
    assert curl(laptop, *trust, f"https://{SERVER}/bytes/7") == (200, 7, 0)
    named = ["--resolve", f"{SERVER_NAME}:443:{SERVER}"]
    assert curl(laptop, *trust, *named, f"https://{SERVER_NAME}/bytes/8") == (200, 8, 0)


def test_the_log_tells_every_request(laptop, servers):
    assert curl(laptop, f"{URL}/bytes/4242") == (200, 4242, 0)
    lines = [json.loads(line) for line in servers.access_log.read_text().splitlines()]
    (mine,) = [line for line in lines if line["uri"] == "/bytes/4242"]
    assert mine["status"] == 200
    assert mine["method"] == "GET"
    assert mine["sent_bytes"] > 4242
    assert abs(mine["ended_unix_s"] - time.time()) < 10


def test_uploads_leave_nothing_behind(laptop, servers):
    servers.make_size(5)
    nginx = int((servers.directory / "nginx.pid").read_text())
    inside = Path(f"/proc/{nginx}/root{servers.directory}/uploads")
    assert inside.is_dir()
    assert [path for path in inside.rglob("*") if path.is_file()] == []
    mounts = Path(f"/proc/{nginx}/mounts").read_text()
    assert f"tmpfs {servers.directory}/uploads" in mounts.replace("cedos-uploads", "tmpfs")
    assert str(servers.directory) not in Path("/proc/self/mounts").read_text()
    holes = list((servers.directory / "www" / "bytes").iterdir())
    assert holes
    assert all(hole.stat().st_blocks == 0 for hole in holes)


def test_a_second_server_on_the_same_ports_says_why_it_cannot(laptop, servers):
    class Elsewhere(Servers):
        @property
        def directory(self):
            return super().directory.with_name("elsewhere")

    # The port answers (the first one's), so only nginx itself can tell.
    with pytest.raises(EmulationError, match="bind"), Elsewhere(laptop, dns=False):
        pass
    assert curl(laptop, f"{URL}/bytes/1") == (200, 1, 0)
