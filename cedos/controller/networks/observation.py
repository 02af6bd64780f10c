"""The networks as their flows, pings, counters and providers show them, as one context."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from cedos.controller.commands import AskName, WatchSilence
from cedos.controller.events import SYN_SENT, FlowClosed, FlowOpened, FlowSample, Witness
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.delivery import DeliveryWatch
from cedos.controller.networks.helpers import HelperBytes
from cedos.controller.networks.passive import PassiveWatch
from cedos.controller.networks.rates import LEAST_BYTES
from cedos.controller.networks.silence import Due, RoundTrips, Silence
from cedos.controller.outbox import Outbox
from cedos.model import Address, Context, FlowKey, Network

# For this time after traffic with a host in front of the router, the interface's counters also
# contain that traffic.
_NEAR_S: Final = 2.0
# The longest time after its last packet for which connection tracking keeps a UDP flow.
_UDP_KEPT_S: Final = 120.0
# A round trip counts as current if it ended within this time before its flow did.
_JUST_ANSWERED_S: Final = 0.5
_MOMENT_S: Final = 0.01


class NetworkObservation:
    """The indicators, liveness and silences of the networks.

    Attributes:
        keeper: the indicators and the liveness of each network.
        by_helpers: the bytes that each helper has carried.
        heard_at_s: network -> when anything last came from beyond its router.
        silent: the networks from which an answer is overdue.
    """

    def __init__(self, outbox: Outbox, flows: LivingFlows) -> None:
        self.keeper = ContextKeeper()
        self.by_helpers = HelperBytes()
        self.heard_at_s: dict[str, float] = {}
        self.silent: frozenset[str] = frozenset()
        self._outbox = outbox
        self._flows = flows
        self._networks: Sequence[Network] = ()
        self._helpers: Sequence[Network] = ()
        self._recent: Context | None = None
        self._delivery = DeliveryWatch()
        self._passive = PassiveWatch()
        self._silence = Silence()
        self._pauses: Mapping[str, tuple[float, ...]] = {}
        # Of hosts before the router: when they last carried much, and their flows' bytes so far.
        self._near_at_s: dict[str, float] = {}
        self._near_bytes: dict[FlowKey, int] = {}
        self._sent_bytes: dict[str, int] = {}

    @property
    def sent_bytes(self) -> int | None:
        """Return the sum of the interfaces' counters of sent bytes; None: none is known."""
        return sum(self._sent_bytes.values()) if self._sent_bytes else None

    def context(self, now_s: float, *, keep: bool = True) -> Context:
        """Return all that is known now; `keep`: the events of the next moment may use it again."""
        known = self.keeper.snapshot(now_s) if keep else self.keeper.fresh(now_s)
        return replace(known, competing=self._flows.competing(now_s), pauses=self._pauses)

    def recent_context(self, now_s: float) -> Context:
        """Return one context for all flows that begin or end in one moment: they do so by the hundred."""
        recent = self._recent
        if recent is None or now_s - recent.at_s >= _MOMENT_S:
            recent = self._recent = self.context(now_s)
        return recent

    def networks_changed(
        self, own: Sequence[Network], helpers: Sequence[Network], now_s: float
    ) -> None:
        """Take the networks; what is gone is forgotten."""
        networks = (*own, *helpers)
        left = {each.name for each in self._networks} - {each.name for each in networks}
        # Another neighbour may have the name and the table of one that has just left.
        addresses = {each.name: each.addresses for each in self._helpers}
        left |= {
            each.name
            for each in helpers
            if addresses.get(each.name, each.addresses) != each.addresses
        }
        self._helpers = helpers
        self.by_helpers.networks_changed(helpers)
        for gone in left:
            self.keeper.forget(gone)
            self.heard_at_s.pop(gone, None)
            self._sent_bytes.pop(gone, None)
        self._networks = networks
        for network in networks:
            self.keeper.observe_up(network.name, network.up, now_s)

    def on_heard(self, network: str, remote: Address, at_s: float, witness: Witness) -> None:
        """Note that `remote` said something: one beyond the router shows that its network carries."""
        if not self._on_link(network, remote):
            self.heard(network, witness, at_s)

    def heard(self, network: str, witness: Witness, at_s: float) -> None:
        """Note an answer from beyond a network's router."""
        self.keeper.liveness(network).on_heard(witness, at_s)
        self.heard_at_s[network] = max(at_s, self.heard_at_s.get(network, at_s))

    def on_counters(self, network: str, received_bytes: int, sent_bytes: int, now_s: float) -> None:
        """Take an interface's counters, which give rates unless hosts on the link had a part in them."""
        self._sent_bytes[network] = sent_bytes
        if now_s - self._near_at_s.get(network, -math.inf) < _NEAR_S:
            self.keeper.uncounted(network)
        else:
            self.keeper.observe_bytes(network, received_bytes, sent_bytes, now_s)

    def on_ping(self, network: str, rtt_s: float | None, asked_s: float, at_s: float) -> None:
        """Take the end of a ping; None: no answer came in time."""
        self.keeper.observe_ping(network, rtt_s, at_s, asked_s)
        if rtt_s is not None:
            self.heard_at_s[network] = max(at_s, self.heard_at_s.get(network, at_s))
        elif any(each.name == network for each in self._networks):
            # Another witness is asked, and silence may be the first sign of an outage.
            self._outbox.give(AskName(network))
            self._outbox.wake()

    # -- flows --------------------------------------------------------------------------------

    def on_open(self, event: FlowOpened) -> None:
        if (name := self._before_router(event.key)) is None:
            self._delivery.on_open(event.key, event.at_s)
        elif event.key.protocol == "tcp":  # it may carry much before the next look
            self._near_at_s[name] = event.at_s

    def on_close(self, event: FlowClosed, network: str | None, now_s: float) -> None:
        """Take the end of a flow; `network`: that of its address, None where another carried it."""
        # A flow to a host on the link says nothing of the network; its bytes must not count for it.
        near = self._before_router(event.key)
        if near is not None and event.key.protocol == "tcp":
            self._carried_near(near, event, self._near_bytes.pop(event.key, 0))
        if network is None or near is not None:
            self._delivery.forget(event.key)
            return
        self._delivery.on_close(event)
        self.by_helpers.on_close(event)
        remote = event.key.remote
        if event.key.protocol == "udp" and event.bytes_down:
            self.on_heard(network, remote, now_s - _UDP_KEPT_S, Witness.DATAGRAM)
        # Most flows are too short to be seen alive: what their round trips took is known at the end.
        answered_s = event.idle_ack_s
        if event.rtt_s is None or answered_s is None:
            return
        self.on_heard(network, remote, now_s - answered_s, Witness.TRANSFER)
        if answered_s <= _JUST_ANSWERED_S:
            self.keeper.observe_rtt(network, event.rtt_s, now_s)

    def on_samples(
        self, samples: Sequence[FlowSample], now_s: float, *, full: bool
    ) -> frozenset[str]:
        """Take a look at all flows; return the networks in use.

        `full`: also take round trips and losses, which need more time between two looks than rates.
        """
        beyond = [each for each in samples if self._before_router(each.key) is None]
        for name, stretches in self._delivery.observe(beyond, self._networks, now_s).items():
            self.keeper.observe_delivery(name, stretches)
        self._take_answers(samples)
        self._take_helpers(samples, now_s)
        if not full:
            return frozenset()
        for helper in self._helpers:
            self.keeper.observe_bytes(helper.name, *self.by_helpers.of(helper.name), now_s)
        seen = self._passive.observe(beyond, self._networks)
        for name, glimpse in seen.items():
            for rtt_s in glimpse.rtts_s:
                self.keeper.observe_rtt(name, rtt_s, now_s)
            self.keeper.observe_losses(name, glimpse.segments, glimpse.segments_again, now_s)
        return frozenset(name for name, glimpse in seen.items() if glimpse.carried)

    def _take_helpers(self, samples: Sequence[FlowSample], now_s: float) -> None:
        """Count what helpers carry. They are on the link: that is none of its network's rate."""
        busy = self.by_helpers.on_samples(samples)
        links = {helper.index for helper in self._helpers if helper.name in busy}
        self._near_at_s |= {each.name: now_s for each in self._networks if each.index in links}

    def _take_answers(self, samples: Sequence[FlowSample]) -> None:
        """Note what came from beyond the routers: it shows that their networks carry."""
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
            if sample.state != SYN_SENT and math.isfinite(heard_s):
                at_s = sample.at_s - heard_s
                heard_at_s[name] = max(at_s, heard_at_s.get(name, at_s))
        for name, at_s in heard_at_s.items():
            self.heard(name, Witness.TRANSFER, at_s)

    # -- silence ------------------------------------------------------------------------------

    def pending(self, asked_at_s: Mapping[str, float]) -> dict[str, float]:
        """Return network -> when its oldest pending ping was sent, where pings are answered at all."""
        return {
            name: at_s
            for name, at_s in asked_at_s.items()
            if self.keeper.liveness(name).answered(Witness.PING)
        }

    def listen(self, asked_at_s: Mapping[str, float], now_s: float) -> bool:
        """Note which networks are silent; return whether others are than before.

        `asked_at_s`: of `pending`.
        """
        known = self.keeper.snapshot(now_s).networks
        rtts = {name: each["rtt_s"] for name, each in known.items() if "rtt_s" in each}
        found = self._silence.check(
            self._flows.path_waits(),
            asked_at_s,
            {name: rtt.measured_at_s for name, rtt in rtts.items()},
            {
                name: RoundTrips(rtt.value, known[name].get("rtt_min_s", rtt).value)
                for name, rtt in rtts.items()
            },
            now_s,
        )
        self._pauses = self._silence.pauses(now_s)
        for network in self._networks:
            due = found.get(network.name, Due(0.0, transfers=False, pings=False))
            waiting = ((Witness.TRANSFER, due.transfers), (Witness.PING, due.pings))
            liveness = self.keeper.liveness(network.name)
            liveness.silent(due.silent_s, now_s, *(each for each, waits in waiting if waits))
            if due.silent_s > 0.0 and not liveness.answered(Witness.PING):
                self._outbox.give(AskName(network.name))
        before, self.silent = self.silent, frozenset(found)
        if before or self.silent:
            self._outbox.give(WatchSilence(self.silent))
        return before != self.silent

    # -- hosts before the router --------------------------------------------------------------

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
