"""`cedos probe-server` as its users meet it."""

import asyncio
import signal
import socket
import subprocess
import sys
from ipaddress import ip_address

import pytest

from cedos.host.monitor.probing import udp_train
from cedos.host.monitor.probing.keyfile import read_key
from cedos.host.monitor.probing.probes import ProbeServer


def test_a_key_is_made_and_kept(cedos, tmp_path):
    path = tmp_path / "probe.key"
    assert cedos("probe-server", "--new-key", str(path)).exit_code == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert cedos("probe-server", "--new-key", str(path)).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--listen and --key-file are needed"),
        (("--listen", "nonsense", "--key-file", "x"), "192.0.2.1:7007"),
        (("--listen", "192.0.2.1:70000", "--key-file", "x"), "1 to 65535"),
        (("--listen", "127.0.0.1", "--key-file", "/nowhere"), "--new-key"),
    ],
)
def test_what_is_missing_is_said(cedos, arguments, message):
    result = cedos("probe-server", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_an_address_of_somebody_else_is_refused(cedos, tmp_path):
    path = tmp_path / "probe.key"
    cedos("probe-server", "--new-key", str(path))
    result = cedos("probe-server", "--listen", "192.0.2.1", "--key-file", str(path))
    assert result.exit_code == 4
    assert "cannot listen on 192.0.2.1 port 7007" in result.stderr


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0"])
def test_it_serves_until_it_is_ended(cedos, tmp_path, listen):
    path = tmp_path / "probe.key"
    cedos("probe-server", "--new-key", str(path))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen(
        [
            *(sys.executable, "-m", "cedos", "probe-server"),
            *("--listen", f"{listen}:{port}", "--key-file", str(path)),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    while "address=127.0.0.1" not in (line := running.stderr.readline()):
        assert "listening" in line
    server = ProbeServer(ip_address("127.0.0.1"), port, read_key(path))
    outcome = asyncio.run(udp_train.run(server, interface="lo"))
    assert outcome.problem == ""
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=10)
    assert running.returncode == 0
    assert "trains=1" in errors
