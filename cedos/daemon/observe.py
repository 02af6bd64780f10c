"""Feeds the context: providers once a second, pings as they come back, counters and living flows."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from ipaddress import ip_address

import structlog

from cedos.config import Config
from cedos.model import Address, Context, Indicator, Network
from cedos.monitor.bus import SystemBus
from cedos.monitor.cellular import CellularProvider
from cedos.monitor.context import ContextKeeper
from cedos.monitor.counters import InterfaceCounters
from cedos.monitor.events import FlowSample
from cedos.monitor.passive import FlowWatch, Glimpse
from cedos.monitor.probes import Prober
from cedos.monitor.providers import Guarded, IndicatorProvider, read_all
from cedos.monitor.schedule import ProbeSchedule
from cedos.monitor.series import SeriesProvider
from cedos.monitor.wifi import WifiProvider

_log = structlog.get_logger(__name__)

_READ_S = 1.0
_LATE_S = 0.02
"""Providers are read just after each full second of their series: its row is new then."""


def providers(config: Config, bus: SystemBus | None) -> list[IndicatorProvider]:
    """The configured providers, each behind a guard.

    Raises:
        PlaceError: a series that cannot be read.
    """
    found: list[IndicatorProvider] = []
    if config.providers.host:
        found.append(WifiProvider())
        if bus is not None:
            found.append(CellularProvider(bus))
    started_at_s = config.providers.started_at_s
    for interface, file in config.providers.series.items():
        offset_s = config.providers.offset_s.get(interface, 0.0)
        found.append(
            SeriesProvider(
                file,
                interface,
                time.monotonic() if started_at_s is None else started_at_s,
                offset_s,
            )
        )
    return [Guarded(provider, _log.warning) for provider in found]


def probe_target(config: Config) -> Callable[[Network], Address | None]:
    """Whom to ping over a network, by its address families and the configuration."""

    def target(network: Network) -> Address | None:
        for version, said in ((4, config.probes.target), (6, config.probes.target_ipv6)):
            if not any(address.version == version for address in network.addresses):
                continue
            if said != "gateway":
                return ip_address(said)
            gateways = [each for each in network.gateways if each.version == version]
            if gateways:
                return gateways[0]
        return None

    return target


class Observer:
    """Keeps the context fresh while its tasks run.

    Args:
        config: which providers and probes.
        bus: the system bus, None where there is none.
        changed: awaited after new indicators came in.
    """

    def __init__(
        self, config: Config, bus: SystemBus | None, changed: Callable[[], Awaitable[None]]
    ) -> None:
        self.keeper = ContextKeeper()
        self._config = config
        self._changed = changed
        self._providers = providers(config, bus)
        self._counters = InterfaceCounters()
        self._watch = FlowWatch()
        self._networks: Sequence[Network] = ()
        self._glimpses: dict[str, Glimpse] = {}
        probes = config.probes
        self.prober = Prober(
            probe_target(config),
            schedule=ProbeSchedule(probes.interval_s, probes.idle_interval_s),
            ping_timeout_s=probes.timeout_s,
        )

    @property
    def problems(self) -> list[str]:
        """What is degraded, in words."""
        return [self.prober.problem] if self.prober.problem else []

    def context(self) -> Context:
        """What is known now."""
        return self.keeper.snapshot(time.monotonic())

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Takes the networks; what is gone is forgotten."""
        for gone in {each.name for each in self._networks} - {each.name for each in networks}:
            self.keeper.forget(gone)
        self._networks = networks
        now_s = time.monotonic()
        for network in networks:
            self.keeper.observe_up(network.name, network.up, now_s)
        if self._config.probes.enabled:
            self.prober.networks_changed(networks)

    def observe_flows(self, samples: Sequence[FlowSample]) -> None:
        """Takes a look at the living flows: their round-trip times, and who is busy."""
        now_s = time.monotonic()
        self._glimpses = dict(self._watch.observe(samples, self._networks))
        for name, glimpse in self._glimpses.items():
            for rtt_s in glimpse.rtts_s:
                self.keeper.observe_rtt(name, rtt_s, now_s)
        self.prober.in_use(self._glimpses)

    async def run(self) -> None:
        """Observes until it is cancelled."""
        async with AsyncExitStack() as stack:
            stack.callback(self._counters.close)
            for provider in self._providers:
                stack.push_async_callback(provider.close)
            await stack.enter_async_context(self.prober)
            if self._config.probes.enabled:
                self.prober.networks_changed(self._networks)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_providers(), name="providers")
                tasks.create_task(self._follow_pings(), name="pings")
                if self._config.probes.enabled and self._config.probes.dns:
                    tasks.create_task(self._ask_names(), name="dns")

    async def _read_providers(self) -> None:
        while True:
            now_s = time.monotonic()
            for network in self._networks:
                if network.up:
                    self.keeper.update(
                        network.name, await read_all(self._providers, network, now_s)
                    )
                    counted = await self._counters.read(network.index)
                    if counted is not None:
                        glimpse = self._glimpses.get(network.name)
                        self.keeper.observe_bytes(
                            network.name,
                            counted.received_bytes,
                            time.monotonic(),
                            busy=glimpse.busy if glimpse else None,
                        )
            await self._changed()
            await asyncio.sleep(self._until_next(time.monotonic()))

    def _until_next(self, now_s: float) -> float:
        config = self._config.providers
        phase_s = 0.0
        if config.started_at_s is not None and config.offset_s:
            phase_s = config.started_at_s - next(iter(config.offset_s.values()))
        return _READ_S - (now_s - phase_s) % _READ_S + _LATE_S

    async def _follow_pings(self) -> None:
        async for result in self.prober.results():
            self.keeper.observe_ping(result.network, result.rtt_s, result.at_s)
            if result.rtt_s is None:
                # Silence may be the first sign of an outage; answers wait for the next look.
                await self._changed()

    async def _ask_names(self) -> None:
        probes = self._config.probes
        while True:
            for network in self._networks:
                if not (network.up and network.resolvers):
                    continue
                result = await self.prober.dns_time(
                    network, probes.dns_name, timeout_s=probes.timeout_s
                )
                if result is not None and result.time_s is not None:
                    took = Indicator(result.time_s, result.at_s, active=True)
                    self.keeper.update(network.name, {"dns_s": took})
            await asyncio.sleep(probes.idle_interval_s)
