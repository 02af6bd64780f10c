"""A director with two networks, over a steering that only remembers what it was asked."""

from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address, ip_interface

import pytest
from cedos.controller.decisions.director import Director

from cedos.controller.decisions.decider import Decider
from cedos.controller.events import FlowOpened, HostDefault, SizeLearned
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.decisions.choices import Choices
from cedos.errors import SteeringError
from cedos.model import (
    Context,
    Decision,
    Direction,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
)
from cedos.profiler.sizes import SizeHistory
from cedos.selector.objective import MaxS
from cedos.selector.uncertainty.times import CompletionModel
from predictors.base import Distribution


class Rates:
    """Predictors to play with: a round trip and a rate per network; MPTCP adds the rates."""

    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = ("size_bytes",)

    def __init__(self) -> None:
        self.rtt_s = {"wifi": 0.02, "cellular": 0.08}
        self.rate_bps = {"wifi": 1e6, "cellular": 20e6}
        self.alone = False

    def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
        bits = 8 * features["size_bytes"]
        times = {name: 2 * self.rtt_s[name] + bits / self.rate_bps[name] for name in self.rtt_s}
        if self.alone:  # no MPTCP
            return {name: Distribution((time_s,)) for name, time_s in times.items()}
        both = bits / sum(self.rate_bps.values())
        times["mptcp_wifi"] = 3 * self.rtt_s["wifi"] + both + 0.1
        times["mptcp_cellular"] = 3 * self.rtt_s["cellular"] + both + 0.1
        return {name: Distribution((time_s,)) for name, time_s in times.items()}


class Remembering:
    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.refuse = False
        self.spareless: frozenset[str] = frozenset()
        self.host_defaults: dict[int, HostDefault] = {}

    async def set_default(self, network_name: str, others: Mapping[int, str] | None = None) -> None:
        self.asked.append(("default", network_name, *((dict(others),) if others else ())))

    async def set_mark(self, mark: int, network_name: str | None) -> None:
        self.asked.append(("mark", mark, network_name))

    async def set_destination(
        self, prefix: str, port: int | None, network_name: str | None
    ) -> None:
        if self.refuse:
            raise SteeringError("no")
        self.asked.append(("destination", prefix, port, network_name))

    async def set_ruled(self, wanted: Mapping[tuple[str, int | None], str | None]) -> None:
        for (prefix, port), network_name in wanted.items():
            await self.set_destination(prefix, port, network_name)

    async def steer_connection(self, token: int, strategy: Strategy) -> None:
        self.asked.append(("connection", token, strategy))

    async def release(self, token: int, network_name: str) -> None:
        self.asked.append(("release", token, network_name))

    async def without_spares(self, network_names: Collection[str]) -> None:
        self.spareless = frozenset(network_names)


class Stage:
    """The director, what it knows (`flows`, `sizes`, `model`) and what it did (`asked`, `decisions`)."""

    wlan = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
    lte = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
    server = "198.51.100.1"
    key = FlowKey(ip_address("10.0.0.2"), 4000, ip_address(server), 80)

    def __init__(self, model: CompletionModel) -> None:
        self.model = model
        self.steer, self.flows, self.sizes = Remembering(), LivingFlows(), SizeHistory()
        self.decisions: list[Decision] = []
        choices = Choices(MaxS(), model, 3000, margin=0.1, switch_cost_s=0.1)
        decider = Decider(choices, self.flows.idle_s, self.decisions.append, first_number=5)
        self.director = Director(self.steer, self.flows, self.sizes, decider)
        self.director.networks_changed([self.wlan, self.lte])

    async def reconsider(
        self, at_s: float = 10.0, alive: Sequence[str] = ("wlan0", "lte0")
    ) -> None:
        """The director decides again, knowing of the networks only which are alive."""
        await self.director.reconsider(self.context(at_s, alive))

    @staticmethod
    def context(at_s: float = 10.0, alive: Sequence[str] = ("wlan0", "lte0")) -> Context:
        """What is known of the networks: which are alive."""
        return Context(
            at_s,
            {
                name: {"available": Indicator(float(name in alive), at_s)}
                for name in ("wlan0", "lte0")
            },
        )

    def connection(self, *, movable: bool = False) -> LivingFlow:
        """A connection over Wi-Fi; a `movable` one has a spare path."""
        flow = self.flows.on_open(FlowOpened(self.key, 9.0, 109.0))
        self.flows.joined(7, self.key, 9.0)
        self.director.on_connection(flow, 9.0)
        if movable:
            self.director.moves.steerable(7, True)
        return flow

    def told(self, size: int, source: str = "content-length") -> None:
        """How much the connection downloads."""
        estimate = SizeEstimate(size, size, size, source)
        self.flows.on_size(SizeLearned(self.key, Direction.DOWN, estimate))

    def asked(self) -> list[tuple[object, ...]]:
        """What steering was asked since the last time."""
        asked, self.steer.asked = self.steer.asked, []
        return asked


@pytest.fixture
def make_stage() -> Callable[[CompletionModel], Stage]:
    return Stage


@pytest.fixture
def stage() -> Stage:
    """Its `model` are `Rates`."""
    return Stage(Rates())
