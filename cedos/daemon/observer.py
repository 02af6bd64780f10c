"""Feeds the context: providers once a second, pings as they come back, counters and living flows."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_address
from math import inf

from cedos.config import Config
from cedos.config.sections import ProbesConfig
from cedos.controller.commands import AskName, CheckPage, ShakeHands
from cedos.controller.events import (
    Attached,
    CountersRead,
    Event,
    HandshakeEnded,
    IndicatorsRead,
    PageChecked,
    PortalFinding,
    PortalVerdict,
    ProvidersRead,
    Witness,
    Witnessed,
)
from cedos.controller.networks.observation import NetworkObservation
from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.links import InterfaceCounters
from cedos.host.monitor.portal_check import PortalCheck, TestPage, shake_hands
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.probes import ProbeSchedule
from cedos.host.monitor.providers.cellular import CellularProvider
from cedos.host.monitor.providers.provider import GuardedProvider, IndicatorProvider, read_each
from cedos.host.monitor.providers.series_file import SeriesProvider
from cedos.host.monitor.providers.wifi import WifiProvider
from cedos.kernel.rtnetlink import Counters
from cedos.logs import get_logger
from cedos.model import Address, Indicator, Network

_log = get_logger(__name__)

Question = AskName | CheckPage | ShakeHands
_DNS, _HTTPS, _NO_PORT = 53, 443, 0

_READ_S = 1.0
# Providers are read this long after each full second, when the new row of their series exists.
_LATE_S = 0.02


def providers(config: Config, bus: SystemBus | None) -> list[GuardedProvider]:
    """Return the configured providers, each behind a guard.

    Errors: PlaceError, a series that cannot be read.
    """
    found: list[IndicatorProvider] = []
    if config.providers.host:
        found.append(WifiProvider())
        if bus is not None:
            found.append(CellularProvider(bus))
    now_s = time.monotonic()
    for interface, file in config.providers.series.items():
        began_s = config.providers.started_at_s.get(interface, now_s)
        found.append(SeriesProvider(file, interface, began_s))
    return [GuardedProvider(provider, _log.warning) for provider in found]


def probe_target(probes: ProbesConfig, network: Network) -> Address | None:
    """Return whom to ping over a network."""
    for version, wanted in ((4, probes.target), (6, probes.target_ipv6)):
        if not network.leads_out(version):
            continue
        if wanted != "gateway":
            return ip_address(wanted)
        if gateways := [each for each in network.gateways if each.version == version]:
            return gateways[0]
    return None


class Observer:
    """Reads providers and counters, and asks networks; all it finds are events.

    Args:
        post: takes the events.
        known: what the controller knows of the networks.
        metered: is given each network's and helper's counters once a second, and the monotonic time.
        may: whether a user's rules allow a network for an address and port; else it is not asked there.
    """

    def __init__(
        self,
        config: Config,
        bus: SystemBus | None,
        post: Callable[[Event], None],
        known: NetworkObservation,
        metered: Callable[[Network, Counters, float], None] = lambda *_: None,
        may: Callable[[Network, Address, int], bool] = lambda *_: True,
    ) -> None:
        self._config = config
        self._probes = probes = config.probes
        self._post = post
        self._known = known
        self._metered = metered
        self._may = may
        self._providers = providers(config, bus)
        self._check: PortalCheck | None = None
        if probes.enabled and probes.portal_url:
            page = TestPage.of(probes.portal_url)
            self._check = PortalCheck(page, probes.dns_name, may=may)
        self._counters = InterfaceCounters()
        self._counting: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._networks: Sequence[Network] = ()
        self._helpers: Sequence[Network] = ()
        self.prober = Prober(
            self._ping_target,
            schedule=ProbeSchedule(probes.interval_s, probes.idle_interval_s),
            dns_name=probes.dns_name,
        )
        # The questions to networks that are under way, by kind, network and number.
        self._asking: dict[tuple[type, str, int], asyncio.Task[None]] = {}

    @property
    def problems(self) -> list[str]:
        return [self.prober.problem] if self.prober.problem else []

    def networks_changed(
        self, networks: Sequence[Network], helpers: Sequence[Network] = ()
    ) -> None:
        """Take the networks. Of helpers the bytes are metered, and nothing is asked."""
        self._count_helpers()  # of those that are gone
        self._networks, self._helpers = networks, helpers
        there = {each.index for each in networks}
        for gone in [each for each in self._counting if each not in there]:
            del self._counting[gone]

    def watch(self, networks: Sequence[Network]) -> None:
        """Ping and probe these networks, where that is allowed."""
        if self._probes.enabled:
            self.prober.networks_changed(networks)

    def follow_heard(self) -> None:
        """Tell the prober what was heard, so that it pings no network that is known to live."""
        for name, at_s in self._known.heard_at_s.items():
            if at_s > self.prober.heard_at_s.get(name, -inf):
                self.prober.on_heard(name, at_s)

    def find_network(self, name: str) -> Network | None:
        return next((each for each in self._networks if each.name == name), None)

    def ping(self, name: str) -> None:
        """Ping a network now, where pings are allowed and none may still be answered."""
        if self._probes.enabled and (network := self.find_network(name)) is not None:
            self.prober.ask(network)

    def ask(self, question: Question) -> None:
        """Ask a network something, unless the same question is under way; the answer is an event.

        So one that answers nothing keeps no other one waiting.
        """
        key = type(question), question.network, getattr(question, "number", 0)
        if key not in self._asking:
            asking = self._ask(question, self.find_network(question.network))
            task = self._asking[key] = asyncio.get_running_loop().create_task(asking)
            task.add_done_callback(lambda _: self._asking.pop(key, None))

    async def _ask(self, question: Question, network: Network | None) -> None:
        match question:
            case CheckPage(name, number, timeout_s):
                self._post(PageChecked(name, number, await self._page(network, timeout_s)))
            case ShakeHands(name, number, timeout_s):
                answer = None
                if network is not None and self._probes.enabled:
                    target = probe_target(self._probes, network)
                    known = target is not None and target not in network.gateways
                    if target is not None and known and self._may(network, target, _HTTPS):
                        answer = await shake_hands(network, target, timeout_s)
                self._post(HandshakeEnded(name, number, answer))
            case AskName() if network is not None and network.up:
                resolvers = (*network.resolvers, *network.gateways)
                allowed = all(self._may(network, each, _DNS) for each in resolvers)
                if self._probes.enabled and self._probes.dns and allowed:
                    await self._ask_for_a_name(network)
            case _:
                pass  # the network is gone

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self._counters.close)
            stack.callback(lambda: [task.cancel() for task in self._asking.values()])
            for provider in self._providers:
                stack.push_async_callback(provider.close)
            await stack.enter_async_context(self.prober)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_providers(), name="providers")
                tasks.create_task(self._follow_probes(), name="probes")

    async def _read_providers(self) -> None:
        while True:
            # (Some routes may lead over a network without a default route, too: what it carries counts.)
            reads = [self._read(each) if each.up else self.count(each) for each in self._networks]
            self._count_helpers()
            await asyncio.gather(*reads)
            self._post(ProvidersRead())
            await asyncio.sleep(self._until_next(time.monotonic()))

    async def _read(self, network: Network) -> None:
        now_s = time.monotonic()
        await read_each(self._providers, network, now_s, partial(self._read_from, network.name))
        points = (each.access_point(network) for each in self._providers)
        point = next((each for each in points if each is not None), None)
        if point is not None and point.bssid != self._known.keeper.access_point(network.name):
            self._post(Attached(network.name, *point))
        counted = await self.count(network)
        if counted is not None:
            self._post(CountersRead(network.name, counted.received_bytes, counted.sent_bytes))

    def _read_from(self, network: str, indicators: Mapping[str, Indicator]) -> None:
        self._post(IndicatorsRead(network, dict(indicators)))

    async def count(self, network: Network) -> Counters | None:
        """Have a network's counters metered, now; None where it is gone."""
        # One after the other: an older reading after a newer one would look like a counter's reset.
        async with self._counting[network.index]:
            counted = await self._counters.read(network.index)
            if counted is not None:
                self._metered(network, counted, time.monotonic())
        return counted

    async def count_last(self, network: Network, counters: Counters) -> None:
        """Have the last counters of a network metered whose interface is gone.

        Not once a later interface of that name may have been metered: each would then count anew.
        """
        async with self._counting[network.index]:
            same = [each.index for each in self._networks if each.interface == network.interface]
            if same in ([], [network.index]):
                self._metered(network, counters, time.monotonic())

    async def count_all(self) -> None:
        """Have the counters of all networks metered, now."""
        self._count_helpers()
        await asyncio.gather(*map(self.count, self._networks))

    def _count_helpers(self) -> None:
        """Have what helpers carried metered, by the last look at the connections."""
        for helper in self._helpers:
            counted = Counters(*self._known.by_helpers.of(helper.name))
            self._metered(helper, counted, time.monotonic())

    def _ping_target(self, network: Network) -> Address | None:
        """Return whom to ping over a network; None: it would tell nothing, or a rule forbids it."""
        dropped = self._known.keeper.drops_pings(network.name)
        target = None if dropped else probe_target(self._probes, network)
        allowed = target is None or self._may(network, target, _NO_PORT)
        return target if allowed else None

    async def _page(self, network: Network | None, timeout_s: float) -> PortalFinding:
        """Ask for the test page over a network."""
        why = "nothing can be told"
        try:
            if network is not None and self._check is not None:
                return await self._check(network, timeout_s)
        except Exception as error:  # whatever it is, the controller waits for an answer
            why = f"{type(error).__name__}: {error}"
        return PortalFinding(PortalVerdict.UNCLEAR, why)

    def _until_next(self, now_s: float) -> float:
        phase_s = next(iter(self._config.providers.started_at_s.values()), 0.0)
        return _READ_S - (now_s - phase_s) % _READ_S + _LATE_S

    async def _follow_probes(self) -> None:
        async for ended in self.prober.results():
            self._post(ended)

    async def _ask_for_a_name(self, network: Network) -> None:
        asked_s = time.monotonic()
        knows = await self.prober.knows_names(network)
        if knows is not None:
            now_s = time.monotonic()
            self._post(Witnessed(network.name, knows, Witness.NAME, now_s, asked_s))
        self._post(ProvidersRead())
