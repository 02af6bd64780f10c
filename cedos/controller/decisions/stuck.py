"""Closes plain connections that a dead network holds, so that their programs connect again.

A plain connection cannot move. While its network is dead its program waits. Once it is closed, the
program connects again, over the network that lives. A healthy connection must never be closed, whatever
a neighbour sends. So all of this has to hold:

- the user allows it (`[steering] close_stuck`), and the connection is to one of `_PORTS`;
- the network is gone, or nothing at all came from beyond its router for long enough;
- meanwhile something was due from there: a ping has had no reply;
- nothing came on the connection itself since, which only packets within its window can tell;
- something is due on it: an acknowledgement, or the rest of an answer that was on its way;
- another network lives: something came over it in the last seconds, and new connections go there;
- the silence has lasted as long as it would take to carry again what the connection has carried.

The privileged part looks at the connection once more before it closes it.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cedos.controller.commands import AskNetwork, CloseConnection
from cedos.controller.config import ControllerConfig
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.destinations import DefaultNetwork
from cedos.controller.decisions.user_rules import RuledDestinations
from cedos.controller.events import ESTABLISHED
from cedos.controller.flows.living_flow import FlowPath, LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.observation import NetworkObservation
from cedos.controller.outbox import Outbox, next_beat_s
from cedos.model import Context, FlowKey, Network
from cedos.selector.decision.liveness import silent_s, why_dead

# A network that went may return within this time with the same address.
GONE_S: Final = 1.0

# A connection that waits for this long has its network pinged, and how long the reply may take.
_DOUBTED_S, _PING_S = 0.3, 0.7
_LIVES_S: Final = 10.0
_FRESH_S: Final = 2.0
_RECEIVING_S: Final = 0.5
_USUAL_BPS: Final = 10e6
_LOOK_S, _CLOSE_LOOK_S = 1.0, 0.1
_SHOWN_S: Final = 600.0
_MOST_SHOWN: Final = 1_000
# Of HTTP and git, whose programs mostly connect again.
_PORTS: Final = frozenset({80, 443, 8000, 8080, 8443, 9418})


@dataclass(frozen=True, slots=True)
class Closing:
    """A connection to close: its network, for how long nothing came there, and the network that lives."""

    flow: LivingFlow
    network: str
    silent_s: float
    gone: bool
    living: str

    @property
    def reason(self) -> str:
        why = "is gone" if self.gone else f"has not replied for {self.silent_s:.1f} s"
        return (
            f"{self.network} {why}, and {self.living} lives: the connection was closed, so that its"
            " program connects again"
        )


class StuckConnections:
    """Watches for stuck connections and has them closed."""

    def __init__(
        self,
        config: ControllerConfig,
        outbox: Outbox,
        flows: LivingFlows,
        observation: NetworkObservation,
        decider: Decider,
        default: DefaultNetwork,
        ruled: RuledDestinations,
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._flows = flows
        self._observation = observation
        self._decider = decider
        self._default = default
        self._ruled = ruled
        self._gone_since_s: dict[str, float] = {}
        self._pinged_at_s: dict[str, float] = {}
        self._pending: list[Closing] = []
        self._closed: deque[tuple[float, str, float]] = deque(maxlen=_MOST_SHOWN)

    def next_timer_s(self, now_s: float, context: Context) -> float | None:
        """Return when to look again: with each full second, and ten times a second if one is silent."""
        if self._config.close_stuck == "never":
            return None
        urgent = any(silent_s(context, name) > 0.0 for name in context.networks)
        if urgent or self._gone_since_s or self._pinged_at_s:
            return now_s + _CLOSE_LOOK_S
        return next_beat_s(now_s, _LOOK_S)

    def check(self, context: Context, asked_at_s: Mapping[str, float]) -> None:
        """Have closed what is stuck at the context's instant; `asked_at_s`: of pings without a reply."""
        self._pending = list(self.find_stuck(context, asked_at_s))
        for closing in self._pending:
            self._outbox.give(CloseConnection(closing.flow.key, closing.reason))

    def on_close(self, command: CloseConnection, now_s: float) -> Closing | None:
        """Note that a connection was closed; return what was said of it."""
        for closing in self._pending:
            if closing.flow.key == command.key:
                closing.flow.cut()
                self._closed.append((now_s, closing.network, closing.silent_s))
                return closing
        return None

    def find_stuck(self, context: Context, asked_at_s: Mapping[str, float]) -> Iterator[Closing]:
        """Find the connections to close at the context's instant."""
        now_s = context.at_s
        up = {network.name for network in self._decider.networks if network.up}
        up |= {helper.name for helper in self._decider.helpers}
        used = {path.network for flow in self._flows for path in flow.paths.values()}
        gone = {name for name in used if name is not None and name not in up}
        self._gone_since_s = {name: self._gone_since_s.get(name, now_s) for name in gone}
        self._note_pings(context, asked_at_s)
        for flow in self._flows:
            path = flow.paths[flow.key]
            network = path.network
            if network is None or not self._may_be_closed(flow, path):
                continue
            # How long nothing came over the network, and for how long that has to last.
            if network in gone:
                lasted_s, least_s = now_s - self._gone_since_s[network], GONE_S
            elif self._config.closes_after_s is not None:
                lasted_s = now_s - self._heard_at_s(context, network)
                least_s = self._config.closes_after_s
            else:
                continue
            quiet_s = min(lasted_s, _heard_s(path, now_s))
            if quiet_s < _DOUBTED_S or not _waits(flow, path, lasted_s):
                continue
            if network not in gone and not self._owes_a_reply(network, now_s):
                continue
            if quiet_s < least_s:
                continue
            living = self._living(context, network, flow.key.remote.version)
            if living is None or lasted_s < _again_s(flow, living, context):
                continue
            yield Closing(flow, network, lasted_s, network in gone, living.name)

    def _note_pings(self, context: Context, asked_at_s: Mapping[str, float]) -> None:
        """Note for each network the first ping without a reply since something came from there."""
        pinged = {
            name: at_s
            for name, at_s in self._pinged_at_s.items()
            if at_s > self._heard_at_s(context, name)
        }
        for name, at_s in asked_at_s.items():
            if at_s > self._heard_at_s(context, name):
                pinged.setdefault(name, at_s)
        self._pinged_at_s = pinged

    def _owes_a_reply(self, name: str, now_s: float) -> bool:
        """Tell whether a ping has had no reply for long enough; send one where none was sent."""
        pinged_at_s = self._pinged_at_s.get(name)
        if pinged_at_s is None:
            for network in self._decider.networks:
                if network.name == name:
                    self._outbox.give(AskNetwork(network.name))
            return False
        return now_s - pinged_at_s >= _PING_S

    def _heard_at_s(self, context: Context, name: str) -> float:
        """Return when something last came from beyond a network."""
        rtt = context.networks.get(name, {}).get("rtt_s")
        return max(
            self._flows.heard_at_s(name),
            self._observation.heard_at_s.get(name, -math.inf),
            rtt.measured_at_s if rtt is not None else -math.inf,
        )

    def messages(self, now_s: float) -> list[str]:
        """Say in words what was closed in the last ten minutes, by network."""
        counted: dict[str, list[float]] = {}
        for at_s, network, lasted_s in self._closed:
            if now_s - at_s <= _SHOWN_S:
                counted.setdefault(network, []).append(lasted_s)
        return [
            f"{len(each)} connection{'s' if len(each) > 1 else ''} on {network}"
            f" {'were' if len(each) > 1 else 'was'} closed after {min(each):.0f} s of silence so that"
            f" {'their programs connect' if len(each) > 1 else 'its program connects'} again"
            for network, each in counted.items()
        ]

    def _may_be_closed(self, flow: LivingFlow, path: FlowPath) -> bool:
        """Tell whether it is a plain connection of a program here, of a kind that is begun again."""
        key, sample = flow.key, path.sample
        plain = key.protocol == "tcp" and flow.token is None and len(flow.paths) == 1
        return (
            plain
            and not flow.incoming
            and not flow.broken
            and not path.near
            and not key.remote.is_loopback
            and key.remote_port in _PORTS
            and sample is not None
            and sample.state == ESTABLISHED
            and path.closed is None
            and not flow.own
            and not self._ruled.covers(key.remote, key.remote_port)
            and not self._is_of_another(key, path.network)
        )

    def _is_of_another(self, key: FlowKey, name: str | None) -> bool:
        """Tell whether another network has a connection's address, too, and so may carry it."""
        others = (each for each in self._decider.networks if each.name != name)
        return any(key.local == address.ip for each in others for address in each.addresses)

    def _living(self, context: Context, dead: str, version: int) -> Network | None:
        """Return the network that a program then reaches; None: none is known to live."""
        for network in self._decider.usable:
            if not network.up or network.name == dead:
                continue
            if why_dead(context, network.name) is not None or silent_s(context, network.name):
                continue
            if context.at_s - self._heard_at_s(context, network.name) <= _LIVES_S:
                if self._default.is_led_to(network.name, version):
                    return network
            else:
                self._outbox.give(AskNetwork(network.name))
        return None


