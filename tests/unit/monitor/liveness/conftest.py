"""Two networks, what a portal watch tells of them, and servers that do not answer."""

import asyncio
import time
from ipaddress import ip_address, ip_interface

import pytest

from cedos.model import FlowKey, Indicator, Network, NetworkKind
from cedos.monitor.events import FlowSample
from cedos.monitor.liveness.portal_verdict import PortalFinding
from cedos.monitor.liveness.portal_watch import PortalWatch


class Told:
    """Keeps what a watch told; `answers` is what a check of each network finds.

    Attributes:
        values: network and `captive`, as told.
        checks: network and time-out of every fetch of the test page.
        asked: the networks whose router was asked.
    """

    def __init__(self, answers: dict[str, PortalFinding]) -> None:
        self.answers = answers
        self.values: list[tuple[str, float]] = []
        self.checks: list[tuple[str, float]] = []
        self.asked: list[str] = []

    def __call__(self, name: str, captive: Indicator) -> None:
        self.values.append((name, captive.value))

    async def check(self, network: Network, timeout_s: float) -> PortalFinding:
        self.checks.append((network.name, timeout_s))
        return self.answers[network.name]

    async def gateway(self, network: Network) -> bool:
        """Its router answers."""
        self.asked.append(network.name)
        return True


class Desk:
    """Wi-Fi (`home`), a phone, and who watches them."""

    wifi = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
    lte = Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, (ip_interface("10.0.2.2/24"),))

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def run(self, watch: PortalWatch) -> None:
        """Until the test's event loop ends."""
        self.tasks.append(asyncio.create_task(watch.run()))

    @staticmethod
    def listen(answers: dict[str, PortalFinding] | None = None) -> Told:
        """Without answers every fetch of a page fails."""
        return Told(answers if answers is not None else {})

    @staticmethod
    def flow(network: Network, server: int, *, state: int = 1, down: int = 0) -> FlowSample:
        """A connection over a network to a server, given by the last number of its address."""
        local = network.addresses[0].ip
        key = FlowKey(local, 5000 + server, ip_address(f"198.51.100.{server}"), 443)
        return FlowSample(key, 1.0, state, None, None, None, None, down, 0, 0, 9.0, 0)

    def nobody_answers(self, watch: PortalWatch) -> None:
        """Two servers have not answered over Wi-Fi for a second."""
        for server in ("198.51.100.1", "198.51.100.2"):
            watch._unanswered.rescued(self.wifi.name, ip_address(server), time.monotonic() - 1.0)
        watch.unanswered(self.wifi.name)


@pytest.fixture
def desk() -> Desk:
    return Desk()
