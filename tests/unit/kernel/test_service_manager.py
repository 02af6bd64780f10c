"""Notifications to systemd, on a real datagram socket."""

import os
import signal
import socket
import subprocess
import sys
import uuid

import pytest

from cedos.kernel.service_manager import ENDING_SIGNALS, Notifier


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.settimeout(5)
        if request.param == "file":
            address = str(tmp_path / "notify")
            listening.bind(address)
        else:
            address = "@cedos-test-" + uuid.uuid4().hex
            listening.bind("\0" + address[1:])
        yield listening, address


def test_messages(manager):
    listening, address = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    assert notifier.enabled
    messages = [
        (notifier.ready("2 networks"), b"READY=1\nSTATUS=2 networks"),
        (notifier.ready(), b"READY=1"),
        (notifier.status("default: wlan0\nWATCHDOG=1"), b"STATUS=default: wlan0 WATCHDOG=1"),
        (notifier.feed_watchdog(), b"WATCHDOG=1"),
        (notifier.stopping("undoing"), b"STOPPING=1\nSTATUS=undoing"),
    ]
    for sent, expected in messages:
        assert sent
        assert listening.recv(4096) == expected


def test_no_manager():
    notifier = Notifier({})
    assert not notifier.enabled
    assert not notifier.ready()
    assert notifier.watchdog_interval_s is None


def test_a_manager_that_is_gone_or_deaf_is_no_error(tmp_path):
    path = tmp_path / "notify"
    assert not Notifier({"NOTIFY_SOCKET": str(path)}).feed_watchdog()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))
        notifier = Notifier({"NOTIFY_SOCKET": str(path)})
        answers = [notifier.feed_watchdog() for _ in range(100_000 // 10)]
    assert answers[0]
    assert not answers[-1]  # its queue is full; we did not wait


@pytest.mark.parametrize(
    ("environment", "interval"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_watchdog_interval(environment, interval):
    notifier = Notifier({"NOTIFY_SOCKET": "/x", **environment})
    assert notifier.watchdog_interval_s == interval


WAIT = """
import asyncio, signal, sys
from cedos.kernel.service_manager import call_at_end
async def run():
    told = asyncio.Event()
    signal.signal(signal.SIGHUP, signal.Handlers(int(sys.argv[1])))
    call_at_end(told.set)
    print("ready", flush=True)
    await told.wait()
asyncio.run(run())
"""


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN])
@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_signals_that_end_a_program(number, hangup):
    words = [sys.executable, "-c", WAIT, str(int(hangup))]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        if number is signal.SIGHUP and hangup is signal.SIG_IGN:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.terminate()
        assert process.wait(10) == 0
