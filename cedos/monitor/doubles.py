"""Stand-ins for the kernel, so that what joins the monitor can be tested without one."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping

from cedos.model import Address, FlowKey, Indicator, Network
from cedos.monitor.events import (
    FlowClosed,
    FlowEvent,
    FlowOpened,
    FlowSample,
    Mailbox,
    NetworkEvent,
)
from cedos.monitor.networks.links import compare
from cedos.monitor.probing.prober import OpenPinger


class PlayedLinks:
    """Networks that a test brings up and takes away (`events.Links`)."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = {network.name: network for network in networks}
        self._mailbox: Mailbox[NetworkEvent] = Mailbox()

    def play(self, networks: Iterable[Network]) -> None:
        """Makes these the networks, and tells what changed."""
        before, self._networks = self._networks, {network.name: network for network in networks}
        for event in compare(before, self._networks, time.monotonic()):
            self._mailbox.put(event)

    def networks(self) -> list[Network]:
        """All networks now."""
        return list(self._networks.values())

    def metrics(self) -> Mapping[str, int]:
        """Metrics in the order in which the networks were given."""
        return {name: rank for rank, (name, n) in enumerate(self._networks.items()) if n.up}

    def is_local(self, address: Address) -> bool:
        """Whether the address is one of a network's own."""
        return any(address == own.ip for n in self._networks.values() for own in n.addresses)

    def events(self) -> AsyncIterator[NetworkEvent]:
        """Changes from now on."""
        return self._mailbox.iterate()

    def close(self) -> None:
        """Ends the events."""
        self._mailbox.close()


class PlayedFlows:
    """Flows that a test opens and closes (`events.Flows`).

    Attributes:
        living: what `snapshot` returns.
    """

    def __init__(self) -> None:
        self.living: list[FlowSample] = []
        self._mailbox: Mailbox[FlowEvent] = Mailbox()

    def open(self, key: FlowKey) -> None:
        """Tells that a flow opened."""
        self._mailbox.put(FlowOpened(key, time.monotonic(), time.time()))

    def finish(self, closed: FlowClosed) -> None:
        """Tells that a flow closed."""
        self._mailbox.put(closed)

    def events(self) -> AsyncIterator[FlowEvent]:
        """Openings and ends from now on."""
        return self._mailbox.iterate()

    async def snapshot(self) -> list[FlowSample]:
        """The flows in `living`."""
        return list(self.living)

    def close(self) -> None:
        """Ends the events."""
        self._mailbox.close()


class PlayedProvider:
    """Indicators that a test sets: network name -> indicators (`providers.IndicatorProvider`)."""

    def __init__(self, known: Mapping[str, Mapping[str, Indicator]]) -> None:
        self.known = dict(known)

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """What was set for the network."""
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
