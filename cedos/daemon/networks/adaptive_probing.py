"""Probes of the networks, when a rule says that they are worth it (Delphi, section 5.2).

With a probe server these are a look-up and a train of packets that measures the rate, or a transfer.
Without one a look-up tells that a network lives, where pings are in vain and programs do not hear it
anyway. (Pings go by a schedule, `docs/decisions/pings.md`.)

Each direction has a rule of its own. A train upwards serves uploads alone, so none is sent before there
was one, nor long after the last one: of most hosts, most of the time, no program uses the uplink.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from math import exp, inf
from typing import NamedTuple

import structlog

from cedos.api.messages import ProbingMessage, SentProbeMessage
from cedos.config import Config, ProbesConfig
from cedos.daemon.aligned_sleep import aligned_sleep
from cedos.daemon.budgets.metering import radios_of
from cedos.host.monitor.probing.prober import Prober
from cedos.host.monitor.probing.result import ProbeKind
from cedos.model import Direction, Network, NetworkKind
from cedos.selector.budgets.controller import PROHIBITIVE
from cedos.selector.budgets.prices import FREE, Prices
from cedos.selector.energy import DELPHI, PowerModel
from cedos.selector.probing.rules import FixedRate, Moment, PassiveChange, ProbeRule, ProbeVerdict
from cedos.selector.probing.value import Price, ProbeValue, probe_cost

_log = structlog.get_logger(__name__)

_ASK_S = 1.0
# Transfers of the last minute or so tell how many begin.
_REMEMBERED_S = 60.0
# Three minutes after the only upload there is hardly any left to expect.
_NO_UPLOADS = 0.05
# A look-up with its ping, and the radio's time for them.
_LIGHT_BYTES, _LIGHT_S = 320, 0.1


def rule_of(
    probes: ProbesConfig,
    networks: Iterable[Network],
    power: PowerModel = DELPHI,
    direction: Direction = Direction.DOWN,
) -> ProbeRule:
    """Return the configured rule, with what a probe of each network takes: upwards, a train alone."""
    if probes.rule == "fixed":
        return FixedRate(probes.full_interval_s)
    if probes.rule == "change":
        return PassiveChange(probes.threshold, probes.full_interval_s)
    prices: dict[str | None, Price] = {
        None: expected_price(probes, NetworkKind.CELLULAR, power, direction)
    }
    prices |= {each.name: expected_price(probes, each.kind, power, direction) for each in networks}
    # A user at the screen may load something at any time; uploads come after uploads.
    if light(probes):
        return ProbeValue(prices, idle_per_s=0.0, light=True)
    down = direction is Direction.DOWN
    return ProbeValue(prices) if down else ProbeValue(prices, idle_per_s=0.0)


def light(probes: ProbesConfig) -> bool:
    """Return whether probes by the value rule tell no more than that a network lives."""
    return probes.rule == "value" and not probes.server


def expected_price(
    probes: ProbesConfig, kind: NetworkKind, power: PowerModel, direction: Direction
) -> Price:
    """Return a probe's expected cost, the radio's joules and the bytes, in seconds."""
    up = down = _LIGHT_BYTES / 2
    if probes.server:
        train = probes.train_packets * probes.train_packet_bytes
        if direction is Direction.UP:
            up += train
        else:
            down += train
    sent = up + down
    energy_j = probe_cost(
        kind, bytes_up=up, bytes_down=down, seconds=_LIGHT_S, power=power
    ).energy_j
    cost_s = probes.seconds_per_joule * energy_j + probes.seconds_per_mb * sent / 1e6
    return Price(cost_s, energy_j=energy_j, carried_bytes=sent)


class _RuleAnswer(NamedTuple):
    """The rule's word on a network and direction, with the prices of that moment."""

    verdict: ProbeVerdict
    prices: Prices = FREE


