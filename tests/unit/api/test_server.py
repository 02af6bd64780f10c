"""The control socket as a client meets it, over a real unix socket."""

import asyncio
import http.client
import json
import logging
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.test_utils import make_mocked_request
from kit.waiting import wait_until
from structlog.testing import capture_logs

from cedos.api import server
from cedos.api.client import ControlClient
from cedos.api.messages import CarriedReport
from cedos.api.server import MALFORMED_PAUSE_S, OpenConnections, short_lines
from cedos.controller.hint import HintRequest
from cedos.errors import (
    AlreadyRunningError,
    CedosError,
    ConfigError,
    DaemonUnreachableError,
    HostError,
    NoDaemonError,
    NotFoundError,
    PrivilegeError,
    SteeringError,
)
from cedos.model import CarriedConnection


def raw(path, request):
    """Sends bytes, returns the status and the JSON body of the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        with answer:
            body = answer.read()
            is_json = answer.getheader("Content-Type", "").startswith("application/json")
            return answer.status, json.loads(body) if is_json else body


def test_everything_there_is_to_ask(control, fake_daemon):
    client = ControlClient(control)
    status = client.status()
    assert status.default.network == "wlan0"
    assert status.networks == client.networks()
    assert status.flows == client.flows()
    [network] = status.networks
    assert network.addresses == ["192.168.43.2/24"]
    assert network.gateways == ["192.168.43.1"]
    assert network.indicators["rtt_s"].value == 0.02
    assert network.indicators["rtt_s"].age_s == 2.5
    assert network.indicators["rtt_s"].active
    assert client.explain().number == 7
    explained = client.explain("example.org")
    assert explained.transfer.flow == "tcp 192.168.43.2:5000 > 198.51.100.1:443"
    assert explained.context["wlan0"]["rtt_s"].age_s == 1.5
    assert explained.evaluations[0].time_high_s == 1.0


def test_hints(control, fake_daemon):
    client = ControlClient(control)
    hint = HintRequest(destination="198.51.100.0/24", size_bytes=10**6, deadline_s=4.0)
    accepted = client.hint(hint)
    assert accepted.network == "wlan0"
    assert fake_daemon.hints == {accepted.number: hint}
    client.unhint(accepted.number)
    assert fake_daemon.hints == {}
    with pytest.raises(NotFoundError, match="there is no hint 1"):
        client.unhint(1)


def test_carried_connections(control, fake_daemon):
    news = CarriedConnection(
        number=1,
        server="github.com",
        port=443,
        age_s=2.5,
        bytes_down=7,
        bytes_by_network={"wlan0": 7},
        decision=3,
    )
    report = CarriedReport(
        program="0" * 32, gateway="gw.example", addresses=("2001:db8::7",), connections=(news,)
    )
    ControlClient(control).report_carried(report)
    assert fake_daemon.told_carrying == [(report, os.getuid())]


def carrying(**changed):
    news = {"number": 1, "server": "a.example", "port": 443, "age_s": 0.0}
    return {"program": "0" * 32, "gateway": "gw.example", "connections": [news | changed]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "Expected `object`, got `array`"),
        (carrying() | {"program": "A" * 32}, r"regex .* - at `\$.program`"),
        (carrying() | {"gateway": ""}, r"length >= 1 - at `\$.gateway`"),
        (carrying() | {"addresses": ["a"] * 17}, r"length <= 16 - at `\$.addresses`"),
        (carrying() | {"connections": 257 * carrying()["connections"]}, "length <= 256"),
        (carrying(server="a" * 254), r"length <= 253 - at `\$.connections\[0\].server`"),
        (carrying(port=0), ">= 1"),
        (carrying(age_s=-1.0), ">= 0"),
        (carrying(bytes_down=-1), ">= 0"),
        (carrying(bytes_up=10**16), "<= 1000000000000000"),
        (carrying(bytes_by_network={"wlan0": -1}), ">= 0"),
        (carrying(bytes_by_network=dict.fromkeys(map(str, range(65)), 1)), "length <= 64"),
        (carrying(decision=0), ">= 1"),
        (carrying(uid=0), "unknown field `uid`"),
    ],
)
def test_bad_word_of_carried_connections(control, fake_daemon, content, message):
    body = json.dumps(content).encode()
    head = f"POST /v1/carried HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    status, answer = raw(control, head.encode() + body)
    assert status == 400
    assert answer["kind"] == "ConfigError"
    assert answer["error"].startswith("carried: ")
    assert re.search(message, answer["error"]), answer["error"]
    assert fake_daemon.told_carrying == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "must say which transfers"),
        (b'{"port": 0}', r"Expected `int` >= 1 - at `\$.port`"),
        (b'{"port": 1, "sise": 3}', "unknown field `sise`"),
        (b'{"destination": "nowhere"}', "must be an address or a prefix"),
        (b'{"destination": "fe80::1%lte0"}', "has a zone, which no packet has"),
        (b'{"mark": 1, "urgency": "soon"}', r"Invalid enum value 'soon' - at `\$.urgency`"),
        (b'{"mark": 1, "deadline_s": -1}', r"> 0.0 - at `\$.deadline_s`"),
        (b'{"mark": 1, "size_bytes": 1e400}', r"\$.size_bytes|out of range|JSON"),
    ],
)
def test_bad_hints(control, fake_daemon, body, message):
    head = f"POST /v1/hints HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    status, answer = raw(control, head.encode() + body)
    assert status == 400
    assert answer["kind"] == "ConfigError"
    with pytest.raises(CedosError, match=message):
        raise CedosError(answer["error"])
    assert fake_daemon.hints == {}


def test_requests_are_bounded(control):
    length = server.MAX_BODY_BYTES + 1
    head = f"POST /v1/hints HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
    status, answer = raw(control, head + b" " * length)
    assert status == 413
    assert "65536 bytes at most" in answer["error"]
    status, _ = raw(control, b"GET /v1/" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == 400


@pytest.mark.parametrize(
    "request_head",
    [
        b"POST /v1/hints HTTP/1.1\r\nContent-Encoding: gzip\r\n",
        b"GET /v1/explain?flow=" + b"9" * 5_000 + b" HTTP/1.1\r\n",
    ],
)
def test_an_odd_request_is_refused_without_a_trace(control, request_head):
    """A member filled the log with tracebacks by such requests before."""
    with capture_logs() as logs:
        status, _ = raw(control, request_head + b"Host: x\r\nContent-Length: 3\r\n\r\nabc")
    assert status == 400
    assert not logs


def test_unknown_paths_and_methods(control):
    status, answer = raw(control, b"GET /v2/status HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, answer["error"]) == (404, "GET /v2/status: Not Found")
    assert raw(control, b"DELETE /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 405
    assert raw(control, b"DELETE /v1/hints/x HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 404
    assert raw(control, b"DELETE /v1/hints/-1 HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 404


@pytest.mark.parametrize(
    "fault",
    [ConfigError("bad"), NotFoundError("none"), SteeringError("refused"), HostError("lacking")],
)
def test_the_daemon_s_errors_arrive_as_they_are(control, fake_daemon, fault):
    fake_daemon.fault = fault
    with pytest.raises(type(fault), match=str(fault)):
        ControlClient(control).status()


def test_a_fault_inside_the_daemon_is_logged_and_told_without_its_insides(control, fake_daemon):
    fake_daemon.fault = ZeroDivisionError("secret")
    with pytest.raises(CedosError, match="its log says why"):
        ControlClient(control).status()
    fake_daemon.fault = None
    assert ControlClient(control).status().pid == 7


def test_waiting_requests_are_bounded_for_each_user(control, fake_daemon, monkeypatch):
    """Once a program asked about one transfer over as many connections as the daemon had files."""
    monkeypatch.setattr(server, "MAX_REQUESTS_OF_USER", 20)
    monkeypatch.setattr(server, "MAX_REQUESTS", 50)
    user = 1000
    monkeypatch.setattr(server, "_asker", lambda _request: user)
    may_answer, begun = threading.Event(), threading.Semaphore(0)

    async def waits():
        begun.release()
        while not may_answer.is_set():
            await asyncio.sleep(0.02)

    monkeypatch.setattr(fake_daemon, "_before", waits)
    with ExitStack() as kept:
        waiting = []

        def asks():
            waiting.append(kept.enter_context(opened(control)))
            waiting[-1].sendall(REQUEST)

        for each, allowed in ((1000, 20), (1001, 20), (1002, 10), (0, 20)):
            user = each
            for _ in range(allowed):
                asks()
                assert begun.acquire(timeout=5)
            asks()
            assert waiting.pop().recv(12) == b"HTTP/1.1 503"
        may_answer.set()
        assert all(each.recv(12) == b"HTTP/1.1 200" for each in waiting)
        user = 1000
        assert ControlClient(control).status().pid == 7


@pytest.mark.parametrize(
    ("users", "most"),
    [([1000, 1001] * 50, 2), ([*range(100_000, 100_100)], server.BEGUN_AT_ONCE)],
)
async def test_no_user_s_requests_are_answered_all_at_once(monkeypatch, users, most):
    """400 connections of a member kept the daemon from noticing a lost network for 6 s.

    With 40 subordinate numbers root waited 2 to 3 s for the status.
    """
    limits, answered, users = OpenConnections(lambda: ()), [0], list(users)
    monkeypatch.setattr(server, "_asker", lambda _request: users.pop())

    async def handle(_request):
        answered[-1] += 1
        return web.Response()

    asked = []
    for _ in range(len(users)):
        request = make_mocked_request("GET", "/v1/status", payload=EMPTY_PAYLOAD)
        asked.append(asyncio.create_task(limits.count_during(request, handle)))
    while not all(each.done() for each in asked):
        answered.append(0)
        await asyncio.sleep(0)
    assert sum(answered) == len(asked)
    assert max(answered) <= most  # one of each user


def test_questions_that_read_the_disk_leave_threads_to_others(control, fake_daemon, monkeypatch):
    """900 questions for the usage held all threads for minutes, also the watchdog's and the budgets'."""
    user, now, most = 1000, 0, 0
    monkeypatch.setattr(server, "_asker", lambda _request: user)
    may_answer = threading.Event()

    async def waits():
        nonlocal now, most
        now += 1
        most = max(most, now)
        while not may_answer.is_set():
            await asyncio.sleep(0.02)
        now -= 1

    monkeypatch.setattr(fake_daemon, "_before", waits)
    with ExitStack() as kept:
        waiting = []
        for each in (1000, 1001):
            user = each
            for number in range(server.MAX_DISK_OF_USER + 1):
                waiting.append(kept.enter_context(opened(control)))
                waiting[-1].sendall(b"GET /v1/explain HTTP/1.1\r\nHost: x\r\n\r\n")
                if number < server.MAX_DISK_OF_USER:
                    with opened(control) as other:
                        other.sendall(REQUEST.replace(b"status", b"none"))
                        assert other.recv(12) == b"HTTP/1.1 404"  # it has been read by then
            assert waiting.pop().recv(12) == b"HTTP/1.1 503"
        assert most == 2
        may_answer.set()
        assert all(each.recv(12) == b"HTTP/1.1 200" for each in waiting)
        assert most == 2


FOLLOW = b"GET /v1/changes/follow HTTP/1.0\r\n\r\n"


def told(each, so):
    """Return what has come, once it is so."""
    came = b""
    while not so(came):
        came += each.recv(4096)
    return came


def test_who_follows_changes_is_told_at_once_and_ends_with_the_server(
    fake_daemon, serve, tmp_path, monkeypatch
):
    path = tmp_path / "run" / "control.sock"
    with socket.socket(socket.AF_UNIX) as following:
        following.settimeout(5)
        with serve(fake_daemon, path):
            following.connect(str(path))
            following.sendall(FOLLOW)
            assert told(following, lambda came: came.endswith(b"\n")).startswith(b"HTTP/1.0 200")
            for _ in range(3):
                time.sleep(2 * server._LINES_APART_S)
                fake_daemon.number += 1
                began_s = time.monotonic()
                assert following.recv(4096) == b"\n"
                assert time.monotonic() - began_s < 1.0
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 0.9, "the server has not waited for it"
        assert following.recv(4096) == b""


def test_followers_are_bounded_and_those_that_left_make_room(control, fake_daemon, monkeypatch):
    """They hold places of the requests, which a user's transfers need."""
    user = 1000
    monkeypatch.setattr(server, "_asker", lambda _request: user)
    monkeypatch.setattr(server, "MAX_FOLLOWERS_OF_USER", 2)
    monkeypatch.setattr(server, "MAX_FOLLOWERS", 3)
    monkeypatch.setattr(server, "FOLLOWED_S", 0.2)

    def follows():
        made = kept.enter_context(opened(control))
        made.sendall(FOLLOW)
        came = told(made, lambda came: len(came) >= 12)
        return made, came[9:12]

    with ExitStack() as kept:
        first, _ = follows()
        assert [follows()[1] for _ in range(2)] == [b"200", b"503"]
        user = 1001
        assert [follows()[1] for _ in range(2)] == [b"200", b"503"]
        user = 0
        assert follows()[1] == b"200"
        first.close()
        user = 1000
        wait_until(lambda: follows()[1] == b"200")


