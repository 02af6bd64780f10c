"""Two networks, what a portal watch tells of them, and servers that do not answer."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from cedos.model import FlowKey, Indicator, Network, NetworkKind
from cedos.monitor.events import FlowSample
from cedos.monitor.portal import Finding
from cedos.monitor.portal_watch import PortalWatch


@pytest.fixture
def wifi() -> Network:
    return Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))


@pytest.fixture
def lte() -> Network:
    return Network("phone", "lte0", 2, NetworkKind.CELLULAR, True, (ip_interface("10.0.2.2/24"),))


@pytest.fixture
def flow() -> Callable[..., FlowSample]:
    """A connection over a network to a server, given by the last number of its address."""

    def make(network: Network, server: int, *, state: int = 1, down: int = 0) -> FlowSample:
        local = network.addresses[0].ip
        key = FlowKey(local, 5000 + server, ip_address(f"198.51.100.{server}"), 443)
        return FlowSample(key, 1.0, state, None, None, None, None, down, 0, 0, 9.0, 0)

    return make


class Told:
    """Keeps what a watch told; `answers` is what a look at each network finds.

    Attributes:
        values: network and `captive`, as told.
        looks: network and time-out of every look at the test page.
        asked: the networks whose router was asked.
    """

    def __init__(self, answers: dict[str, Finding]) -> None:
        self.answers = answers
        self.values: list[tuple[str, float]] = []
        self.looks: list[tuple[str, float]] = []
        self.asked: list[str] = []

    def __call__(self, name: str, captive: Indicator) -> None:
        self.values.append((name, captive.value))

    async def check(self, network: Network, timeout_s: float) -> Finding:
        self.looks.append((network.name, timeout_s))
        return self.answers[network.name]

    async def gateway(self, network: Network) -> bool:
        """Its router answers."""
        self.asked.append(network.name)
        return True


@pytest.fixture
def listen() -> Callable[..., Any]:
    """`listen({"home": FREE})` is such a listener; without answers every look at a page fails."""
    return lambda answers=None: Told(answers if answers is not None else {})


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Waits for a condition."""

    async def wait(condition: Callable[[], object], limit_s: float = 5.0) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.005)

    return wait


@pytest.fixture
def nobody_answers(wifi: Network) -> Callable[[PortalWatch], None]:
    """Two servers have not answered over Wi-Fi for a second."""

    def wait(watch: PortalWatch) -> None:
        for server in ("198.51.100.1", "198.51.100.2"):
            watch._unanswered.rescued(wifi.name, ip_address(server), time.monotonic() - 1.0)
        watch.unanswered(wifi.name)

    return wait


@pytest.fixture
async def run() -> AsyncIterator[Callable[[PortalWatch], None]]:
    """Runs watches; they end with the test."""
    tasks = []

    def start(watch: PortalWatch) -> None:
        tasks.append(asyncio.create_task(watch.run()))

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
