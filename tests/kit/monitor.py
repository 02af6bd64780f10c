"""Stand-ins for what the monitor reads: indicators that a test sets, pings that it answers."""

import asyncio
from collections.abc import Callable, Mapping

from cedos.host.monitor.probing.prober import OpenPinger
from cedos.model import Address, Indicator, Network


class PlayedProvider:
    """Indicators that a test sets: network name -> indicators (`providers.IndicatorProvider`)."""

    def __init__(self, known: Mapping[str, Mapping[str, Indicator]]) -> None:
        self.known = dict(known)

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """Return what was set for the network."""
        return self.known.get(network.name, {})

    async def close(self) -> None:
        """Nothing to let go of."""


def played_pinger(rtts_s: Mapping[str, float | None]) -> OpenPinger:
    """For `Prober(open_pinger=...)`: answers after the interface's RTT, never where it is None.

    An interface that is missing refuses to send. The mapping is looked up at each ping.
    """

    class PlayedPinger:
        def __init__(
            self, interface: str, version: int, on_reply: Callable[[int, float], None]
        ) -> None:
            self._interface = interface
            self._on_reply = on_reply
            self._sent = 0
            self._timers: dict[int, asyncio.TimerHandle] = {}

        def send(self, target: Address) -> int:
            if self._interface not in rtts_s:
                raise OSError(f"{self._interface}: unreachable")
            self._sent += 1
            rtt_s = rtts_s[self._interface]
            if rtt_s is not None:
                self._timers[self._sent] = asyncio.get_running_loop().call_later(
                    rtt_s, self._on_reply, self._sent, rtt_s
                )
            return self._sent

        def forget(self, sequence: int) -> None:
            if (timer := self._timers.pop(sequence, None)) is not None:
                timer.cancel()

        def close(self) -> None:
            for timer in self._timers.values():
                timer.cancel()

    return PlayedPinger
