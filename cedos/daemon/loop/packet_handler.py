"""Takes the captured first packets, and tells the sizes that they reveal."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cedos.daemon.driver import ControllerDriver
from cedos.host.profiler.capture import Capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.kernel.netlink import BatchedReader

# Seconds between two looks at the captured packets.
_TOGETHER_S = 0.02

_AT_ONCE = 256

# No network carries loopback's packets, and no event reports the ends of its flows.
_LOOPBACK = "lo"

# The most packets from outside that wait for their flow to be known, and for how many seconds.
_HELD, _HELD_S = 64, 2.0


@dataclass(slots=True)
class PacketHandler:
    """From packets to sizes."""

    capture: Capture | None
    profiler: Profiler
    driver: ControllerDriver
    _read_at_s: float = -math.inf
    _held: deque[tuple[float, CapturedPacket]] = field(default_factory=lambda: deque(maxlen=_HELD))

    def begin(self) -> Callable[[], None]:
        """Read what is captured from now on; return a function that ends it."""
        if self.capture is None:
            return lambda: None
        return BatchedReader(self.capture.fileno(), self._read, _TOGETHER_S).close

    def read_before(self, at_s: float) -> None:
        """Take what was captured before a monotonic instant, if there may be any."""
        if self._read_at_s < at_s:
            self._read()

    def _read(self) -> bool:
        now_s = self._read_at_s = time.monotonic()
        packets = self.capture.read(_AT_ONCE) if self.capture else []
        for captured in self._ours(packets, now_s):
            # A message may begin on any subflow; the profiler knows a connection by its first one.
            flow = self.driver.controller.flows.find(captured.key)
            about = captured if flow is None else captured._replace(key=flow.key)
            for event in self.profiler.observe(about, now_s):
                self.driver.post(event)
        return bool(packets)

    def _ours(self, packets: Iterable[CapturedPacket], now_s: float) -> Iterator[CapturedPacket]:
        """Return those of flows of this host, as far as that is known by now.

        Any host can send a packet that looks like an answer. It is one where this host has sent
        something on that flow, or has a socket for it; until then it is kept for a moment.
        """
        held = list(self._held)
        self._held.clear()
        for at_s, captured in (*held, *((now_s, each) for each in packets)):
            if captured.interface == _LOOPBACK:
                continue
            if (
                captured.outgoing
                or self.driver.controller.flows.find(captured.key) is not None
                or self.profiler.knows(captured.key)
            ):
                yield captured
            elif now_s - at_s <= _HELD_S:
                self._held.append((at_s, captured))
