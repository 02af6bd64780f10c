"""The gate that opens metered networks to the stream of a session (Cedos, III-C, III-D).

A stream that can wait has a deadline: all that waits in this process is planned in one table
(`OwnTable`) where no daemon keeps one for the host (`DeadlineGate`). A stream that is played has
thresholds of what is stored (`BufferGate`). `MeteredGate` asks the one that the program has set.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cedos.model import Direction
from cedos.selector.deadlines.network_state import METERED_S, SeenNetwork
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable
from cedos.session.io.driver import Driver
from cedos.session.io.flow import SessionFlow
from cedos.session.io.path import SessionPath
from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation
from cedos.session.protocol.session import Session


class OwnTable:
    """A `TransferTable` whose networks are those that lead to the servers: interface -> metered."""

    def __init__(self) -> None:
        self.table = TransferTable()

    def report(
        self,
        transfer: TableTransfer,
        used_bytes: Mapping[str, int],
        lasted_s: float,
        networks: Mapping[str, bool],
    ) -> None:
        """Report the progress of a transfer and plan again. ValueError: there are too many."""
        now = time.monotonic()
        self.table.report(transfer, now)
        self.table.add_bytes(transfer.key, dict(used_bytes), lasted_s, now)
        self.plan(networks)

    def remove(self, key: str, networks: Mapping[str, bool]) -> None:
        """Remove a transfer that is done or given up, and plan again for the others."""
        self.table.end(key)
        if len(self.table):
            self.plan(networks)

    def plan(self, networks: Mapping[str, bool]) -> None:
        """Decide again, for these networks."""
        seen = [
            SeenNetwork(name, up=True, price_s=METERED_S if metered else 0.0)
            for name, metered in networks.items()
        ]
        self.table.plan(seen, time.time(), time.monotonic())


# The table that all waiting transfers of this process share.
OWN_TABLE: Final = OwnTable()


_OVER_S: Final = 1.0
_FIRST_BYTES: Final = 2_000  # more than a handshake: what was wanted is coming


class BufferGate:
    """A `BufferManager` and the measurements it needs; a vanished network's are remembered."""

    CHECK_S = 0.1

    def __init__(self, buffer: BufferManager) -> None:
        self.buffer = buffer
        self.open = True
        self._metered_bps: float | None = None
        self._rtt_s: float | None = None
        self._counted: dict[int, int] = {}
        self._unmetered_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._up_s: float | None = None
        self._received = 0
        self._came_s = 0.0
        self._opened_s: float | None = None

    def update(
        self, paths: Iterable[SessionPath], received_bytes: int, buffered_bytes: int, now: float
    ) -> bool:
        """Decide again; return whether the decision changed."""
        paths = list(paths)
        living = [path for path in paths if path.facts.stalled_at_s is None]
        for path in living:
            rate_bps = path.rate_towards_us_bps()
            if path.facts.metered and rate_bps is not None:
                self._metered_bps = rate_bps
            if path.facts.metered and path.facts.rtt_s is not None:
                self._rtt_s = path.facts.rtt_s
        unmetered_bps = self._count(paths, now)
        if received_bytes != self._received:
            self._received, self._came_s = received_bytes, now
        up = any(not path.facts.metered for path in living)
        self._up_s = (now if self._up_s is None else self._up_s) if up else None
        situation = BufferSituation(
            buffered_bytes,
            None if self._up_s is None else now - self._up_s,
            unmetered_bps,
            self._metered_bps,
            self._rtt_s,
            now - self._came_s,
        )
        wanted = self.buffer.metered_wanted(situation)
        before, self.open = self.open, wanted
        if self.open and not before:
            self._opened_s = now
        return self.open is not before

    def _count(self, paths: list[SessionPath], now: float) -> float:
        """Return bit/s over unmetered paths; tell the buffer how long a metered one took to start."""
        for path in paths:
            came = path.received_bytes - self._counted.get(path.path_id, 0)
            if not path.facts.metered:
                self._unmetered_bytes += came
            elif self._opened_s is not None and path.received_bytes >= _FIRST_BYTES:
                self.buffer.on_start(now - self._opened_s)
                self._opened_s = None
        self._counted = {path.path_id: path.received_bytes for path in paths}
        marks = self._marks
        marks.append((now, self._unmetered_bytes))
        while len(marks) > 2 and marks[1][0] <= now - _OVER_S:
            marks.popleft()
        over_s = max(now - marks[0][0], _OVER_S)
        return 8 * (self._unmetered_bytes - marks[0][1]) / over_s


