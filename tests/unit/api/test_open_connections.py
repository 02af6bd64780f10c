"""Whoever opens the control socket and asks nothing."""

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cedos.api import open_connections
from cedos.api.client import ControlClient
from cedos.errors import DaemonUnreachableError

REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"


def opened(control: Path) -> socket.socket:
    asking = socket.socket(socket.AF_UNIX)
    asking.settimeout(5)
    asking.connect(str(control))
    return asking


def test_who_asks_nothing_is_sent_away(control: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_connections, "IDLE_S", 1.0)
    silent, half, asked = opened(control), opened(control), opened(control)
    with silent, half, asked:
        half.sendall(REQUEST[:10])
        asked.sendall(REQUEST)
        assert asked.recv(10) == b"HTTP/1.1 2"
        for each in (silent, half):
            assert each.recv(10) == b""
        while asked.recv(65_536):
            pass


def test_a_crowd_does_not_keep_others_out(
    control: Path, fake_daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_connections, "MOST", 10)
    crowd = [opened(control) for _ in range(60)]
    try:
        deadline_s = time.monotonic() + 10
        while sum(_closed(each) for each in crowd) < 50:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert ControlClient(control).status().pid == 7
    finally:
        for each in crowd:
            each.close()


def test_who_listens_to_decisions_stays(
    control: Path, fake_daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_connections, "IDLE_S", 1.0)
    with opened(control) as listening:
        listening.sendall(b"GET /v1/decisions HTTP/1.1\r\nHost: x\r\n\r\n")
        assert listening.recv(9) == b"HTTP/1.1 "
        listening.recv(65_536)
        listening.settimeout(2.5)
        with pytest.raises(TimeoutError):
            listening.recv(1)


def _closed(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        return each.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_who_sends_a_question_for_ever_makes_room_for_others(
    control: Path, fake_daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head of a request, and then a byte now and then: it never has anything to be answered."""
    monkeypatch.setattr(open_connections, "MOST", 10)
    crowd = [opened(control) for _ in range(40)]
    try:
        for each in crowd:
            each.sendall(b"POST /v1/hints HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
        deadline_s = time.monotonic() + 10
        while sum(_closed(each) for each in crowd) < 30:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
            for each in crowd:
                with suppress(OSError):
                    each.send(b" ")
        assert ControlClient(control).status().pid == 7
    finally:
        for each in crowd:
            each.close()


def test_where_a_crowd_stands_before_the_door_one_waits(tmp_path: Path) -> None:
    """Its time-out is the whole time, and what it says is not that there is no daemon to be found."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)
        crowd = [opened(path) for _ in range(2)]
        began_s = time.monotonic()
        with pytest.raises(DaemonUnreachableError, match=r"no answer for 0\.6 s"):
            ControlClient(path, timeout_s=0.6).status()
        assert time.monotonic() - began_s > 0.5
        for each in crowd:
            each.close()