class ArrivalRate:
    """The recent rate at which transfers of a direction begin."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self.pending = False
        self._new = 0

    def count(self, count: int = 1) -> None:
        self._new += count

    def record(self, seconds: float) -> None:
        self.per_s = self.per_s * exp(-seconds / _REMEMBERED_S) + self._new / _REMEMBERED_S
        self.pending, self._new = self._new > 0, 0


class AdaptiveProbing:
    """Asks the rules once a second about every network that is up.

    Args:
        moment: what the rule may look at: the instant, whether a transfer waits, how many begin per
            second, and their direction.
        uploads: how many uploads have begun so far that are large enough for a rate to count.
    """

    def __init__(
        self,
        config: Config,
        prober: Prober,
        moment: Callable[[float, bool, float, Direction], Moment],
        uploads: Callable[[], int] = lambda: 0,
    ) -> None:
        self._probes = config.probes
        self._prober = prober
        self._moment = moment
        self._networks: tuple[Network, ...] = ()
        self._power = PowerModel(radios_of(config))
        self._rules = self._new_rules()
        self._uploads = uploads
        self._uploads_seen = 0
        self._begun = {direction: ArrivalRate() for direction in Direction}
        self._at_s = time.monotonic()
        self._answers: dict[tuple[str, Direction], _RuleAnswer] = {}
        self._sent: dict[tuple[str, Direction], tuple[float, str]] = {}
        self._light = light(self._probes)
        self._kinds = [ProbeKind.DNS] if self._probes.dns else []
        if self._probes.server:
            self._kinds.append(ProbeKind.UDP_TRAIN)

    def _new_rules(self) -> dict[Direction, ProbeRule]:
        return {way: rule_of(self._probes, self._networks, self._power, way) for way in Direction}

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Take all networks; a new set of them begins without a past."""
        known = {(network.name, network.index) for network in self._networks}
        self._networks = tuple(network for network in networks if network.up)
        if {(network.name, network.index) for network in self._networks} != known:
            self._rules = self._new_rules()
            self._answers.clear()
            self._sent.clear()

    def explained(self) -> list[ProbingMessage]:
        """Return what the rule says of each network, which way and why; of a second ago."""
        ways = list(Direction) if self._probes.server else [Direction.DOWN]
        now_s = time.monotonic()
        return [self._explained(network, way, now_s) for network in self._networks for way in ways]

    def _explained(self, network: Network, way: Direction, now_s: float) -> ProbingMessage:
        answer = self._answers.get(
            (network.name, way), _RuleAnswer(ProbeVerdict(False, self._silent(way)))
        )
        price = expected_price(self._probes, network.kind, self._power, way)
        cost_s = price.today(network.name, answer.prices)
        sent = self._sent.get((network.name, way))
        return ProbingMessage(
            network=network.name,
            direction=way,
            rule=self._probes.rule,
            send=answer.verdict.send,
            why=answer.verdict.why,
            gain_s=answer.verdict.gain_s,
            cost_s=cost_s if cost_s < PROHIBITIVE else None,
            energy_j=price.energy_j,
            carried_bytes=price.carried_bytes,
            change=answer.verdict.change,
            threshold=answer.verdict.threshold,
            sent=None if sent is None else SentProbeMessage(age_s=now_s - sent[0], why=sent[1]),
        )

    def _silent(self, way: Direction) -> str:
        """Return why no rule was asked."""
        if not self._probes.enabled:
            return "probes are off ([probes] enabled)"
        if not self._kinds:
            return "there is nothing to ask: neither a lookup ([probes] dns) nor a server"
        if way is Direction.UP:
            return "no upload was seen lately, and a train upwards serves uploads alone"
        return "it is up for less than a second"

    def on_transfer_begun(self) -> None:
        """Note a new transfer. Most directions are unknown yet and count as downloads."""
        self._begun[Direction.DOWN].count()

    async def run(self) -> None:
        if not self._probes.enabled or not self._kinds:
            return
        while True:
            await aligned_sleep(_ASK_S)
            now_s = time.monotonic()
            passed_s, self._at_s = now_s - self._at_s, now_s
            uploads = self._uploads()
            self._begun[Direction.UP].count(uploads - self._uploads_seen)
            self._uploads_seen = uploads
            for begun in self._begun.values():
                begun.record(passed_s)
            worth = {Direction.DOWN: self._worth(Direction.DOWN, now_s)}
            lately = self._begun[Direction.UP].per_s * _REMEMBERED_S
            if self._probes.server and lately > _NO_UPLOADS:
                worth[Direction.UP] = self._worth(Direction.UP, now_s)
            else:
                self._answers = {
                    key: answer for key, answer in self._answers.items() if key[1] is Direction.DOWN
                }
            # One that answers nothing keeps no other one waiting.
            await asyncio.gather(
                *(
                    self._probe(network, [way for way, found in worth.items() if network in found])
                    for network in self._networks
                )
            )

    def _worth(self, direction: Direction, now_s: float) -> list[Network]:
        """Return the networks that are to be probed now."""
        begun = self._begun[direction]
        moment = self._moment(now_s, begun.pending, begun.per_s, direction)
        rule = self._rules[direction]
        worth = []
        for network in self._networks:
            verdict = rule.weigh(network.name, moment)
            if self._light and verdict.send:
                verdict = self._needed(network, verdict, moment)
            self._answers[network.name, direction] = _RuleAnswer(verdict, moment.prices)
            if verdict.send:
                rule.probed(network.name, moment)
                self._sent[network.name, direction] = now_s, verdict.why
                _log.debug(
                    "probing", network=network.name, direction=str(direction), why=verdict.why
                )
                worth.append(network)
        return worth

    def _needed(self, network: Network, verdict: ProbeVerdict, moment: Moment) -> ProbeVerdict:
        if self._prober.pings(network):
            why = "pings tell whether it lives; only a probe server could tell how fast it is"
            return verdict._replace(send=False, why=why)
        sent_at_s, _ = self._sent.get((network.name, Direction.DOWN), (-inf, ""))
        quiet_s = moment.now_s - max(sent_at_s, moment.heard_at_s.get(network.name, -inf))
        if quiet_s >= self._probes.interval_s:
            return verdict
        why = f"asked or heard {quiet_s:.1f} s ago, less than {self._probes.interval_s:g} s"
        return verdict._replace(send=False, why=why)

    async def _probe(self, network: Network, directions: list[Direction]) -> None:
        if Direction.DOWN in directions:
            for kind in self._kinds:
                await self._prober.probe(network, kind)
        if Direction.UP in directions:
            await self._prober.probe(network, ProbeKind.UDP_TRAIN, Direction.UP)