class DeadlineGate:
    """A stream's row in the table of this process, from the moment in which it has to wait.

    Free networks are open to every stream; the use of metered ones is decided for all streams of this
    process together. `open`: whether this one may use them.
    """

    CHECK_S = 0.5

    def __init__(self, server: str, deadline_s: float, expected_bytes: int) -> None:
        self._key = secrets.token_hex(16)
        self._server, self._expected = server, expected_bytes
        self._deadline_unix_s = time.time() + deadline_s
        self._used: dict[str, int] | None = None
        self._told_s = time.monotonic()
        self._networks: Mapping[str, bool] = {}
        self._closed = False
        self.open = True

    def update(
        self, received_bytes: int, by_network: Mapping[str, int], networks: Mapping[str, bool]
    ) -> bool:
        """Decide again; return whether the decision changed. `networks`: is each metered?"""
        before, self._networks = self.open, networks
        if received_bytes >= self._expected:
            self.close()
            self.open = False
            return before
        now = time.monotonic()
        known = by_network if self._used is None else self._used
        used = {name: count - known.get(name, 0) for name, count in by_network.items()}
        self._used, lasted_s, self._told_s = dict(by_network), now - self._told_s, now
        transfer = TableTransfer(
            self._key,
            0,
            "stream",
            self._server,
            Direction.DOWN,
            self._expected,
            received_bytes,
            self._deadline_unix_s,
        )
        try:
            OWN_TABLE.report(transfer, used, lasted_s, networks)
        except ValueError:  # too many: it goes as if it could not wait
            self.open = True
        else:
            served = OWN_TABLE.table.networks_of(self._key)
            self.open = any(networks.get(name, False) for name in served)
        return self.open is not before

    def close(self) -> None:
        """Remove the stream from the table."""
        if not self._closed:
            self._closed = True
            OWN_TABLE.remove(self._key, self._networks)


class MeteredGate:
    """The gate of an end that dials; always open until `wait_for` is called.

    Args:
        over: whether the session has ended.
    """

    def __init__(
        self, driver: Driver, core: Session, flow: SessionFlow, over: Callable[[], bool]
    ) -> None:
        self._driver = driver
        self._core = core
        self._flow = flow
        self._over = over
        self._gate: BufferGate | DeadlineGate | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._buffered: Callable[[], int] = lambda: 0
        self.expected_bytes = 0
        self.wanted_at_s: float | None = None
        """By the driver's clock; None: at no time."""

    @property
    def open(self) -> bool:
        return self._gate is None or self._gate.open

    def wait_for(
        self,
        server: str,
        deadline_s: float | None,
        expected_bytes: int,
        buffer: BufferManager | None,
        buffered: Callable[[], int],
    ) -> None:
        """Set what `Connection.wait_for` was given; `check` decides then."""
        self.wanted_at_s = None if deadline_s is None else self._driver.now() + deadline_s
        self.expected_bytes, self._buffered = expected_bytes, buffered
        if isinstance(self._gate, DeadlineGate):
            self._gate.close()
        self._gate = None
        if buffer is not None:
            self._gate = BufferGate(buffer)
        elif deadline_s is not None and expected_bytes > 0:
            self._gate = DeadlineGate(server, deadline_s, expected_bytes)

    def check(self) -> None:
        """Decide again, now and then periodically."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gate, dialler = self._gate, self._flow.dialler
        if self._over() or dialler is None:
            if isinstance(gate, DeadlineGate):
                gate.close()
            return
        if gate is None:
            dialler.check()
            return
        received_bytes = self._core.receiver.stream.received.floor
        if isinstance(gate, DeadlineGate):
            changed = gate.update(
                received_bytes, self._flow.received_by_network(), dialler.networks()
            )
        else:
            paths = self._flow.paths.values()
            buffered_bytes = self._core.readable_bytes + self._buffered()
            changed = gate.update(paths, received_bytes, buffered_bytes, self._driver.now())
            self._core.receiver.resize(gate.buffer.window_bytes)
        if changed:
            dialler.check()
        self._timer = self._driver.loop.call_later(gate.CHECK_S, self.check)