def test_only_owner_and_group_may_open_it(control):
    assert stat.S_IMODE(control.stat().st_mode) == 0o660


def test_the_socket_is_gone_afterwards(fake_daemon, serve, tmp_path):
    path = tmp_path / "c.sock"
    with serve(fake_daemon, path):
        assert path.exists()
    assert not path.exists()
    with pytest.raises(NoDaemonError, match="start one with `cedos up`"):
        ControlClient(path).status()


def test_a_dead_daemon_s_socket_is_replaced(fake_daemon, serve, tmp_path):
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(DaemonUnreachableError):
        ControlClient(path).status()
    with serve(fake_daemon, path):
        assert ControlClient(path).status().pid == 7


def test_a_living_daemon_is_left_alone(control, fake_daemon, serve):
    with pytest.raises(AlreadyRunningError, match="answers on"), serve(fake_daemon, control):
        pass
    assert ControlClient(control).status().pid == 7


def test_a_file_in_the_way_is_not_deleted(fake_daemon, serve, tmp_path):
    path = tmp_path / "c.sock"
    path.write_text("mine")
    with pytest.raises(HostError, match="is in the way"), serve(fake_daemon, path):
        pass
    assert path.read_text() == "mine"


def test_another_daemon_s_new_socket_survives_our_end(fake_daemon, serve, tmp_path):
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as other, serve(fake_daemon, path):
        path.unlink()
        other.bind(str(path))
    assert path.exists()


