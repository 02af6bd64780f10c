"""A host with budgets, over two networks, a clock and a battery that a test turns."""

from datetime import datetime
from ipaddress import ip_interface

import pytest
from kit.controller import Rates

from cedos.config import Config
from cedos.controller.commands import BarNetworks
from cedos.controller.config import Choices
from cedos.controller.controller import Controller
from cedos.controller.events import BatteryRead, CommandDone, NetworksChanged
from cedos.daemon import state_file
from cedos.daemon.api_backend import budget_messages
from cedos.daemon.budgets.host_budgets import LEARNED, LEARNED_FILE, HostBudgets
from cedos.daemon.budgets.metering import Metering, money_per_mb, radios_of
from cedos.daemon.startup import controller_config, objective
from cedos.kernel.rtnetlink import Counters
from cedos.model import Network, NetworkKind
from cedos.storage.usage import Usage

LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
NOW_S = datetime(2026, 11, 21, 9, 0).timestamp()


class Power:
    """A battery of which a test says what it holds."""

    def __init__(self):
        self.now = BatteryRead(0.5, True, 1e5)

    async def read(self):
        return self.now


class Host:
    """A daemon's part with a clock that a test turns."""

    def __init__(self, state, config=None, boot="boot-1"):
        self.config = config or Config()
        self.now_s = NOW_S
        self.steady_s = 1000.0
        self.state = state
        self.power = Power()
        self.carried = {"wlan0": [10**10, 10**10], "lte0": [5 * 10**9, 10**9]}
        self.start(boot)

    def start(self, boot="boot-1", present=(WLAN, LTE)):
        """Another daemon begins."""
        self.present = present
        self.usage = Usage(self.state / "usage.sqlite", boot)
        self.metering = Metering(
            self.usage, boot, present, radios_of(self.config), money_per_mb(self.config)
        )
        kept = state_file.read(self.state / LEARNED_FILE, LEARNED)
        choices = Choices(
            *(objective(self.config), Rates(), 3000),
            price_per_mb=money_per_mb(self.config),
        )
        settings = controller_config(self.config, choices, 1, dry_run=False)
        self.controller = Controller(settings, budgets=kept)
        self.bars = []
        self.post(NetworksChanged(tuple(present)))
        self.budgets = HostBudgets(
            self.config,
            self.state,
            self.usage,
            self.metering,
            self.controller.budgets,
            self.post,
            battery=self.power,
            clock=lambda: self.now_s,
            steady=lambda: self.steady_s,
        )
        self.tick()

    def post(self, event):
        """An event happens; networks are barred as the controller commands."""
        waiting = [event]
        while waiting:
            self.controller.handle(waiting.pop(0), self.steady_s)
            for command in self.controller.commands():
                if isinstance(command, BarNetworks):
                    self.bars.append(command.networks)
                    waiting.append(CommandDone(command))

    @property
    def known(self):
        return self.controller.budgets

    @property
    def objective(self):
        return self.controller.decider.objective

    def messages(self):
        return budget_messages(self.controller, self.budgets.source, self.now_s)

    def standings(self):
        return self.known.standings(self.now_s)

    def offered(self, size, chosen, joules=1.0):
        """A choice came up: over Wi-Fi it would take nine seconds, over LTE one."""
        options = [("wlan0", 9.0, 1.0, size), ("lte0", 1.0, joules, size)]
        self.known.on_choice(options, chosen, self.steady_s)

    def carry(self, name, received, sent=0):
        self.carried[name][0] += received
        self.carried[name][1] += sent

    def tick(self, after_s=1.0):
        self.now_s += after_s
        self.steady_s += after_s
        for network in self.present:
            received, sent = self.carried[network.name]
            self.metering.on_counters(network, Counters(received, sent), self.steady_s)
        self.budgets.tick()

    def spent(self, name="data"):
        self.budgets.tick()
        return self.known.keepers[name].spent


@pytest.fixture
def make_host(tmp_path):
    """Makes one by its configuration; what it keeps is in the test's folder."""

    def make(config=None, folder="."):
        return Host(tmp_path / folder, config)

    return make


@pytest.fixture
def host(make_host):
    return make_host()
