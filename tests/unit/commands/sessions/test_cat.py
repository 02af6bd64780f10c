"""`cedos-cat`: two programs, bytes both ways, keys, errors, Ctrl-C."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kit.waiting import wait_until

from cedos.commands.sessions.cat import main

# What a user starts: the installed program, with this interpreter and whatever its click parses.
CAT = [str(Path(sys.executable).with_name("cedos-cat"))]


def start(home, *arguments, data=None):
    home.mkdir(exist_ok=True)
    source = subprocess.DEVNULL
    if data is not None:
        (home / "data").write_bytes(data)
        source = os.open(home / "data", os.O_RDONLY)
    out = (home / "got").open("wb")
    try:
        return subprocess.Popen(
            [*CAT, *arguments],
            stdin=source,
            stdout=out,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_CONFIG_HOME": str(home), "CEDOS_RUNTIME_DIR": str(home)},
        )
    finally:
        out.close()
        if data is not None:
            os.close(source)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return f"127.0.0.1:{one.getsockname()[1]}"


def listening(process):
    """Port and key, as it says."""
    words = process.stderr.readline().decode().split()
    return words[words.index("port") + 1].rstrip(";"), words[-1]


def test_both_ways_and_the_pinned_key(tmp_path):
    up, down = os.urandom(3_000_000), os.urandom(1_000_000)
    where = free_port()
    for given in (True, False):  # the second time the key is known
        server = start(tmp_path / "server", "--listen", where, data=down)
        port, key = listening(server)
        keys = ["--key", key] if given else []
        client = start(tmp_path / "client", *keys, "127.0.0.1", port, data=up)
        _, errors = client.communicate(timeout=60)
        server.communicate(timeout=60)
        assert (client.returncode, server.returncode) == (0, 0), errors
        assert (tmp_path / "server" / "got").read_bytes() == up
        assert (tmp_path / "client" / "got").read_bytes() == down


def test_another_key_and_an_unknown_one(tmp_path):
    server = start(tmp_path / "server", "--listen", free_port())
    port, key = listening(server)
    wrong = ("A" if key[0] != "A" else "B") + key[1:]
    for arguments, status, message in (
        (["--key", wrong, "127.0.0.1", port], 1, b"another key"),
        (["127.0.0.1", port], 2, b"no key is known"),
    ):
        client = start(tmp_path / "client", *arguments)
        _, error = client.communicate(timeout=60)
        assert client.returncode == status
        assert message in error
        assert b"Traceback" not in error
    server.send_signal(signal.SIGINT)
    _, error = server.communicate(timeout=30)
    assert server.returncode == 130
    assert b"Traceback" not in error


def test_ctrl_c_ends_the_other_end_too(tmp_path):
    server = start(tmp_path / "server", "--listen", free_port())
    port, key = listening(server)
    reading, writing = os.pipe()
    client = subprocess.Popen(
        [*CAT, "--key", key, "127.0.0.1", port],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "client")},
    )
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as typed:
        typed.write(b"hello")
        wait_until(lambda: (tmp_path / "server" / "got").read_bytes() == b"hello")
        client.send_signal(signal.SIGINT)
        _, error = client.communicate(timeout=30)
    assert client.returncode == 130, error
    assert b"Traceback" not in error
    _, error = server.communicate(timeout=30)
    assert server.returncode == 1
    assert b"interrupted" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "HOST and PORT are needed"),
        (["host", "9", "--allow", "x"], "a key has 43"),
        (["--listen", "9000", "host"], "either --listen, or HOST"),
        (["--listen", "nowhere"], "'nowhere' is not 7008"),
        (["host", "9", "-n", "lo", "-n", "nosuch0"], "no interface 'nosuch0'; there are lo"),
        (["host", "9"], "cedos-cat --listen, prints it"),
    ],
)
def test_what_cannot_be_asked_for(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_help_and_the_own_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = CliRunner().invoke(main, ["--help"]).output
    assert "tar c photos | cedos-cat --key KEY server.example 9000" in text
    first = CliRunner().invoke(main, ["--print-key"]).output
    assert len(first.strip()) == 43
    assert CliRunner().invoke(main, ["--print-key"]).output == first


@pytest.mark.parametrize("option", [("--deadline", "1h"), ("--network", "lo"), ("--key", "A" * 43)])
def test_what_only_the_caller_can_say_is_refused_with_listen(option):
    result = CliRunner().invoke(main, ["--listen", "127.0.0.1:1", *option])
    assert result.exit_code == 2
    assert f"{option[0]} is for the end that connects" in result.stderr


def test_a_full_disk_behind_standard_output_is_a_clear_end(tmp_path):
    server = start(tmp_path / "server", "--listen", free_port(), data=os.urandom(100_000))
    port, key = listening(server)
    (tmp_path / "client").mkdir()
    with Path("/dev/full").open("wb") as full:
        client = subprocess.run(
            [*CAT, "--key", key, "127.0.0.1", port],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "client")},
            check=False,
            timeout=60,
        )
    assert client.returncode == 1
    assert client.stderr.decode() == "cedos-cat: standard output: No space left on device\n"
    _, error = server.communicate(timeout=60)
    assert b"Traceback" not in error
