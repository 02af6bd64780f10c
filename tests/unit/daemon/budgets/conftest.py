"""A host with budgets, over two networks, a clock and a battery that a test turns."""

from collections.abc import Callable
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path

import pytest

from cedos.config import Config
from cedos.controller.events import Event, ObjectiveChanged
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.metering import Metering, money_per_mb, radios_of
from cedos.daemon.decisions.choices import curves, objective
from cedos.host.monitor.providers.battery import Battery
from cedos.kernel.rtnetlink import Counters
from cedos.model import Network, NetworkKind
from cedos.selector.objective import Objective
from cedos.storage.usage import Usage

LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
NOW_S = datetime(2026, 11, 21, 9, 0).timestamp()


class Power:
    """A battery of which a test says what it holds."""

    answered = True

    def __init__(self) -> None:
        self.now: Battery | None = Battery(0.5, True, 1e5, 10.0)

    async def read(self) -> Battery | None:
        return self.now


class Host:
    """A daemon's part with a clock that a test turns."""

    def __init__(self, state: Path, config: Config | None = None, boot: str = "boot-1") -> None:
        self.config = config or Config()
        self.now_s = NOW_S
        self.steady_s = 1000.0
        self.state = state
        self.power = Power()
        self.carried = {"wlan0": [10**10, 10**10], "lte0": [5 * 10**9, 10**9]}
        self.start(boot)

    def start(self, boot: str = "boot-1") -> None:
        """Another daemon begins."""
        self.preferred: list[tuple[Objective, bool]] = []
        self.usage = Usage(self.state / "usage.sqlite", boot)
        self.metering = Metering(
            self.usage, boot, [WLAN, LTE], radios_of(self.config), money_per_mb(self.config)
        )
        self.budgets = HostBudgets(
            self.config,
            self.state,
            self.usage,
            self.metering,
            lambda: [WLAN, LTE],
            self._post,
            objective(self.config),
            curves=curves(self.config),
            battery=self.power,
            clock=lambda: self.now_s,
            steady=lambda: self.steady_s,
        )
        self.tick()

    def _post(self, event: Event) -> None:
        if isinstance(event, ObjectiveChanged):
            self.preferred.append((event.objective, event.urgent))

    def carry(self, name: str, received: int, sent: int = 0) -> None:
        self.carried[name][0] += received
        self.carried[name][1] += sent

    def tick(self, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.steady_s += after_s
        for network in (WLAN, LTE):
            received, sent = self.carried[network.name]
            self.metering.on_counters(network, Counters(received, sent), self.steady_s)
        self.budgets.tick()

    def spent(self, name: str = "data") -> float:
        self.budgets.tick()
        return self.budgets.keepers[name].spent


@pytest.fixture
def make_host(tmp_path: Path) -> Callable[..., Host]:
    """Makes one by its configuration; what it keeps is in the test's folder."""

    def make(config: Config | None = None) -> Host:
        return Host(tmp_path, config)

    return make


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host()
