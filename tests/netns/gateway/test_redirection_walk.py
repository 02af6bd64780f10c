"""Programs of three users do this and that at random, redirected, while proxy and gateway come and go.

Each byte tells the socket that sent it. Servers say what they got back to whom they got it from.
"""

import ctypes
import errno
import json
import os
import random
import selectors
import signal
import socket
import struct
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
from kit.accounts import grown

from tests.netns.gateway.conftest import ORIGIN

ORIGIN6 = "2001:db8:c::2"
ALICE, BOB, CAROL = USERS = 54_321, 54_322, 54_323  # Carol is not redirected
ECHO, AT_END, SHORT, RESETS, UDP, UDP_LATE = 9001, 9002, 9003, 9004, 9011, 9012
MARK = b"TOK!"
RECORD = struct.Struct("!4sII")
MOST_RECORDS = 20_000
_SETRESUID = 117
_LIBC = ctypes.CDLL(None, use_errno=True)
LATE_S = 0.3
TELLS_ACCOUNTS = """
import gc, json, signal, sys
sys.path[:0] = {paths}
from kit.accounts import accounts
from cedos.commands.cedos import main
from cedos.proxy.local.redirected_datagrams import RedirectedDatagrams
RedirectedDatagrams.__init__.__kwdefaults__["idle_s"] = 1.0
WANTED = ("LocalProxy", "RedirectedDatagrams", "NameStub")
def tell(*_):
    gc.collect()
    found = {{type(one).__name__: one for one in gc.get_objects() if type(one).__name__ in WANTED}}
    with open({file!r}, "w") as out:
        json.dump(accounts(**found), out)
signal.signal(signal.SIGUSR1, tell)
main()
"""


# The steps, and how often each is taken.
USUAL = {
    "open": 12, "say": 12, "half": 6, "close": 8, "exit_and_next": 6, "open_datagrams": 10,
    "send_datagram": 16, "burst": 2, "passed": 3, "wait": 8,
}  # fmt: skip
RARE = {
    "kill_proxy": 0.4, "end_proxy": 0.4, "gateway_away": 0.4, "pause_gateway": 0.7,
    "pause_proxy": 0.7, "silence": 0.7,
}  # fmt: skip


@contextmanager
def as_user(user):
    """Let this thread alone be a user's (the C library would change all threads)."""
    assert _LIBC.syscall(_SETRESUID, user, user, 0) == 0
    try:
        yield
    finally:
        assert _LIBC.syscall(_SETRESUID, 0, 0, 0) == 0


@cache
def stream(number):
    return b"".join(RECORD.pack(MARK, number, each) for each in range(MOST_RECORDS))


@dataclass(eq=False)
class Program:
    """A socket of a program."""

    number: int
    user: int
    one: socket.socket
    to: tuple
    udp: bool = False
    direct: bool = False  # some of what it sends may go direct
    connected: bool = True
    sent: int = 0  # bytes, or datagrams
    got: bytearray = field(default_factory=bytearray, repr=False)
    heard: Counter = field(default_factory=Counter, repr=False)
    over: str = ""  # "end", or an error
    orderly: bool = False  # it has ended its half in order
    closed: bool = False
    closed_s: float = 0.0


@dataclass(eq=False)
class Served:
    """A connection at a server."""

    one: socket.socket
    port: int
    who: str
    got: bytearray = field(default_factory=bytearray, repr=False)
    back: int = 0
    over: str = ""
    closed: str = ""


