"""Whether a program's connection goes direct: the daemon's word, asked beside the connections."""

import asyncio
from pathlib import Path
from typing import Final

from cedos.api.choosing import ChoiceRequest, DetourRequest
from cedos.api.client import ControlClient
from cedos.errors import CedosError
from cedos.model import Urgency

ASK_S: Final = 2.0
VALID_S: Final = 10.0
"""An answer counts for so long: a daemon that has ended, and networks that were, leave no trace."""

_ABSENT_S: Final = 10.0
_TIMEOUT_S: Final = 1.0
_MOST_PORTS: Final = 256
_USUAL_BYTES: Final = 30_000
"""How much comes is not known before: an object of a web page."""


class DaemonRoutes:
    """Nobody waits for an answer: without one that counts, connections take the gateway."""

    def __init__(self, socket: Path) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._answers: dict[int, tuple[float, bool]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._absent_s = float("-inf")

    def direct(self, port: int, gateway_rtt_s: float | None) -> bool:
        """Whether a connection to that port goes direct now; to be called in the event loop."""
        now = asyncio.get_running_loop().time()
        told_s, direct = self._answers.get(port, (float("-inf"), False))
        if now - told_s > ASK_S and gateway_rtt_s is not None and self._may_ask(port, now):
            asking = asyncio.get_running_loop().create_task(self._ask(port, gateway_rtt_s))
            self._asking[port] = asking
            asking.add_done_callback(lambda _done: self._asking.pop(port, None))
        return direct and now - told_s <= VALID_S

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _may_ask(self, port: int, now: float) -> bool:
        return (
            port not in self._asking
            and len(self._asking) < _MOST_PORTS
            and now - self._absent_s > _ABSENT_S
        )

    async def _ask(self, port: int, gateway_rtt_s: float) -> None:
        request = ChoiceRequest(
            size_bytes=_USUAL_BYTES,
            urgency=Urgency.FOREGROUND,
            redundant=True,
            multipath=True,
            detour=DetourRequest(rtt_s=gateway_rtt_s, port=port),
        )
        now = asyncio.get_running_loop().time()
        try:
            decision = await asyncio.to_thread(self._client.choose, request)
        except CedosError:  # none there, another version, not ours to ask
            self._absent_s = now
            return
        if len(self._answers) >= _MOST_PORTS:
            self._answers.clear()
        self._answers[port] = (now, bool(decision.direct))
