"""A random walk over what is counted: each budget is charged what really passed, and never less.

Interfaces carry, go, come again, and begin to count anew; helpers carry; the daemon ends or is killed;
the host starts again. `CEDOS_WALKS=5000` walks longer.
"""

import os
import random
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.budget_kinds import Resource
from cedos.config import Config, NetworkConfig
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Every, Network, NetworkKind

PRICE = 0.01
HELPER = Network(
    "helper-1", "wlan0", 0, NetworkKind.HELPER, True, (ip_interface("169.254.1.5/32"),),
    leads_to=ip_address("198.51.100.9"), money_per_mb=0.001,
)  # fmt: skip
BUDGETS = {
    "metered": Budget("metered", Resource.DATA, 9e14, "2026-12-01T00:00:00", every=Every.MONTH),
    "lte0": Budget(
        "lte0", Resource.DATA, 9e14, "2026-12-01T00:00:00", networks=("lte0",), every=Every.MONTH
    ),
    "both": Budget("both", Resource.DATA, 9e14, "2027-01-01T00:00:00", networks=("lte0", "wlan0")),
    "cash": Budget("cash", Resource.MONEY, 9e14, "2026-12-01T00:00:00", every=Every.MONTH),
}
KINDS = {"wlan0": NetworkKind.WIFI, "lte0": NetworkKind.CELLULAR, "usb0": NetworkKind.CELLULAR}


class Port:
    """An interface, and what its counters say."""

    def __init__(self, name, index, metered):
        self.network = Network(name, name, index, KINDS[name], metered)
        self.counters = [0, 0]

    def carry(self, way, size):
        self.counters[way] += size


class World:
    def __init__(self, host, seed):
        self.host, self.random = host, random.Random(seed)
        self.index, self.boot = 10, 1
        self.ports = {}
        self.helper = [0, 0]
        self.passed = dict.fromkeys(BUDGETS, 0.0)
        # What a kill lost, and what it would lose: helpers have no counters in the kernel.
        # Then their bytes count as those of the link.
        self.lost = dict.fromkeys(BUDGETS, 0.0)
        self.helped = dict.fromkeys(BUDGETS, 0.0)
        self.more = self.helped_bytes = 0.0
        self.done = []
        for name in KINDS:
            self.comes(name)
        self.count()

    def comes(self, name):
        self.index += 1
        self.ports[name] = Port(name, self.index, name != "wlan0")

    def charge(self, name, size, *, helped=False):
        metered = not helped and self.ports[name].network.metered
        shares = {
            "metered": metered,
            "lte0": name == "lte0" and not helped,
            "both": name in ("lte0", "wlan0") and not helped,
            "cash": HELPER.money_per_mb / 1e6 if helped else PRICE / 1e6 * (name == "lte0"),
        }
        for budget, share in shares.items():
            self.passed[budget] += share * size
            if helped:
                self.helped[budget] += share * size
        self.helped_bytes += size * helped

    def count(self):
        host = self.host
        helper = replace(
            HELPER, index=self.ports["wlan0"].network.index if "wlan0" in self.ports else 0
        )
        host.metering.on_counters(helper, Counters(*self.helper), host.steady_s)
        host.carried = {name: port.counters for name, port in self.ports.items()}
        host.present = [port.network for port in self.ports.values()]
        host.tick(1.0)
        if host.usage.fresh:  # as the daemon does within a second
            self.write()

    def write(self):
        self.host.budgets.write()
        self.helped, self.helped_bytes = dict.fromkeys(BUDGETS, 0.0), 0.0

    def start(self):
        self.helper = [0, 0]
        self.host.carried = {name: port.counters for name, port in self.ports.items()}
        self.host.start(f"boot-{self.boot}", [port.network for port in self.ports.values()])
        self.count()

    def step(self):
        choose = self.random.choice
        acts = (
            "carry carry carry count count write helped goes comes named word reset kill end boot"
        )
        act = choose(acts.split())
        name = choose([*KINDS])
        port = self.ports.get(name)
        self.done.append(f"{act} {name}")
        match act:
            case "carry" if port:
                size = choose((1, 1500, 10**6, 2**31))
                port.carry(choose((0, 1)), size)
                self.charge(name, size)
            case "count":
                self.count()
            case "write":
                self.count()
                self.write()
            case "helped" if "wlan0" in self.ports:
                size = choose((1000, 10**6))
                self.helper[1] += size
                self.ports["wlan0"].carry(1, size)
                self.charge("wlan0", size, helped=True)
            case "goes" if port:
                # The kernel tells its last counters.
                self.count()
                del self.ports[name]
                self.write()
            case "comes" if not port:
                self.comes(name)
            case "named" if port:
                port.network = replace(port.network, interface=f"{name}-{len(self.done)}")
            case "word" if port:
                self.count()
                self.write()  # as at each change of networks
                port.network = replace(port.network, metered=not port.network.metered)
            case "reset" if port:
                self.count()
                port.counters = [0, 0]
                self.count()
            case "kill":
                for budget, size in self.helped.items():
                    self.lost[budget] += size
                self.more += self.helped_bytes
                self.helped, self.helped_bytes = dict.fromkeys(BUDGETS, 0.0), 0.0
                self.start()
            case "end":
                self.count()
                self.write()
                self.start()
            case "boot":
                self.count()
                self.write()
                self.boot += 1
                self.index = 10
                for each in [*self.ports]:
                    self.comes(each)
                self.start()

    def check(self):
        self.count()
        for name, passed in self.passed.items():
            spent = self.host.known.keepers[name].spent
            slack = 1e-6 * passed + 1e-6
            story = "\n".join((*self.done[-40:], f"{name}: {spent:.3f} of {passed:.3f}"))
            more = slack + self.more * (name in ("both", "metered"))
            assert passed - self.lost[name] - slack <= spent <= passed + more, story


@pytest.mark.parametrize("seed", range(10))
async def test_a_budget_is_charged_what_passed(make_host, seed):
    config = Config(networks={"lte0": NetworkConfig(money_per_mb=PRICE)})
    for number in range(int(os.environ.get("CEDOS_WALKS", "1"))):
        host = make_host(config, str(number))
        for budget in BUDGETS.values():
            await host.budgets.set(budget)
        world = World(host, seed * 1000 + number)
        for _ in range(60):
            world.step()
            if world.random.random() < 0.2:
                world.check()
        world.check()
