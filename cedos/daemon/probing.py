"""Full probes of the networks, when a rule says that they are worth it (Delphi, section 5.2).

Light pings go by a schedule, since a dead network must be known within seconds. What is asked here
costs more: a lookup and, with a probe server, a train of packets that measures the rate, or a transfer.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from math import exp

import structlog

from cedos.config import Config, ProbesConfig
from cedos.daemon.metering import radios_of
from cedos.model import Direction, Network, NetworkKind
from cedos.monitor.probes import Prober
from cedos.monitor.probing.result import ProbeKind
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.probe_value import Price, ProbeValue
from cedos.selector.probing import FixedRate, Moment, PassiveChange, ProbeRule

_log = structlog.get_logger(__name__)

_LOOK_S = 1.0
# Transfers of the last minute or so tell how many begin.
_REMEMBERED_S = 60.0
# Before the first probe of a network: bytes of a lookup with its ping, and the radio's time for them.
_LIGHT_BYTES, _LIGHT_S = 320, 0.1


def rule_of(
    probes: ProbesConfig, networks: Iterable[Network], power: PowerModel = DELPHI
) -> ProbeRule:
    """The configured rule, with what a probe of each network takes."""
    if probes.rule == "fixed":
        return FixedRate(probes.full_interval_s)
    if probes.rule == "change":
        return PassiveChange(probes.threshold, probes.full_interval_s)
    sent = _LIGHT_BYTES
    if probes.server:
        sent += probes.train_packets * probes.train_packet_bytes
        sent += probes.tcp_bytes if probes.tcp else 0
    price: dict[str | None, Price] = {None: _price(probes, NetworkKind.CELLULAR, sent, power)}
    price |= {network.name: _price(probes, network.kind, sent, power) for network in networks}
    return ProbeValue(price)


def _price(probes: ProbesConfig, kind: NetworkKind, sent_bytes: float, power: PowerModel) -> Price:
    """Joules of the radio with its tail, and bytes, in seconds."""
    radio = power.radios[kind]
    energy_j = radio.active_w(Direction.DOWN) * _LIGHT_S + radio.tail_j
    cost_s = probes.seconds_per_joule * energy_j + probes.seconds_per_mb * sent_bytes / 1e6
    return Price(cost_s, energy_j=energy_j, carried_bytes=sent_bytes)


class AdaptiveProbing:
    """Asks the rule once a second about every network that is up.

    Args:
        config: which rule, and whether there is a probe server.
        prober: carries the probes out; its results go their usual way.
        moment: what the rule may look at, but for the rate of transfers.
    """

    def __init__(
        self, config: Config, prober: Prober, moment: Callable[[float, bool, float], Moment]
    ) -> None:
        self._probes = config.probes
        self._prober = prober
        self._moment = moment
        self._networks: tuple[Network, ...] = ()
        self._power = PowerModel(radios_of(config))
        self._rule = rule_of(self._probes, (), self._power)
        self._per_s = 0.0
        self._at_s = time.monotonic()
        self._begun = 0
        self._kinds = [ProbeKind.DNS] if self._probes.dns else []
        if self._probes.server:
            self._kinds.append(ProbeKind.UDP_TRAIN)
            if self._probes.tcp:
                self._kinds.append(ProbeKind.TCP)

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Takes all networks; a new set of them is learned anew."""
        known = {(network.name, network.index) for network in self._networks}
        self._networks = tuple(network for network in networks if network.up)
        if {(network.name, network.index) for network in self._networks} != known:
            self._rule = rule_of(self._probes, self._networks, self._power)

    def begun(self) -> None:
        """A transfer begins."""
        self._begun += 1

    async def run(self) -> None:
        """Probes until it is cancelled."""
        if not self._probes.enabled or not self._kinds:
            return
        while True:
            await asyncio.sleep(_LOOK_S)
            moment = self._now()
            worth = []
            for network in self._networks:
                why = self._rule.why(network.name, moment)
                if why is not None:
                    self._rule.probed(network.name, moment)
                    _log.debug("probing", network=network.name, why=why)
                    worth.append(network)
            # One that answers nothing keeps no other one waiting.
            await asyncio.gather(*map(self._probe, worth))

    async def _probe(self, network: Network) -> None:
        for kind in self._kinds:
            await self._prober.probe(network, kind)

    def _now(self) -> Moment:
        now_s = time.monotonic()
        passed_s, self._at_s = now_s - self._at_s, now_s
        kept = exp(-passed_s / _REMEMBERED_S)
        self._per_s = self._per_s * kept + self._begun / _REMEMBERED_S
        pending, self._begun = self._begun > 0, 0
        return self._moment(now_s, pending, self._per_s)
