"""The networks as their flows, pings, counters and providers show them, as one context."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from cedos.controller.commands import AskName, WatchSilence
from cedos.controller.events import SYN_SENT, FlowClosed, FlowOpened, Witness
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.delivery import DeliveryWatch
from cedos.controller.networks.rates import LEAST_BYTES
from cedos.controller.networks.silence import Due, RoundTrips, Silence
from cedos.controller.outbox import Outbox
from cedos.model import Address, Context, FlowKey, FlowSample, Network, owners

# After fewer bytes, the receiver's round trip may be that of the interval before.
_BULK_BYTES = 15_000


@dataclass(slots=True)
class PassiveSample:
    """Fresh round-trip times, whether bytes moved, how many of the segments were sent a second time."""

    rtts_s: list[float] = field(default_factory=list)
    carried: bool = False
    segments: int = 0
    segments_again: int = 0


class PassiveWatch:
    """The round trips and losses of networks by their living flows; of their rates tells `delivery`."""

    def __init__(self) -> None:
        self._before: dict[FlowKey, FlowSample] = {}

    def observe(
        self, samples: Iterable[FlowSample], networks: Iterable[Network]
    ) -> Mapping[str, PassiveSample]:
        """Return what flows show of each network that has their local addresses, by its name."""
        owner = {ip: network.name for ip, (network, _) in owners(networks).items()}
        before, self._before = self._before, {}
        found: dict[str, PassiveSample] = {}
        for sample in samples:
            self._before[sample.key] = sample
            name = owner.get(sample.key.local)
            if name is None:
                continue
            glimpse = found.setdefault(name, PassiveSample())
            old = before.get(sample.key)
            glimpse.carried |= old is None or (old.bytes_down, old.bytes_up) != (
                sample.bytes_down,
                sample.bytes_up,
            )
            if old is not None and old.bytes_down <= sample.bytes_down:
                _compare(glimpse, old, sample)
        return found


def _compare(glimpse: PassiveSample, old: FlowSample, new: FlowSample) -> None:
    down, up = new.bytes_down - old.bytes_down, new.bytes_up - old.bytes_up
    # The smoothed estimate moves when something sent is acknowledged, and stands still on a pure
    # download; the receiver's own moves with the data.
    if new.rtt_s is not None and up > 0:
        glimpse.rtts_s.append(new.rtt_s)
    elif new.receive_rtt_s is not None and down >= _BULK_BYTES:
        glimpse.rtts_s.append(new.receive_rtt_s)
    glimpse.segments += max(new.segments - old.segments, 0)
    glimpse.segments_again += max(new.retransmits - old.retransmits, 0)


class HelperBytes:
    """The payload of connections by helper: several share an interface, whose counter has their sum.

    The kernel counts it by connection, as the gateway does that signs the receipts. Only connections to
    that gateway are carried by the helper, whatever else programs send from its address.
    """

    def __init__(self) -> None:
        self._owners: dict[tuple[Address, Address | None, str], str] = {}
        # Helpers of before the daemon's start, until the first look: what their connections of then have
        # carried is not counted.
        self._older: frozenset[Address] | None = None
        self._seen: dict[FlowKey, tuple[int, int]] = {}
        self._totals: dict[str, tuple[int, int]] = {}

    def of(self, helper: str) -> tuple[int, int]:
        """Return the bytes received and sent by way of the helpers of this name."""
        return self._totals.get(helper, (0, 0))

    def networks_changed(self, helpers: Sequence[Network]) -> None:
        """Take the helpers of now; the connections of those that are gone are forgotten."""
        self._owners = {
            (each.ip, helper.leads_to, "tcp"): helper.name
            for helper in helpers
            for each in helper.addresses
        }
        if self._older is None:
            self._older = frozenset(own for own, *_ in self._owners)
        self._seen = {key: seen for key, seen in self._seen.items() if self._owner(key) is not None}

    def _owner(self, key: FlowKey) -> str | None:
        return self._owners.get((key.local, key.remote, key.protocol))

    def on_open(self, key: FlowKey) -> None:
        """Take it that a connection begins: all that it carries counts."""
        if self._owner(key) is not None:
            self._seen.setdefault(key, (0, 0))

    def on_samples(self, samples: Sequence[FlowSample]) -> set[str]:
        """Take a look at the connections; return the helpers that have carried something since."""
        if not self._owners:
            return set()
        found = {self._count(each) for each in samples}
        if samples:  # all that is not known by now has begun since
            self._older = frozenset()
        return {name for name in found if name is not None}

    def on_close(self, event: FlowClosed) -> None:
        """Take the final figures of a connection."""
        self._count(event)
        self._seen.pop(event.key, None)

    def _count(self, now: FlowSample | FlowClosed) -> str | None:
        """Add what a connection has carried since the last look; return its helper if that is more."""
        key, carried = now.key, (now.bytes_down, now.bytes_up)
        name = self._owner(key)
        if name is None:
            return None
        is_old = key not in self._seen and key.local in (self._older or ())
        before = carried if is_old else self._seen.get(key, (0, 0))
        self._seen[key] = carried
        down, up = (max(new - old, 0) for new, old in zip(carried, before, strict=True))
        if not down + up:
            return None
        received, sent = self.of(name)
        self._totals[name] = received + down, sent + up
        return name


# For this time after traffic with a host in front of the router, the interface's counters also
# contain that traffic.
_NEAR_S: Final = 2.0
# The longest time after its last packet for which connection tracking keeps a UDP flow.
_UDP_KEPT_S: Final = 120.0
# A round trip counts as current if it ended within this time before its flow did.
_JUST_ANSWERED_S: Final = 0.5
_MOMENT_S: Final = 0.1
_NO_OWNER: Final = None, ()


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
        # By own address the network, and the prefixes of its link.
        self._owners: dict[Address, tuple[str, tuple[IPv4Network | IPv6Network, ...]]] = {}
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
        self._owners = {
            ip: (network.name, tuple(each.network for each in network.addresses))
            for ip, (network, _) in owners(networks).items()
        }
        for network in networks:
            self.keeper.observe_up(network.name, network.up, now_s)

    def on_heard(self, network: str, remote: Address, at_s: float, witness: Witness) -> None:
        """Note that `remote` said something: one beyond the router shows that its network carries."""
        if not self._on_link(network, remote):
            self.on_answer(network, witness, at_s)

    def on_answer(self, network: str, witness: Witness, at_s: float) -> None:
        """Note an answer from beyond a network's router."""
        self.keeper.liveness(network).on_heard(witness, at_s)
        self.heard_at_s[network] = max(at_s, self.heard_at_s.get(network, at_s))

    def on_counters(self, network: str, received_bytes: int, sent_bytes: int, now_s: float) -> None:
        """Take an interface's counters, which give rates unless hosts on the link had a part in them."""
        self._sent_bytes[network] = sent_bytes
        if now_s - self._near_at_s.get(network, -math.inf) < _NEAR_S:
            self.keeper.skip_next_counts(network)
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
        self.by_helpers.on_open(event.key)
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
        if event.key.protocol == "udp" and event.bytes_down:
            self.on_answer(network, Witness.DATAGRAM, now_s - _UDP_KEPT_S)
        # Most flows are too short to be seen alive: what their round trips took is known at the end.
        answered_s = event.idle_ack_s
        if event.rtt_s is None or answered_s is None:
            return
        self.on_answer(network, Witness.TRANSFER, now_s - answered_s)
        if answered_s <= _JUST_ANSWERED_S:
            self.keeper.observe_rtt(network, event.rtt_s, now_s)

    def on_samples(
        self, samples: Sequence[FlowSample], now_s: float, *, full: bool
    ) -> frozenset[str]:
        """Take a look at all flows; return the networks in use.

        `full`: also take round trips and losses, which need more time between two looks than rates.
        """
        beyond = self._samples_beyond(samples)
        for name, stretches in self._delivery.observe(beyond, self._networks, now_s).items():
            self.keeper.observe_delivery(name, stretches)
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

    def _samples_beyond(self, samples: Sequence[FlowSample]) -> list[FlowSample]:
        """Return the samples of flows beyond the routers; what came there shows that networks carry."""
        beyond: list[FlowSample] = []
        heard_at_s: dict[str, float] = {}
        before = self._near_bytes
        if samples:  # flows are known, though none is sampled, where no look was worth it
            self._near_bytes = {}
        for sample in samples:
            key = sample.key
            name, prefixes = self._owners.get(key.local, _NO_OWNER)
            # A host on the link: keep its bytes out of the network's rate.
            if name is not None and any(key.remote in prefix for prefix in prefixes):
                self._near_bytes[key] = sample.bytes_down + sample.bytes_up
                self._carried_near(name, sample, before.get(key, 0))
                continue
            beyond.append(sample)
            # A host beyond the router that has answered: its network carries.
            heard_s = min(sample.idle_down_s, sample.idle_ack_s)
            if name is not None and sample.state != SYN_SENT and math.isfinite(heard_s):
                at_s = sample.at_s - heard_s
                heard_at_s[name] = max(at_s, heard_at_s.get(name, at_s))
        for name, at_s in heard_at_s.items():
            self.on_answer(name, Witness.TRANSFER, at_s)
        return beyond

    # -- silence ------------------------------------------------------------------------------

    def pending(self, asked_at_s: Mapping[str, float]) -> dict[str, float]:
        """Return network -> when its oldest pending ping was sent, where pings are answered at all."""
        return {
            name: at_s
            for name, at_s in asked_at_s.items()
            if self.keeper.liveness(name).has_answered(Witness.PING)
        }

    def listen(self, asked_at_s: Mapping[str, float], now_s: float) -> bool:
        """Note which networks are silent; return whether others are than before.

        `asked_at_s`: of `pending`.
        """
        known = self.keeper.round_trips(now_s)
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
            if due.silent_s > 0.0 and not liveness.has_answered(Witness.PING):
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
        name, prefixes = self._owners.get(key.local, _NO_OWNER)
        return name if any(key.remote in prefix for prefix in prefixes) else None

    def _carried_near(self, name: str, seen: FlowSample | FlowClosed, before_bytes: int) -> None:
        if seen.bytes_down + seen.bytes_up - before_bytes >= LEAST_BYTES:
            self._near_at_s[name] = max(seen.at_s, self._near_at_s.get(name, seen.at_s))
