"""When the stream of a session may use metered networks, by what was told of it (Cedos, III-C)."""

import asyncio
from collections.abc import Callable

from cedos.session.io.driver import Driver
from cedos.session.io.flow import SessionFlow
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.protocol.session import Session
from cedos.session.sockets.buffer_gate import BufferGate
from cedos.session.sockets.deadline_gate import DeadlineGate


class MeteredGate:
    """The one of an end that dials; always open until `wait_for` is called.

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
        """As `Connection.wait_for`; `check` decides then."""
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
        """Decides again, and from now on every now and then."""
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