def _heard_s(path: FlowPath, now_s: float) -> float:
    """Return the seconds since something came on a connection; 0 where no look at it is fresh."""
    sample = path.sample
    if sample is None or now_s - sample.at_s > _FRESH_S:
        return 0.0
    return path.heard_s + now_s - sample.at_s


def _waits(flow: LivingFlow, path: FlowPath, lasted_s: float) -> bool:
    """Tell whether something is due: an acknowledgement, or the rest of an answer that was on its way."""
    sample = path.sample
    if sample is None:
        return False
    if sample.unacknowledged:
        return True
    if flow.unread:
        return False
    if flow.exact:
        return bool(flow.remaining_bytes)
    # Of unknown length: it was receiving when the silence began.
    return path.bytes_down > 0 and sample.idle_down_s <= lasted_s + _RECEIVING_S


def _again_s(flow: LivingFlow, living: Network, context: Context) -> float:
    """Return the seconds for carrying the same again: so long a wait is no loss.

    A rate that was seen is the least that a network does, and of an idle one next to nothing.
    """
    carried = flow.carried_bytes(flow.transfer.direction) - flow.base_bytes if flow.transfer else 0
    known = context.networks.get(living.name, {})
    rates = [known[name].value for name in ("past5_bps", "past10_bps") if name in known]
    return 8.0 * carried / max([*rates, _USUAL_BPS])