def test_a_daemon_that_does_not_answer(control, fake_daemon):
    fake_daemon.delay_s = 1.0
    with pytest.raises(DaemonUnreachableError, match=r"no answer for 0\.1 s") as told:
        ControlClient(control, timeout_s=0.1).status()
    assert not isinstance(told.value, NoDaemonError)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_a_stranger_is_told_what_to_do(control):
    question = (
        "import os, sys; from pathlib import Path; from cedos.api.client import ControlClient;"
        "from cedos.errors import PrivilegeError\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: ControlClient(Path(sys.argv[1])).status()\n"
        "except PrivilegeError as error: print(error)"
    )
    for folder in control.parents:
        if Path("/tmp") in folder.parents:
            folder.chmod(0o755)
    for group, remedy in (
        ("root", "; run as root\n"),
        ("daemon", "`sudo usermod -aG daemon $USER`; log in again"),
    ):
        shutil.chown(control, group=group)
        done = subprocess.run(
            [sys.executable, "-c", question, str(control)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert remedy in done.stdout
    assert PrivilegeError.exit_code == 3


def test_a_daemon_that_dies_in_the_middle(tmp_path):
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        if (child := os.fork()) == 0:
            connection, _ = listening.accept()
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        with pytest.raises(DaemonUnreachableError):
            ControlClient(path).status()
    finally:
        os.waitpid(child, 0)


async def test_a_socket_that_was_removed_is_made_again(fake_daemon, tmp_path):
    path = tmp_path / "run" / "control.sock"
    async with server.ControlServer(fake_daemon, path) as listening:
        await listening.keep()
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        with capture_logs() as logs:
            await listening.keep()
            await listening.keep()
            path.parent.unlink()
            await listening.keep()
        assert [each["log_level"] for each in logs] == ["warning", "info"], "each is said once"
        assert stat.S_IMODE(path.stat().st_mode) == server.MODE
        status = await asyncio.to_thread(ControlClient(path).status)
        assert status.default.network == "wlan0"
    assert not path.exists()


def _record(error):
    return logging.LogRecord("a", logging.ERROR, "", 0, "x", (), (type(error), error, None))


def test_one_line_for_many():
    now_s = 0.0
    malformed = short_lines(lambda: now_s)
    first = _record(BadHttpMessage("bad"))
    assert malformed(first)
    assert first.exc_info is None
    assert not any(malformed(_record(BadHttpMessage("bad"))) for _ in range(1000))
    now_s = MALFORMED_PAUSE_S
    later = _record(BadHttpMessage("bad"))
    assert malformed(later)
    assert "1000 more" in later.getMessage()


REQUEST = b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n"


def opened(control):
    asking = socket.socket(socket.AF_UNIX)
    asking.settimeout(5)
    asking.connect(str(control))
    return asking


def test_who_asks_nothing_is_sent_away(control, monkeypatch):
    monkeypatch.setattr(server, "IDLE_S", 1.0)
    silent, half, asked = opened(control), opened(control), opened(control)
    with silent, half, asked:
        half.sendall(REQUEST[:10])
        asked.sendall(REQUEST)
        assert asked.recv(10) == b"HTTP/1.1 2"
        for each in (silent, half):
            assert each.recv(10) == b""
        while asked.recv(65_536):
            pass


def test_a_crowd_does_not_keep_others_out(control, fake_daemon, monkeypatch):
    monkeypatch.setattr(server, "MOST", 10)
    crowd = [opened(control) for _ in range(60)]
    try:
        wait_until(lambda: sum(_closed(each) for each in crowd) >= 50)
        assert ControlClient(control).status().pid == 7
    finally:
        for each in crowd:
            each.close()


def _closed(each):
    each.setblocking(False)
    try:
        return each.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_who_sends_a_question_for_ever_makes_room_for_others(control, fake_daemon, monkeypatch):
    """The head of a request, and then a byte now and then: it never has anything to be answered."""
    monkeypatch.setattr(server, "MOST", 10)
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


def test_who_takes_no_answer_is_sent_away(control, monkeypatch):
    """Their connections stayed for ever, beyond all limits, with a descriptor and the answers each."""
    monkeypatch.setattr(server, "MOST", 10)
    crowd = []
    path = b"/v1/" + b"x" * 8_000

    def is_open(each):
        try:
            each.send(b" ")
        except ConnectionError:
            return False
        except BlockingIOError:
            return True
        return True

    try:
        for _ in range(3):
            crowd += [opened(control) for _ in range(10)]
            for each in crowd[-10:]:
                each.setblocking(False)
                with suppress(BlockingIOError):
                    each.sendall(60 * (b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n"))
            time.sleep(1.0)
        wait_until(lambda: sum(map(is_open, crowd)) <= 10, 10.0)
        assert ControlClient(control).status().pid == 7
    finally:
        for each in crowd:
            each.close()


def test_where_a_crowd_stands_before_the_door_one_waits(tmp_path):
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


def test_a_path_too_long_for_a_socket(fake_daemon, serve, tmp_path):
    with pytest.raises(HostError, match="too long"), serve(fake_daemon, tmp_path / ("x" * 120)):
        pass


def test_something_else_on_the_socket(tmp_path):
    path = tmp_path / "c.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()

        def talk_nonsense():
            connection, _ = other.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        nonsense = threading.Thread(target=talk_nonsense)
        nonsense.start()
        with pytest.raises(CedosError, match="another version of cedos"):
            ControlClient(path).status()
        nonsense.join()


def test_other_errors_keep_their_trace():
    record = _record(KeyError("ours"))
    assert short_lines()(record)
    assert record.exc_info is not None