class RedirectionWalk:
    def __init__(self, laptop, folder, seed, fail):
        self.laptop, self.folder, self.fail = laptop, folder, fail
        self.random, self.selector = random.Random(seed), selectors.DefaultSelector()
        self.programs, self.served, self.log = {}, [], []
        self.number = 0
        self.up, self.ended_s, self.left_behind = False, 0.0, False
        self.late, self.at_server = [], Counter()
        self.first = {}  # by number, the server's connection that its bytes came by
        self.keep = []
        self.undo_silence = None
        laptop.far.ip("address", "add", f"{ORIGIN6}/128", "dev", "lo", "nodad")
        with laptop.far.entered():
            for family, host in ((socket.AF_INET, ORIGIN), (socket.AF_INET6, ORIGIN6)):
                for port in (ECHO, AT_END, SHORT, RESETS):
                    self._hear(
                        socket.create_server((host, port), family=family, backlog=1000),
                        self._accept,
                    )
                for port in (UDP, UDP_LATE):
                    one = socket.socket(family, socket.SOCK_DGRAM)
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
                    one.bind((host, port))
                    self._hear(one, self._datagram_served)
            for name in ("wlan0", "lte0"):
                one = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
                one.bind((name, 3))
                self._hear(one, self._on_wire)
        self.rules_before = self.rules()
        self.forward()

    # What runs beside

    def _command(self, whose):
        paths = [str(Path(__file__).parents[2]), str(Path(__file__).parents[3])]
        text = TELLS_ACCOUNTS.format(paths=paths, file=str(self.folder / f"{whose}.accounts"))
        return sys.executable, "-c", text

    def forward(self):
        log = self.folder / "forward.log"
        with log.open("ab") as out:
            start = out.tell()
            self.proxy = self.laptop.near.popen(
                *self._command("proxy"), "forward", "--fail", self.fail, "--log-level", "debug",
                "--redirect", str(ALICE), "--redirect", str(BOB),
                stderr=out, env=self.laptop.environment("laptop"),
            )  # fmt: skip
        self.laptop.keep(self.proxy)
        self.turn_until(lambda: b"carries" in log.read_bytes()[start:], 20)
        self.up = True

    def _hear(self, one, call):
        one.setblocking(False)
        self.keep.append(one)
        self.selector.register(one, selectors.EVENT_READ, (call, one))

    def turn(self, wait_s=0.0):
        """Let all ends read what is there."""
        now = time.monotonic()
        while self.late and self.late[0][0] <= now:
            _, one, data, who = self.late.pop(0)
            with suppress(OSError):
                one.sendto(data, who)
        for key, _ in self.selector.select(wait_s):
            call, *words = key.data
            call(*words)

    def turn_until(self, wanted, within_s):
        until_s = time.monotonic() + within_s
        while not wanted():
            if time.monotonic() > until_s:
                return False
            self.turn(0.02)
        return True

    # Servers

    def _accept(self, one):
        try:
            made, who = one.accept()
        except OSError:
            return
        made.setblocking(False)
        served = Served(made, one.getsockname()[1], who[0])
        self.served.append(served)
        self.selector.register(made, selectors.EVENT_READ, (self._served_reads, served))

    def _served_reads(self, served):
        if served.closed:
            return
        try:
            data = served.one.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            served.over = errno.errorcode[error.errno]
            self._end_served(served, "broke")
            return
        if not data:
            served.over = "end"
            self._check_served(served)
            if served.port == AT_END:
                self._say(served, bytes(served.got))
            self._end_served(served, "end")
            return
        served.got += data
        self._check_served(served)
        if served.port == ECHO:
            self._say(served, data)
        elif served.port in (SHORT, RESETS) and len(served.got) >= RECORD.size:
            self._say(served, bytes(served.got[: RECORD.size]))
            if served.port == RESETS:
                served.one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._end_served(served, "broke" if served.port == RESETS else "end")

    def _say(self, served, data):
        """Send all; a peer that does not read is waited for (it is this process)."""
        view = memoryview(data)
        until_s = time.monotonic() + 10
        while view:
            try:
                sent = served.one.send(view)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    served.over = "stuck"
                    return
                self._programs_read()
                continue
            except OSError as error:  # the next read would look like an end
                served.over = errno.errorcode[error.errno]
                self._end_served(served, "broke")
                return
            served.back += sent
            view = view[sent:]

    def _end_served(self, served, how):
        if served.closed:
            return
        served.closed = how
        self.selector.unregister(served.one)
        served.one.close()

    def _check_served(self, served):
        if len(served.got) < RECORD.size:
            return
        mark, number, first = RECORD.unpack_from(served.got)
        in_order = served.got == stream(number)[: len(served.got)]
        assert (mark, first, in_order) == (MARK, 0, True), f"out of order, at first of {number}"
        program = self.programs[number]
        assert len(served.got) <= program.sent, f"a server got more than {number} sent"
        assert self.first.setdefault(number, served) is served, f"{program} came twice"
        self._check_way(program, served.who)
        if served.over == "end":
            assert program.orderly, (
                f"an end that {number} did not send: {program}, {len(served.got)}"
            )
            assert len(served.got) == program.sent, (
                f"{program.sent} sent, {len(served.got)} looked complete: {served.who} {program}"
            )

    def _check_way(self, program, who):
        if is_direct(who):
            assert not (not program.direct and program.user != CAROL), (
                f"{program} went direct: {who}"
            )

    def _datagram_served(self, one):
        try:
            data, who = one.recvfrom(70_000)
        except OSError:
            return
        if data:
            mark, number, each = RECORD.unpack_from(data)
            program = self.programs[number]
            self.at_server[number, each] += 1
            came = mark, self.at_server[number, each], each < program.sent, len(data)
            assert came == (MARK, 1, True, size_of(number, each)), f"{each} of {number}: {came}"
            self._check_way(program, who[0])
        if one.getsockname()[1] == UDP_LATE:
            self.late.append((time.monotonic() + LATE_S, one, data, who))
        else:
            with suppress(OSError):
                one.sendto(data, who)

    def _on_wire(self, one):
        """Look at what leaves the laptop, and whose it is."""
        try:
            data, where = one.recvfrom(70_000)
        except OSError:
            return
        at = data.find(MARK)
        if where[2] != socket.PACKET_OUTGOING and at >= 0 and len(data) >= at + RECORD.size:
            program = self.programs.get(RECORD.unpack_from(data, at)[1])
            assert not (program is not None and not program.direct and program.user != CAROL), (
                f"{program} was seen on the wire"
            )

    # Programs

    def _programs_read(self):
        for each in list(self.programs.values()):
            if not each.closed and not each.over:
                self._read(each)

    def _add(self, user, one, to, **more):
        program = Program(self.number, user, one, to, direct=not self._led(user), **more)
        self.programs[self.number] = program
        self.number += 1
        self.selector.register(one, selectors.EVENT_READ, (self._read, program))
        return program

    def _led(self, user):
        return user != CAROL and self.up and self.fail == "closed"

    def _read(self, program):
        if program.closed or program.over:
            return
        if program.udp:
            self._read_datagrams(program)
            return
        try:
            data = program.one.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            self._over(program, errno.errorcode[error.errno])
            return
        if not data:
            self._over(program, "end")
            self._check_ended(program)
            return
        program.got += data
        in_order = program.got == stream(program.number)[: len(program.got)]
        assert in_order and len(program.got) <= program.sent, f"{program} got others' bytes"  # noqa: PT018

    def _check_ended(self, program):
        for served in self.served:
            if (
                len(served.got) >= RECORD.size
                and RECORD.unpack_from(served.got)[1] == program.number
            ):
                ended = served.closed, served.back
                assert ended == ("end", len(program.got)), f"{program} read an end: {served}"
                return
        assert not program.got, "an answer that no server sent"

    def _over(self, program, how):
        if not program.over:
            program.over = how
            with suppress(KeyError, ValueError):
                self.selector.unregister(program.one)

    def _read_datagrams(self, program):
        while True:
            try:
                data, who = program.one.recvfrom(70_000)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ECONNABORTED:
                    self._over(program, "ECONNABORTED")
                    return
                continue
            if not data:
                continue  # no program's
            mark, number, each = RECORD.unpack_from(data)
            if (mark, number) != (MARK, program.number):
                other = self.programs[number]
                # As without a proxy: who has the port gets it. The proxy looks ten times a second.
                if other.direct or time.monotonic() < other.closed_s + LATE_S / 2:
                    continue
                raise AssertionError(f"{program} got a datagram of {other}, {who}")
            program.heard[each] += 1
            came = program.heard[each], len(data)
            assert came == (1, size_of(number, each)), f"{each} of {number} came back: {came}"
            # (What waited while the proxy ended is shown as it came.)
            assert not (who[1] not in (UDP, UDP_LATE) and time.monotonic() > self.ended_s + 2.0), (
                f"{program.number} got an answer from {who}"
            )

    def _living(self, udp=None, user=None):
        return [
            each for each in self.programs.values()
            if not each.closed and not each.over and udp in (None, each.udp) and user in (None, each.user)
        ]  # fmt: skip

    def _some(self, **which):
        found = self._living(**which)
        return self.random.choice(found) if found else None

    # Steps

    def _socket(self, kind, user, port=0, reuse=False):
        family = self.random.choice(["four", "four", "within", "six" if user != CAROL else "four"])
        one = socket.socket(
            socket.AF_INET if family == "four" else socket.AF_INET6, kind | socket.SOCK_NONBLOCK
        )
        if reuse:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        how = self.random.random()
        if port or how < 0.4:
            with suppress(OSError):
                one.bind(("::ffff:0.0.0.0" if family == "within" and how < 0.3 else "", port))
        host = {"four": ORIGIN, "six": ORIGIN6, "within": f"::ffff:{ORIGIN}"}[family]
        return one, host

    def open(self, user=None, port=0, to=None):
        user = user or self.random.choice(USERS)
        to = to or self.random.choice([ECHO, ECHO, AT_END, SHORT, RESETS, 1])
        with self.laptop.near.entered(), as_user(user):
            one, host = self._socket(
                socket.SOCK_STREAM, user, port, reuse=self.random.random() < 0.5
            )
            program = self._add(user, one, (host, to))
            self._connect(program)
            if self.random.random() < 0.4:
                self._send(program, self.random.choice([1, 100, 2000]))
        return program

    def _connect(self, program):
        try:
            program.one.connect(program.to)
        except BlockingIOError:
            pass
        except OSError as error:
            self._over(program, errno.errorcode[error.errno])

    def _send(self, program, records):
        first = program.sent
        last = min(first + records * RECORD.size, len(stream(program.number)))
        if program.over or program.orderly or first == last:
            return
        try:
            program.sent = last
            sent = program.one.send(stream(program.number)[first:last])
            program.sent = first + sent
        except BlockingIOError:
            program.sent = first
        except OSError as error:  # the next read would look like an end
            program.sent = first
            self._over(program, errno.errorcode[error.errno])

    def say(self):
        if (program := self._some(udp=False)) is not None:
            with as_user(program.user):
                self._send(program, self.random.choice([1, 10, 1000, 5000]))

    def half(self):
        if (program := self._some(udp=False)) is not None:
            program.orderly = True
            with suppress(OSError):
                program.one.shutdown(socket.SHUT_WR)

    def close(self, program=None):
        program = program or self._some()
        if program is None:
            return
        if not program.udp:
            how = self.random.random()
            if how < 0.3:
                program.one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                # (Bytes that it has not read make the kernel reset the connection.)
                program.orderly = True
        with suppress(KeyError, ValueError):
            self.selector.unregister(program.one)
        program.closed, program.closed_s = True, time.monotonic()
        program.one.close()

    def exit_and_next(self):
        """End a program; another user's takes its port at once."""
        if (program := self._some()) is None:
            return
        try:
            port = program.one.getsockname()[1]
        except OSError:
            return
        self.close(program)
        user = self.random.choice([each for each in USERS if each != program.user])
        if program.udp:
            self.open_datagrams(user, port, speaks=self.random.random() < 0.5)
        else:
            self.open(user, port)

    def open_datagrams(self, user=None, port=0, *, speaks=True):
        user = user or self.random.choice(USERS)
        with self.laptop.near.entered(), as_user(user):
            one, host = self._socket(socket.SOCK_DGRAM, user, port)
            to = host, self.random.choice([UDP, UDP_LATE])
            program = self._add(
                user, one, to, udp=True, connected=speaks and self.random.random() < 0.5
            )
            if program.connected:
                self._connect(program)
        if speaks:
            self._send_datagram(program)
        return program

    def _send_datagram(self, program, user=None):
        number = program.sent
        data = RECORD.pack(MARK, program.number, number).ljust(
            size_of(program.number, number), b"."
        )
        program.direct |= not self._led(user or program.user)
        if program.connected and not self.up:
            program.direct = True
        try:
            program.sent += 1
            with self.laptop.near.entered(), as_user(user or program.user):
                if self.random.random() < 0.05:
                    data, program.sent = b"", number
                if program.connected:
                    program.one.send(data)
                else:
                    program.one.sendto(data, (program.to[0], self.random.choice([UDP, UDP_LATE])))
        except OSError:
            pass

    def send_datagram(self):
        if (program := self._some(udp=True)) is not None:
            self._send_datagram(program)

    def burst(self):
        if (program := self._some(udp=True)) is not None:
            for _ in range(20):
                self._send_datagram(program)

    def passed(self):
        """Another user's program has got the descriptor, and sends by it."""
        if (program := self._some(udp=True)) is not None:
            self._send_datagram(program, self.random.choice(USERS))

    def wait(self):
        self.turn_until(lambda: False, self.random.choice([0.02, 0.1, 0.4]))

    def kill_proxy(self):
        self._end_proxy(signal.SIGKILL)

    def end_proxy(self):
        self._end_proxy(signal.SIGTERM)

    def _end_proxy(self, number, *, again=True):
        self.up, self.ended_s = False, time.monotonic()
        self.left_behind |= self.undo_silence is not None or number == signal.SIGKILL
        self.proxy.send_signal(number)
        self.turn_until(lambda: self.proxy.poll() is not None, 15)
        assert not (number == signal.SIGTERM and self.proxy.returncode != 0), (
            f"the proxy ended with {self.proxy.returncode}"
        )
        for each in self._living():
            # What has begun goes on; connected sockets may be led nowhere.
            if each.udp and each.connected and each.user != CAROL:
                self._over(each, "proxy")
            each.direct = each.direct or each.udp
        if again:
            for _ in range(self.random.randrange(6)):
                self.step(USUAL)
            self.forward()

    def gateway_away(self):
        self.laptop.gateway.kill()
        self.laptop.gateway.wait()
        for _ in range(self.random.randrange(20)):
            self.step(USUAL)
        log = self.folder / "gateway.log"
        with log.open("wb") as out:
            self.laptop.gateway = self.laptop.far.popen(
                *self._command("gateway"), "gateway", "--name", "10.99.0.1", "--allow-local",
                stdout=out, stderr=out, env=self.laptop.environment("server"),
            )  # fmt: skip
        self.laptop.keep(self.laptop.gateway)
        self.turn_until(lambda: b"ready" in log.read_bytes(), 20)

    def pause_gateway(self):
        self.laptop.gateway.send_signal(signal.SIGSTOP)
        self.wait()
        self.laptop.gateway.send_signal(signal.SIGCONT)

    def pause_proxy(self):
        self.proxy.send_signal(signal.SIGSTOP)
        for _ in range(5):
            self.step(USUAL)
        self.proxy.send_signal(signal.SIGCONT)

    def silence(self):
        if self.undo_silence is None:
            self.undo_silence = self.laptop.world.swallow("wlan0", "both", by="filter")
        else:
            self.undo_silence()
            self.undo_silence = None

    def step(self, among):
        (name,) = self.random.choices(list(among), list(among.values()))
        self.log.append(name)
        getattr(self, name)()
        self.turn()

    def settle(self):
        """End all in order; then nothing may be left, and new ones are served."""
        if self.undo_silence is not None:
            self.silence()
        for each in self._living(udp=False):
            each.orderly = True
            with suppress(OSError):
                each.one.shutdown(socket.SHUT_WR)
        self.turn_until(lambda: not self._living(udp=False), 40)
        stuck = self._living(udp=False)
        for each in list(self.programs.values()):
            if not each.closed:
                self.close(each)
        assert not stuck, stuck[:3]
        # (A session that its proxy left without a word stays: the gateway waits for it.)
        if not self.left_behind:
            assert self.turn_until(lambda: not self._held(), 30), self._held()[:3]

    def _held(self):
        """Return the connections from the gateway that are open at the servers."""
        return [each for each in self.served if not each.closed and not is_direct(each.who)]

    def serve_again(self):
        for user in USERS:
            for _ in range(2):
                for _ in range(10):  # (a gateway that was away is not asked for some seconds)
                    one = self.open(user, to=ECHO)
                    self._send(one, 10)
                    self.turn_until(lambda: one.over or len(one.got) == one.sent > 0, 5)  # noqa: B023
                    if not one.over:
                        break
                    self.close(one)
                    self.turn_until(lambda: False, 1.0)
                assert (one.over, len(one.got)) == ("", one.sent), f"not served any more: {one}"
                one.orderly = True
                one.one.shutdown(socket.SHUT_WR)
                self.turn_until(lambda: one.over, 10)  # noqa: B023
                self.close(one)
            one = self.open_datagrams(user)
            for _ in range(20):
                self._send_datagram(one)
                if self.turn_until(lambda: one.heard, 0.5):  # noqa: B023
                    break
            assert one.heard, f"no datagrams any more: {one}"
            self.close(one)

    def accounts(self):
        """Return what the proxy counts and holds once its associations have ended."""
        self.turn_until(lambda: False, 2.2)
        file = self.folder / "proxy.accounts"
        file.unlink(missing_ok=True)
        self.proxy.send_signal(signal.SIGUSR1)
        assert self.turn_until(lambda: file.exists() and file.read_text().endswith("}"), 5)
        held = json.loads(file.read_text())
        held["proxy's sockets"] = sockets(self.proxy)
        if not self.left_behind:
            held["gateway's sockets"] = sockets(self.laptop.gateway)
        return held

    def rules(self):
        """Return what the laptop's kernel does with packets."""
        found = []
        for words in (
            "iptables-save",
            "ip6tables-save",
            "ip rule",
            "ip -6 rule",
            "ip route show table all",
        ):
            found += self.laptop.near.run(*words.split()).stdout.splitlines()
        # (A table that was used stays, empty; the kernel's own link-local addresses come a second late.)
        own = [line for line in found if "fe80:" not in line and "ff00::" not in line]
        return sorted(line for line in own if line[:1] not in "#*:C")

    def summary(self):
        all_, came = self.programs.values(), Counter(each.over for each in self.served)
        heard = sum(sum(each.heard.values()) for each in all_)
        sent = sum(each.sent for each in all_ if each.udp)
        ended = Counter(each.over for each in all_)
        rare = [each for each in self.log if each in RARE]
        return f"{ended}, {came}, {heard} of {sent} datagrams, {rare}, {self.log[-10:]}"

    def finish(self):
        for each in self.keep:
            each.close()
        for each in self.programs.values():
            each.one.close()
        for each in self.served:
            each.one.close()
        self.selector.close()


