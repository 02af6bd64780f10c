"""Feeds the context: providers once a second, pings as they come back, counters and living flows."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from math import inf, isfinite

import structlog

from cedos.config import Config
from cedos.config.sections import endpoint
from cedos.daemon.budgets.metering import radios_of
from cedos.kernel.rtnetlink import Counters
from cedos.kernel.sock_diag import SYN_SENT
from cedos.model import (
    Address,
    Competing,
    Context,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
    NetworkLife,
)
from cedos.monitor.bus import SystemBus
from cedos.monitor.context import ContextKeeper
from cedos.monitor.events import FlowClosed, FlowSample
from cedos.monitor.flows.delivery import DeliveryWatch
from cedos.monitor.flows.passive import PassiveWatch
from cedos.monitor.liveness.liveness import Witness
from cedos.monitor.liveness.portal_check import PortalCheck
from cedos.monitor.liveness.portal_verdict import TestPage
from cedos.monitor.liveness.portal_watch import Check, PortalWatch, usual_rtt_s
from cedos.monitor.liveness.silence import Due
from cedos.monitor.liveness.tls_check import TlsAnswer, shake_hands
from cedos.monitor.networks.counters import InterfaceCounters
from cedos.monitor.networks.rates import LEAST_BYTES
from cedos.monitor.networks.sleep_watch import SleepWatch
from cedos.monitor.probing.keyfile import read_key
from cedos.monitor.probing.prober import Prober
from cedos.monitor.probing.result import Price, ProbeKind, ProbeServer, Spent
from cedos.monitor.probing.schedule import ProbeSchedule
from cedos.monitor.providers.adb import AdbProvider
from cedos.monitor.providers.cellular import CellularProvider
from cedos.monitor.providers.networkmanager import NetworkManager
from cedos.monitor.providers.provider import GuardedProvider, IndicatorProvider, read_each
from cedos.monitor.providers.screen import Screen
from cedos.monitor.providers.series import SeriesProvider
from cedos.monitor.providers.wifi import WifiProvider
from cedos.selector.decision.liveness import usable
from cedos.selector.energy import PowerModel
from cedos.selector.probing.value import probe_cost

_log = structlog.get_logger(__name__)

_READ_S = 1.0
_LATE_S = 0.02
"""Providers are read just after each full second of their series: its row is new then."""
_MOMENT_S = 0.01
_NEAR_S = 2.0
"""For so long after a host in front of the router sent or received much, the interface's counters also
hold traffic that did not pass the router."""
_UDP_KEPT_S = 120.0
"""Connection tracking gives a UDP flow up so long after its last packet at most."""
_JUST_ANSWERED_S = 0.5
"""A round trip that ended no longer before its flow says what one takes now."""


def providers(
    config: Config, bus: SystemBus | None, manager: NetworkManager | None
) -> list[GuardedProvider]:
    """Return the configured providers, each behind a guard.

    Errors: PlaceError, a series that cannot be read.
    """
    found: list[IndicatorProvider] = []
    if config.providers.host:
        found.append(WifiProvider())
        if manager is not None:
            found.append(manager)
        if bus is not None:
            found.append(CellularProvider(bus))
        if config.providers.adb:
            found.append(AdbProvider())
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
    return [GuardedProvider(provider, _log.warning) for provider in found]


def probe_target(config: Config) -> Callable[[Network], Address | None]:
    """Return a function that chooses whom to ping over a network."""

    def target(network: Network) -> Address | None:
        for version, wanted in ((4, config.probes.target), (6, config.probes.target_ipv6)):
            if not network.leads_out(version):
                continue
            if wanted != "gateway":
                return ip_address(wanted)
            gateways = [each for each in network.gateways if each.version == version]
            if gateways:
                return gateways[0]
        return None

    return target


def probe_server(config: Config) -> ProbeServer | None:
    """Return the configured probe server, if any. ConfigError: its key cannot be used."""
    probes = config.probes
    if not probes.enabled or probes.key_file is None or not probes.server:
        return None
    address, port = endpoint(probes.server)
    return ProbeServer(
        address,
        port,
        read_key(probes.key_file),
        packets=probes.train_packets,
        packet_bytes=probes.train_packet_bytes,
        tcp_bytes=probes.tcp_bytes,
    )


def joules_taken(config: Config) -> Price:
    """Return what a finished probe has taken of the configured radios, its tail included."""
    power = PowerModel(radios_of(config))

    def price(kind: NetworkKind, spent: Spent, idle_s: float | None) -> float:
        cost = probe_cost(
            kind,
            bytes_up=spent.bytes_up,
            bytes_down=spent.bytes_down,
            seconds=spent.seconds,
            idle_s=idle_s,
            power=power,
        )
        return cost.energy_j

    return price


def portal_page(config: Config) -> Check | None:
    """Return the check for the configured test page; None where none is."""
    if not (config.probes.enabled and config.probes.portal_url):
        return None
    page = TestPage.of(config.probes.portal_url, config.probes.portal_body)
    return PortalCheck(page, config.probes.dns_name)


class Observer:
    """Keeps the context fresh while its tasks run.

    Args:
        metered: is given each network's counters once a second, and the monotonic time.
        competing: what this host's transfers have still to carry, at a monotonic time.
    """

    def __init__(
        self,
        config: Config,
        bus: SystemBus | None,
        changed: Callable[[], None],
        metered: Callable[[Network, Counters, float], None] = lambda *_: None,
        competing: Callable[[float], Competing] = lambda now_s: {},
    ) -> None:
        self.keeper = ContextKeeper()
        self._config = config
        self._changed = changed
        self._metered = metered
        self._competing = competing
        self._recent: Context | None = None
        manager = NetworkManager(bus) if bus is not None and config.providers.host else None
        self._providers = providers(config, bus, manager)
        self._sleep = SleepWatch()
        self.screen = Screen(bus)
        self._told = asyncio.Event()
        self.portals = PortalWatch(
            self.keeper.liveness,
            self._told.set,
            check=portal_page(config),
            manager=manager.captive if manager is not None else None,
            shake_hands=self._shake_hands if config.probes.enabled else None,
            rtt_s=lambda name: usual_rtt_s(self.context().networks, name),
        )
        if manager is not None:
            manager.on_change(self.portals.recheck)
        self._counters = InterfaceCounters()
        self._counting: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._barred: frozenset[str] = frozenset()
        self._watch = PassiveWatch()
        self._delivery = DeliveryWatch()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._networks: Sequence[Network] = ()
        self._near_at_s: dict[str, float] = {}
        self._near_bytes: dict[FlowKey, int] = {}
        self._lives: dict[str, NetworkLife] = {}
        self._pauses: Mapping[str, tuple[float, ...]] = {}
        probes = config.probes
        self._target = probe_target(config)
        self.prober = Prober(
            self._ping_target,
            schedule=ProbeSchedule(
                probes.interval_s, probes.idle_interval_s, asleep_s=probes.asleep_interval_s
            ),
            ping_timeout_s=probes.timeout_s,
            timeout_s=probes.timeout_s,
            dns_name=probes.dns_name,
            server=probe_server(config),
            price=joules_taken(config),
        )
        self.screen.on_change(self.prober.user_present)

    @property
    def problems(self) -> list[str]:
        problems = [self.prober.problem] if self.prober.problem else []
        problems += self.portals.problems
        return problems + [problem for each in self._providers for problem in each.problems]

    def context(self) -> Context:
        if slept_s := self._sleep.slept_s():
            _log.info("the host has slept", slept_s=slept_s)
            self.keeper.slept(slept_s)
            self.portals.recheck()
        now_s = time.monotonic()
        return replace(
            self.keeper.snapshot(now_s), competing=self._competing(now_s), pauses=self._pauses
        )

    def recent_context(self) -> Context:
        """Return the same for all flows that begin or end in one moment: they do so by the hundred."""
        recent = self._recent
        if recent is None or time.monotonic() - recent.at_s >= _MOMENT_S:
            recent = self._recent = self.context()
        return recent

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take the networks; what is gone is forgotten."""
        for gone in {each.name for each in self._networks} - {each.name for each in networks}:
            self.keeper.forget(gone)
        self._networks = networks
        now_s = time.monotonic()
        for network in networks:
            self.keeper.observe_up(network.name, network.up, now_s)
        self._watch_open()

    def barred(self, names: Collection[str]) -> None:
        """Take the networks that programs are kept off: they are counted, and not asked anything."""
        self._barred = frozenset(names)
        self._watch_open()

    def _watch_open(self) -> None:
        networks = usable(self._networks, self._barred)
        self.portals.networks_changed(networks)
        if self._config.probes.enabled:
            self.prober.networks_changed(networks)

    def silent(
        self,
        networks: Mapping[str, Due],
        pauses: Mapping[str, tuple[float, ...]],
        now_s: float,
    ) -> None:
        """Take the networks that are silent though something is expected.

        `pauses`: how long each one's silences lasted that are over.
        """
        self._pauses = pauses
        for network in self._networks:
            due = networks.get(network.name, Due(0.0, transfers=False, pings=False))
            waiting = ((Witness.TRANSFER, due.transfers), (Witness.PING, due.pings))
            liveness = self.keeper.liveness(network.name)
            liveness.silent(due.silent_s, now_s, *(each for each, waits in waiting if waits))
            if due.silent_s > 0.0 and not liveness.answered(Witness.PING):
                self._ask_for_names(network)
        self.prober.silent(networks)
        self._note_verdicts()

    def _note_verdicts(self) -> None:
        """Log the networks whose state has changed."""
        verdicts = self.context().verdicts
        before, self._lives = self._lives, {}
        for network in self._networks:
            verdict = verdicts.get(network.name)
            if verdict is None or not network.up:
                continue
            life = self._lives[network.name] = verdict.life
            known = before.get(network.name)
            if known is life or known is None:
                continue
            if NetworkLife.UNKNOWN in (life, known):
                _log.debug(life, network=network.name, was=known, why=verdict.why)
            elif life is NetworkLife.ALIVE:
                _log.info("replies again", network=network.name, was=known)
            else:
                _log.info(life, network=network.name, why=verdict.why)

    def on_open(self, key: FlowKey, at_s: float) -> None:
        if (name := self._before_router(key)) is None:
            self._delivery.on_open(key, at_s)
        elif key.protocol == "tcp":  # it may carry much before the next look
            self._near_at_s[name] = at_s

    def on_close(self, event: FlowClosed, network: str | None) -> None:
        """Take the end of a flow; `network`: that of its address, None where another carried it."""
        # A flow to a host on the link says nothing of the network; its bytes must not count for it.
        near = self._before_router(event.key)
        if near is not None and event.key.protocol == "tcp":
            self._carried_near(near, event, self._near_bytes.pop(event.key, 0))
        if network is None or near is not None:
            self._delivery.forget(event.key)
            if event.rtt_s is not None:
                self.portals.answered_elsewhere(event.key)
            return
        self._delivery.on_close(event)
        if event.key.protocol == "udp" and event.bytes_down:
            at_s = time.monotonic() - _UDP_KEPT_S
            self.on_heard(network, event.key.remote, at_s, Witness.DATAGRAM)
        # Most flows are too short to be seen alive: what their round trips took is known at the end.
        answered_s = event.idle_ack_s
        if event.rtt_s is None or answered_s is None:
            return
        now_s = time.monotonic()
        self.on_heard(network, event.key.remote, now_s - answered_s)
        if answered_s <= _JUST_ANSWERED_S:
            self.keeper.observe_rtt(network, event.rtt_s, now_s)

    def on_heard(
        self, network: str, remote: Address, at_s: float, witness: Witness = Witness.TRANSFER
    ) -> None:
        """Note that `remote` said something: one beyond the router shows that its network carries."""
        if not self._on_link(network, remote):
            self._heard(network, witness, at_s)

    def _heard(self, network: str, witness: Witness, at_s: float) -> None:
        self.keeper.liveness(network).on_heard(witness, at_s)
        self.prober.on_heard(network, at_s)

    def answered_elsewhere(self, samples: Iterable[FlowSample]) -> None:
        """Take rescued flows: one that is answered shows that its server lives."""
        for sample in samples:
            if sample.state != SYN_SENT:
                self.portals.answered_elsewhere(sample.key)

    def on_rescue(self, key: FlowKey) -> None:
        """Check the network of a flow's address, on which its first packet had no reply."""
        self.portals.on_rescue(key)
        for network in usable(self._networks, self._barred):
            if network.up and any(key.local == address.ip for address in network.addresses):
                self.ask(network)

    def ask(self, network: Network) -> None:
        """Ping a network now, where pings are allowed and none may still be answered."""
        if self._config.probes.enabled:
            self.prober.ask(network)

    def transferred(self, network: str, carried_bytes: int, time_s: float) -> None:
        """Take a small download over one network that has just ended."""
        self.keeper.observe_transfer(network, carried_bytes, time_s, time.monotonic())

    def waits(self, network: str, size_bytes: int, waited_s: float) -> None:
        """Take a small download over one network that has not ended after so long."""
        self.keeper.observe_wait(network, size_bytes, waited_s, time.monotonic())

    def observe_delivery(self, samples: Sequence[FlowSample], now_s: float) -> None:
        """Take every look at the living flows: what the networks delivered since the last one."""
        found = self._delivery.observe(self._from_beyond(samples), self._networks, now_s)
        for name, stretches in found.items():
            self.keeper.observe_delivery(name, stretches)

    def observe_flows(self, samples: Sequence[FlowSample]) -> None:
        """Take a look at the living flows: their round-trip times and losses, and who is in use."""
        now_s = time.monotonic()
        glimpses = self._watch.observe(self._from_beyond(samples), self._networks)
        for name, glimpse in glimpses.items():
            for rtt_s in glimpse.rtts_s:
                self.keeper.observe_rtt(name, rtt_s, now_s)
            self.keeper.observe_losses(name, glimpse.segments, glimpse.segments_again, now_s)
        self.prober.in_use(name for name, glimpse in glimpses.items() if glimpse.carried)

    def observe_answers(self, samples: Sequence[FlowSample]) -> None:
        """Take every look at the living flows: what came from beyond a router shows that it carries."""
        heard_at_s: dict[str, float] = {}
        owner = {address.ip: (n.name, address) for n in self._networks for address in n.addresses}
        before, self._near_bytes = self._near_bytes, {}
        for sample in samples:
            name, subnet = owner.get(sample.key.local, (None, None))
            if name is None or subnet is None:
                continue
            # A host on the link: keep its bytes out of the network's rate.
            if sample.key.remote in subnet.network:
                self._near_bytes[sample.key] = sample.bytes_down + sample.bytes_up
                self._carried_near(name, sample, before.get(sample.key, 0))
                continue
            # A host beyond the router that has answered: its network carries.
            heard_s = min(sample.idle_down_s, sample.idle_ack_s)
            if sample.state != SYN_SENT and isfinite(heard_s):
                at_s = sample.at_s - heard_s
                heard_at_s[name] = max(at_s, heard_at_s.get(name, at_s))
        for name, at_s in heard_at_s.items():
            self._heard(name, Witness.TRANSFER, at_s)
        self.portals.observe_flows(samples)

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            stack.callback(self._counters.close)
            stack.callback(lambda: [task.cancel() for task in self._asking.values()])
            for provider in self._providers:
                stack.push_async_callback(provider.close)
            await stack.enter_async_context(self.prober)
            self._watch_open()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read_providers(), name="providers")
                tasks.create_task(self._follow_probes(), name="probes")
                tasks.create_task(self.screen.run(), name="screen")
                tasks.create_task(self.portals.run(), name="portals")
                tasks.create_task(self._follow_told(), name="told")

    async def _read_providers(self) -> None:
        while True:
            up = [network for network in self._networks if network.up]
            await asyncio.gather(*map(self._read, up))
            self._changed()
            await asyncio.sleep(self._until_next(time.monotonic()))

    async def _read(self, network: Network) -> None:
        now_s = time.monotonic()
        take = partial(self.keeper.update, network.name)
        await read_each(self._providers, network, now_s, take)
        points = (each.access_point(network) for each in self._providers)
        # Another access point is another place: check for a portal, and ping anew.
        point = next((each for each in points if each is not None), None)
        if point is not None and self.keeper.observe_attachment(network.name, *point, now_s):
            _log.info("another access point", network=network.name, point=point.bssid)
            self.portals.recheck(network.name)
            await self.prober.ping(network)
        # The counters give rates, unless hosts on the link had a part in them.
        counted = await self.count(network)
        if counted is not None:
            self.portals.on_bytes(network.name, counted.received_bytes)
            now_s = time.monotonic()
            if now_s - self._near_at_s.get(network.name, -inf) < _NEAR_S:
                self.keeper.uncounted(network.name)
            else:
                self.keeper.observe_bytes(
                    network.name, counted.received_bytes, counted.sent_bytes, now_s
                )

    async def count(self, network: Network) -> Counters | None:
        """Have a network's counters metered, now; None where it is gone."""
        # One after the other: an older reading after a newer one would look like a counter's reset.
        async with self._counting[network.index]:
            counted = await self._counters.read(network.index)
            if counted is not None:
                self._metered(network, counted, time.monotonic())
        return counted

    def _on_link(self, name: str, remote: Address) -> bool:
        """Return whether no router lies between: an answer says nothing of what is behind it."""
        own = next((each.addresses for each in self._networks if each.name == name), ())
        return any(remote in address.network for address in own)

    def _before_router(self, key: FlowKey) -> str | None:
        """Return the network of a flow to a host on its link, which says nothing of the Internet."""
        for network in self._networks:
            if any(key.local == address.ip for address in network.addresses):
                return network.name if self._on_link(network.name, key.remote) else None
        return None

    def _carried_near(self, name: str, seen: FlowSample | FlowClosed, before_bytes: int) -> None:
        if seen.bytes_down + seen.bytes_up - before_bytes >= LEAST_BYTES:
            self._near_at_s[name] = max(seen.at_s, self._near_at_s.get(name, seen.at_s))

    def _from_beyond(self, samples: Iterable[FlowSample]) -> list[FlowSample]:
        return [sample for sample in samples if self._before_router(sample.key) is None]

    def _ping_target(self, network: Network) -> Address | None:
        dropped = self.keeper.liveness(network.name).drops_pings
        return None if dropped else self._target(network)

    def asked_at_s(self) -> dict[str, float]:
        """Return network -> when its oldest pending ping was sent (`Prober.asked_at_s`).

        Where no ping ever was answered, none is waited for: the network may drop them.
        """
        return {
            name: at_s
            for name, at_s in self.prober.asked_at_s().items()
            if self.keeper.liveness(name).answered(Witness.PING)
        }

    async def _shake_hands(self, network: Network, timeout_s: float) -> TlsAnswer | None:
        target = self._target(network)
        if target is None or target in network.gateways:
            return None
        return await shake_hands(network, target, timeout_s)

    async def _follow_told(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            self._note_verdicts()
            self._changed()

    def _until_next(self, now_s: float) -> float:
        config = self._config.providers
        phase_s = 0.0
        if config.started_at_s is not None and config.offset_s:
            phase_s = config.started_at_s - next(iter(config.offset_s.values()))
        return _READ_S - (now_s - phase_s) % _READ_S + _LATE_S

    async def _follow_probes(self) -> None:
        async for result in self.prober.results():
            if result.kind is ProbeKind.PING:
                rtt_s = result.indicators.get("rtt_s")
                asked_s = result.at_s - result.spent.seconds
                self.keeper.observe_ping(result.network, rtt_s, result.at_s, asked_s)
                if rtt_s is None:
                    network = next((n for n in self._networks if n.name == result.network), None)
                    if network is not None:
                        self._ask_for_names(network)
                    # Silence may be the first sign of an outage; answers wait for the next look.
                    self._changed()
                continue
            found = {
                name: Indicator(value, result.at_s, active=True)
                for name, value in result.named.items()
            }
            self.keeper.update(result.network, found)
            # (A resolver may answer from its cache.)
            if not result.problem and result.kind is not ProbeKind.DNS:
                self.keeper.liveness(result.network).on_heard(Witness.TRANSFER, result.at_s)

    def _ask_for_names(self, network: Network) -> None:
        """Ask a network's resolver for a fresh name: a witness beside pings, or in place of them."""
        probes = self._config.probes
        if probes.enabled and probes.dns and network.up and network.name not in self._asking:
            task = asyncio.create_task(self._ask_for_a_name(network), name="names")
            self._asking[network.name] = task
            task.add_done_callback(lambda _: self._asking.pop(network.name, None))

    async def _ask_for_a_name(self, network: Network) -> None:
        asked_s = time.monotonic()
        knows = await self.prober.knows_names(network)
        liveness = self.keeper.liveness(network.name)
        if knows:
            liveness.on_heard(Witness.NAME, time.monotonic())
        elif knows is False:
            liveness.missed(Witness.NAME, time.monotonic(), asked_s)
        self._changed()
