"""Takes the captured first packets, and tells the sizes that they reveal."""

import asyncio
import time

from cedos.daemon.director import Director
from cedos.daemon.flows import Flows, LivingFlow
from cedos.daemon.observe import Observer
from cedos.profiler.capture import Capture
from cedos.profiler.profiler import Profiler

_REST_S = 0.025
"""After a look at the captured packets the next ones wait so long, and are looked at together."""

_AT_ONCE = 256


class Captured:
    """From packets to sizes; a connection whose size became known is decided on again.

    Args:
        capture: where the packets come from; None: from nowhere.
        flows: the living flows.
        profiler: makes sizes of packets.
        director: decides.
        observer: knows the networks.
    """

    def __init__(
        self,
        capture: Capture | None,
        flows: Flows,
        profiler: Profiler,
        director: Director,
        observer: Observer,
    ) -> None:
        self._capture = capture
        self._flows = flows
        self._profiler = profiler
        self._director = director
        self._observer = observer
        self._told: asyncio.Queue[LivingFlow] = asyncio.Queue()

    async def run(self) -> None:
        """Takes packets until it is cancelled."""
        if self._capture is None:
            return
        loop, fd = asyncio.get_running_loop(), self._capture.fileno()
        rest: asyncio.TimerHandle | None = None

        def ready() -> None:
            nonlocal rest
            loop.remove_reader(fd)
            rest = loop.call_later(_REST_S, loop.add_reader, fd, ready)
            self.read()

        loop.add_reader(fd, ready)
        try:
            while True:
                flow = await self._told.get()
                async with self._director.turn:
                    await self._director.moves.reconsider(flow, self._observer.context())
        finally:
            if rest is not None:
                rest.cancel()
            loop.remove_reader(fd)

    def read(self) -> None:
        """Takes the packets that are there."""
        now_s = time.monotonic()
        for captured in self._capture.read(_AT_ONCE) if self._capture else ():
            # A message may begin on any subflow; the profiler knows a connection by its first one.
            flow = self._flows.find(captured.key)
            about = captured if flow is None else captured._replace(key=flow.key)
            for event in self._profiler.observe(about, now_s):
                learned = self._flows.learned(event)
                if learned is not None and learned.token is not None:
                    self._told.put_nowait(learned)