def is_direct(who):
    return who.startswith("10.9.")


@cache
def size_of(number, each):
    return random.Random(number * 1000 + each).choice([12, 12, 40, 200, 1200, 1472, 9000, 60_000])


def sockets(process):
    """Return the number of a process's sockets."""
    links = [str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()]
    return sum(each.startswith("socket") for each in links)


# What only tells times, ports, or what was learnt of servers.
NO_ACCOUNTS = (
    "_s",
    "port",
    "_sizes",
    "_ports",
    "_known",
    "_cookie",
    "_max_hosts",
    "_direct",
    "_tables",
    "_held",
)
WALKS, STEPS, FIRST = (
    int(os.environ.get(f"CEDOS_WALK{name}", usual))
    for name, usual in (("S", 1), ("_STEPS", 80), ("_FIRST", 1))
)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WALKS))
def test_a_walk_of_three_users(laptop, tmp_path, seed):
    """Search with CEDOS_WALKS=20 CEDOS_WALK_STEPS=250: odd seeds fail closed, even ones open."""
    fail = "closed" if seed % 2 else "open"
    walk = RedirectionWalk(laptop, tmp_path, seed, fail)
    try:
        walk.serve_again()
        before = walk.accounts()
        for _ in range(STEPS):
            walk.step(USUAL | RARE)
        walk.settle()
        walk.serve_again()
        more = grown(before, walk.accounts())
        kept = {
            name: value
            for name, value in more.items()
            if not any(f"{part}." in f"{name}." for part in NO_ACCOUNTS)
        }
        assert not kept, kept
        walk._end_proxy(signal.SIGTERM, again=False)
        assert walk.rules() == walk.rules_before
    finally:
        print(seed, fail, walk.summary())
        walk.finish()
