"""Requests and uploads that an outage caught, by the bound of the retransmission time-out.

A laptop and a server in two namespaces for each bound, all at the same time. In each trial everything
is dropped for 5 to 30 s. Requests and uploads that begin in the first seconds of it count: how long after
its end is each answered? Then the network stays gone: ten connections wait for an acknowledgement, one
opens, and the program of one has closed it. What counts is for how long the kernel keeps them, how many
packets it sends, and the joules of these by the radio files of the repository.
"""

import os
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from cedos.model import Direction
from cedos.selector.energy import RadioEnergy
from cedos.steer.journal.sysctls import RETRANSMISSION, TCP_RTO_MAX
from cedos.storage import model_files
from emu.bench.caught_parts import programs
from emu.testbed.netns import Namespace

NAME = "caught"

_SHIPPED: Final = int(RETRANSMISSION[TCP_RTO_MAX][1])
_KERNELS: Final = int(RETRANSMISSION[TCP_RTO_MAX][0])
_OTHERS: Final = (1_000, 3_000, 4_000)
_OUTAGE_S: Final = (5.0, 30.0)
_TRIALS: Final = 14
_CAUGHT: Final = 20  # connections of a trial, half of them uploads
_WITHIN_S: Final = 3.0  # of the outage, they begin
_AFTER_S: Final = 32.0
_UPLOAD_BYTES, _ANSWER_BYTES = 40_000, 20_000  # (What a send buffer takes at once.)
_GONE_S: Final = 1_000.0
_WAITING: Final = 10
_LOOK_S: Final = 0.2
_AIR_S: Final = 0.001  # of one small packet, with its acknowledgement of the radio
_LAPTOP_W: Final = 6.0
_PORT: Final = 80
# The kernel's words for a socket that waits: SYN_SENT, and FIN_WAIT1 of one that its program closed.
_SYN_SENT, _FIN_WAIT1 = "02", "04"


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure; about 35 minutes.

    Returns:
        By bound (`kernel`, `shipped`, `1000ms`, ...): of `n` requests and uploads that were caught, how
        long after the outage they were answered (`_median_s`, `_p95_s`, `_within_share` of 2.2 s); where
        the network stays gone, `_packets` that were sent again, `_wifi_j` and `_lte_j` of these,
        `_laptop_share` that Wi-Fi's joules are of a laptop's hour at 6 W, and after how many seconds
        the first of ten connections (`_kept_s`), one that opens (`_connect_s`) and one that its program
        closed (`_closed_s`) were given up; 1000: none was. And those of `caught_parts.programs`.
    """
    return outages(progress) | networks_gone(progress) | programs.run(progress)


def outages(progress: Callable[[str], None]) -> dict[str, float]:
    dice = random.Random(41)
    with _pairs() as pairs:
        for trial in range(_TRIALS):
            outage_s = dice.uniform(*_OUTAGE_S)
            _each(pairs, partial(Pair.outage, outage_s=outage_s, trial=trial))
            progress(f"outage {trial + 1} of {_TRIALS}: {outage_s:.1f} s")
        return {"n": _TRIALS * _CAUGHT} | _named(pairs, Pair.figures)


def networks_gone(progress: Callable[[str], None]) -> dict[str, float]:
    progress(f"the network stays gone for {_GONE_S:.0f} s")
    with _pairs() as pairs:
        _each(pairs, Pair.gone)
        return _named(pairs, Pair.costs)


@contextmanager
def _pairs() -> "Iterator[dict[str, Pair]]":
    with ExitStack() as stack:
        yield {
            _name(bound): stack.enter_context(_pair(index, bound))
            for index, bound in enumerate((_KERNELS, _SHIPPED, *_OTHERS))
        }


def _named(
    pairs: "dict[str, Pair]", figures: "Callable[[Pair], dict[str, float]]"
) -> dict[str, float]:
    return {
        f"{name}_{key}": value
        for name, pair in pairs.items()
        for key, value in figures(pair).items()
    }


def _name(bound_ms: int) -> str:
    return {_KERNELS: "kernel", _SHIPPED: "shipped"}.get(bound_ms, f"{bound_ms}ms")


def _each(pairs: "dict[str, Pair]", do: "Callable[[Pair], None]") -> None:
    threads = [threading.Thread(target=do, args=(pair,)) for pair in pairs.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def _pair(index: int, bound_ms: int) -> Iterator["Pair"]:
    """Two namespaces joined by a wire; the first has the bound."""
    subnet = f"10.200.{index}"
    with ExitStack() as stack:
        ends = []
        for number, side in enumerate(("laptop", "server"), 1):
            end = Namespace.create(f"caught{os.getpid()}-{index}-{side}")
            stack.callback(end.remove)
            ends.append(end)
            if number == 2:
                ends[0].ip(
                    "link", "add", "w", "type", "veth", "peer", "name", "w", "netns", end.name
                )
        for number, end in enumerate(ends, 1):
            end.ip("addr", "add", f"{subnet}.{number}/24", "dev", "w")
            end.ip("link", "set", "w", "up")
        laptop, server = ends
        if bound_ms != _KERNELS:
            for key, (_, ours) in RETRANSMISSION.items():
                laptop.sysctl(key, bound_ms if key == TCP_RTO_MAX else ours)
        with server.entered():
            listening = socket.create_server((f"{subnet}.2", _PORT), backlog=200)
        stack.callback(listening.close)
        threading.Thread(target=_serve, args=(listening,), daemon=True).start()
        yield Pair(laptop, server, f"{subnet}.2")


def _serve(listening: socket.socket) -> None:
    """Answer each request of one byte, and each upload when all of it is here."""
    with suppress(OSError):
        while True:
            threading.Thread(target=_answer, args=(listening.accept()[0],), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with suppress(OSError), connection:
        while first := connection.recv(1):
            left = _UPLOAD_BYTES if first == b"u" else 0
            while left and (got := len(connection.recv(left))):
                left -= got
            connection.sendall(bytes(_ANSWER_BYTES))


@dataclass(slots=True)
class Pair:
    laptop: Namespace
    server: Namespace
    address: str
    after_s: list[float] = field(default_factory=list)
    sent_again_s: list[tuple[float, int]] = field(default_factory=list)
    given_up_s: dict[str, float] = field(default_factory=dict)

    def outage(self, outage_s: float, trial: int) -> None:
        dice = random.Random(trial)
        begins_s = sorted(dice.uniform(0.0, _WITHIN_S) for _ in range(_CAUGHT))
        connections = [self._connect() for _ in range(_CAUGHT)]
        self._drop(True)
        began_s = time.monotonic()
        for number, (connection, begin_s) in enumerate(zip(connections, begins_s, strict=True)):
            time.sleep(max(0.0, began_s + begin_s - time.monotonic()))
            connection.send(b"r" if number % 2 else b"u" + bytes(_UPLOAD_BYTES))
        time.sleep(max(0.0, began_s + outage_s - time.monotonic()))
        self._drop(False)
        self.after_s += self._answered(connections, time.monotonic())

    def gone(self) -> None:
        dice = random.Random(7)
        waiting = {self._connect(): "kept" for _ in range(_WAITING)}
        closed = self._connect()
        with self.laptop.entered():
            opening = socket.socket()
        opening.setblocking(False)
        self._drop(True)
        began_s = time.monotonic()
        for connection in waiting:
            connection.send(b"r")
            time.sleep(dice.uniform(0.0, 0.3))
        closed.send(b"r")
        closed.close()
        opening.connect_ex((self.address, _PORT))
        before = self._sent_again()
        alive = {"connect": _SYN_SENT, "closed": _FIN_WAIT1}
        while (now_s := time.monotonic() - began_s) < _GONE_S:
            time.sleep(_LOOK_S)
            after = self._sent_again()
            if after > before:
                self.sent_again_s.append((now_s, after - before))
            before = after
            states = self._states()
            for what in [what for what, state in alive.items() if state not in states]:
                self.given_up_s[what] = now_s
                del alive[what]
            for connection in list(waiting):
                if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    self.given_up_s.setdefault(waiting.pop(connection), now_s)
                    connection.close()

    def figures(self) -> dict[str, float]:
        ordered = sorted(self.after_s)
        return {
            "median_s": ordered[len(ordered) // 2],
            "p95_s": ordered[int(0.95 * len(ordered))],
            "within_share": sum(each <= 2.2 for each in ordered) / len(ordered),
        }

    def costs(self) -> dict[str, float]:
        radios = model_files.radios()
        wifi_j = self._joules(radios["lte-2012"]["wifi"])
        return {
            "packets": sum(count for _, count in self.sent_again_s),
            "wifi_j": wifi_j,
            "lte_j": self._joules(radios["delphi"]["lte"]),
            "laptop_share": wifi_j / (3_600 * _LAPTOP_W),
        } | {
            f"{what}_s": self.given_up_s.get(what, _GONE_S)
            for what in ("kept", "connect", "closed")
        }

    def _joules(self, radio: RadioEnergy) -> float:
        total_j, last_s = 0.0, None
        for at_s, count in self.sent_again_s:
            total_j += radio.added_tail_j(None if last_s is None else at_s - last_s)
            total_j += count * _AIR_S * radio.active_w(Direction.UP)
            last_s = at_s
        return total_j

    def _connect(self) -> socket.socket:
        with self.laptop.entered():
            return socket.create_connection((self.address, _PORT), timeout=_AFTER_S)

    def _drop(self, on: bool) -> None:
        for end in (self.laptop, self.server):
            end.run("iptables", "-w", "-t", "raw", "-A" if on else "-D", "PREROUTING", "-j", "DROP")

    def _answered(self, connections: list[socket.socket], ended_s: float) -> list[float]:
        """Return seconds after the end of the outage until each answer was here."""
        found: list[float] = []
        left = dict.fromkeys(connections, _ANSWER_BYTES)
        by_number = {connection.fileno(): connection for connection in connections}
        with selectors.DefaultSelector() as waiting:
            for connection in connections:
                waiting.register(connection, selectors.EVENT_READ)
            while left and (rest_s := ended_s + _AFTER_S - time.monotonic()) > 0:
                for ready, _ in waiting.select(rest_s):
                    connection = by_number[ready.fd]
                    left[connection] -= len(connection.recv(1 << 16))
                    if left[connection] <= 0:
                        del left[connection]
                        waiting.unregister(connection)
                        found.append(time.monotonic() - ended_s)
        for connection in connections:
            connection.close()
        return found + [_AFTER_S] * len(left)

    def _sent_again(self) -> int:
        with self.laptop.entered():
            names, values = (
                line.split()
                for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
                if line.startswith("Tcp:")
            )
        return int(values[names.index("RetransSegs")])

    def _states(self) -> set[str]:
        with self.laptop.entered():
            rows = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
        return {row.split()[3] for row in rows}
