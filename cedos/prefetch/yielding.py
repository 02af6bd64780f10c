"""A transfer ahead of time that keeps out of other programs' way, in the loop it runs in."""

import asyncio
import time
from types import TracebackType
from typing import Any, Final

from cedos.kernel.tcp_info import receive_rtt_s, tcp_info
from cedos.model import Urgency
from cedos.prefetch.background_window import MOST_BYTES, BackgroundWindow
from cedos.prefetch.bound import clamp_window
from cedos.prefetch.turn import Turn

_LOOK_S: Final = 0.010
"""Another program's first packet is on its way for longer than this, and its answer as long again."""
_LEAST_ROUND_S: Final = 0.020
_HARDLY_ANY_BYTES: Final = 1
"""The kernel makes it its least, a small segment a round trip."""


class Yielding:
    """While this block lasts, a connection reads only what leaves others their way.

    Its window keeps its queue short (`background_window`). While other programs begin something, or this
    one's user waits for something else, the window is closed; so the other end stops within a round trip.

    Args:
        transport: of the connection; None: it has been handed back already.
    """

    def __init__(self, transport: asyncio.Transport | None, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
        self._socket: Any = None if transport is None else transport.get_extra_info("socket")
        info = None if self._socket is None else tcp_info(self._socket)
        self._window = BackgroundWindow(None if info is None else info.rtt_min_s)
        self._came = 0
        self._round_at_s = 0.0
        self._paused = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Yielding":
        if self._socket is not None and self._behind:
            clamp_window(self._socket, self._window.bytes)
            self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            self._pause(False)

    def received(self, count: int) -> None:
        self._came += count

    @property
    def _behind(self) -> bool:
        return self._turn.label.urgency is Urgency.BACKGROUND

    async def _watch(self) -> None:
        while self._behind:
            self._pause(self._turn.waits())
            if not self._paused:
                self._steer(time.monotonic())
            await asyncio.sleep(_LOOK_S)
        self._pause(False)
        clamp_window(self._socket, MOST_BYTES)

    def _steer(self, now_s: float) -> None:
        rtt_s = receive_rtt_s(self._socket)
        if now_s - self._round_at_s < max(rtt_s or 0.0, _LEAST_ROUND_S):
            return
        self._round_at_s = now_s
        before = self._window.bytes
        came, self._came = self._came, 0
        if self._window.observe(rtt_s, came) != before:
            clamp_window(self._socket, self._window.bytes)

    def _pause(self, pauses: bool) -> None:
        transport = self._transport
        if pauses is self._paused or transport is None or transport.is_closing():
            return
        self._paused = pauses
        if pauses:
            transport.pause_reading()
            # Else as much would still come as the kernel's buffer holds.
            clamp_window(self._socket, _HARDLY_ANY_BYTES)
        else:
            transport.resume_reading()
            clamp_window(self._socket, self._window.bytes)
            self._came, self._round_at_s = 0, time.monotonic()
