"""Two networks, what a portal watch tells of them, and servers that do not answer."""

import asyncio
import time
from ipaddress import ip_address, ip_interface

import pytest

from cedos.controller.events import FlowSample
from cedos.controller.networks.liveness import Liveness
from cedos.host.monitor.liveness.portal_verdict import PortalFinding
from cedos.host.monitor.liveness.portal_watch import PortalWatch
from cedos.host.monitor.liveness.tls_check import TlsAnswer
from cedos.model import FlowKey, Network, NetworkKind, NetworkLife


class Told:
    """Keeps the states that a watch tells; `answers` is what a check of each network finds.

    Attributes:
        tls: what a well-known host answers over each network.
        checks: network and time-out of every fetch of the test page.
        shaken: the networks over which that host was asked.
    """

    def __init__(self, answers: dict[str, PortalFinding]) -> None:
        self.answers = answers
        self.tls: dict[str, TlsAnswer] = {}
        self.states = {"home": Liveness(), "phone": Liveness()}
        self.checks: list[tuple[str, float]] = []
        self.shaken: list[str] = []

    def __call__(self, name: str) -> Liveness:
        return self.states.setdefault(name, Liveness())

    def life(self, name: str = "home") -> NetworkLife:
        return self.states[name].verdict(time.monotonic()).life

    async def check(self, network: Network, timeout_s: float) -> PortalFinding:
        self.checks.append((network.name, timeout_s))
        return self.answers[network.name]

    async def shake_hands(self, network: Network, timeout_s: float) -> TlsAnswer | None:
        self.shaken.append(network.name)
        return self.tls.get(network.name)


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
    def flow(
        network: Network, server: int, *, state: int = 1, down: int = 0, port: int = 443
    ) -> FlowSample:
        """A connection over a network to a server, given by the last number of its address."""
        local = network.addresses[0].ip
        key = FlowKey(local, 5000 + server, ip_address(f"198.51.100.{server}"), port)
        return FlowSample(key, 1.0, state, None, None, None, None, down, 0, 0, 9.0, 0)


@pytest.fixture
def desk() -> Desk:
    return Desk()
