"""The living flows as the daemon knows them: subflows joined, bytes counted, decisions remembered.

Pure: events in, records out. A TCP connection is one flow with one path; an MPTCP connection is one
flow with several, joined by its token.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from ipaddress import IPv4Network, IPv6Network

from cedos.controller.events import SYN_SENT, FlowClosed, FlowOpened, SizeLearned
from cedos.controller.flows.living_flow import RATE_S, RESTS_S, FlowPath, LivingFlow, PathWait
from cedos.model import (
    Address,
    CompetingTransfer,
    Direction,
    FlowKey,
    FlowRecord,
    FlowSample,
    Network,
    owners,
)

# The most competing transfers of a network that count. More would change nothing.
_COMPETING = 32

# The most sizes that wait for their flow to be known, and for how many seconds.
_EARLY, _EARLY_S = 64, 2.0


class LivingFlows:
    """The living flows. Every method takes events; none does I/O."""

    def __init__(self) -> None:
        self._by_key: dict[FlowKey, LivingFlow] = {}
        self._by_token: dict[int, LivingFlow] = {}
        self._early: dict[FlowKey, tuple[float, SizeLearned]] = {}
        self._owners: Mapping[Address, str] = {}
        self._prefixes: Mapping[Address, IPv4Network | IPv6Network] = {}
        self._used_at_s: dict[str, float] = {}
        self._heard_at_s: dict[str, float] = {}
        self._rescued: set[FlowKey] = set()  # the paths that another network carries
        # When there were looks, in the second before the last one, and once before that.
        self._looks_at_s: deque[float] = deque()

    def idle_s(self, now_s: float) -> dict[str, float]:
        """Return network -> seconds since a flow last moved bytes over it; absent: never."""
        return {name: max(0.0, now_s - at_s) for name, at_s in self._used_at_s.items()}

    def heard_at_s(self, network: str) -> float:
        """Return when flows last received something over a network; -inf: never."""
        return self._heard_at_s.get(network, -math.inf)

    def path_waits(self) -> Iterator[PathWait]:
        """Yield the open paths that lead beyond their router, and whether each waits for something.

        Of flows that are still there is nothing to tell.
        """
        for flow in self:
            for path in () if flow.still else flow.paths.values():
                if path.network is None or path.sample is None or path.closed is not None:
                    continue
                if not path.near:
                    heard_at_s = path.sample.at_s - path.heard_s
                    yield PathWait(path.key, path.network, heard_at_s, flow.waits_on(path))

    def competing(self, now_s: float) -> dict[str, dict[Direction, tuple[CompetingTransfer, ...]]]:
        """Return what each network has still to carry, by direction; the largest `_COMPETING` of each."""
        found: dict[str, dict[Direction, list[CompetingTransfer]]] = {}
        for flow in self:
            if flow.transfer is None or (its := flow.competes(now_s)) is None:
                continue
            networks = flow.strategy.networks if flow.strategy else (flow.paths[flow.key].network,)
            part = 1.0 / len(networks)
            each = CompetingTransfer(its.flow, part * its.remaining_bytes, part * its.rate_bps)
            for network in filter(None, networks):
                found.setdefault(network, {}).setdefault(flow.transfer.direction, []).append(each)
        return {
            network: {
                direction: tuple(nlargest(_COMPETING, those, key=lambda it: it.remaining_bytes))
                for direction, those in of.items()
            }
            for network, of in found.items()
        }

    def __iter__(self) -> Iterator[LivingFlow]:
        # (A flow of several paths is here under the key of each.)
        return iter(dict.fromkeys(self._by_key.values()))

    def __len__(self) -> int:
        return len(set(self._by_key.values()))

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Take all networks: a path belongs to the one that has its local address."""
        found = owners(networks)
        self._owners = {ip: network.name for ip, (network, _) in found.items()}
        self._prefixes = {ip: address.network for ip, (_, address) in found.items()}

    def is_connected(self, address: str, port: int | None, before_s: float) -> bool:
        """Return whether a TCP flow with this other end lives that began before an instant."""
        return any(
            flow.started_at_s < before_s
            and key.remote_port == port
            and key.protocol == "tcp"
            and str(key.remote) == address
            for key, flow in self._by_key.items()
        )

    def of_token(self, token: int) -> LivingFlow | None:
        return self._by_token.get(token)

    def find(self, key: FlowKey) -> LivingFlow | None:
        return self._by_key.get(key)

    def on_rescue(self, key: FlowKey, network: str) -> LivingFlow | None:
        """Note that another network carries a path than its local address says (`decisions.rescue`)."""
        flow = self._by_key.get(key)
        if flow is not None:
            flow.paths[key].network = network
            if network != self._owners.get(key.local):
                self._rescued.add(key)
            else:
                self._rescued.discard(key)
        return flow

    def is_rescued(self, key: FlowKey) -> bool:
        """Return whether another network carries a path than its local address says."""
        return key in self._rescued

    def split(
        self, samples: Sequence[FlowSample]
    ) -> tuple[Sequence[FlowSample], Sequence[FlowSample]]:
        """Return the samples of paths that their own network carries, and those of rescued ones."""
        if not self._rescued:
            return samples, ()
        rescued = [sample for sample in samples if sample.key in self._rescued]
        return [sample for sample in samples if sample.key not in self._rescued], rescued

    def on_open(self, event: FlowOpened) -> LivingFlow:
        """Add the flow of a first packet. A further subflow is told apart when its token is known."""
        flow = self._by_key.get(event.key)
        if flow is None:
            flow = LivingFlow(event.key, event.at_s, event.at_unix_s, event.incoming, own=event.own)
            self._add_path(flow, event.key)
        self._on_use(flow.paths[event.key], event.at_s)
        return flow

    def join(self, token: int, key: FlowKey, now_s: float) -> LivingFlow:
        """Return the subflow `key` belongs to the MPTCP connection `token`, which may be new."""
        flow = self._by_token.get(token)
        found = self._by_key.get(key)
        if flow is None:
            flow = found or LivingFlow(key, now_s, None)
            flow.note_mptcp(token)
            self._by_token[token] = flow
        if found is not flow:
            self._add_path(flow, key)
        return flow

    def on_samples(self, samples: Iterable[FlowSample], now_s: float) -> list[LivingFlow]:
        """Take a look at all sockets; return the flows that were seen, but for those that are still."""
        seen: dict[int, LivingFlow] = {}
        for sample in samples:
            if sample.token is not None:
                flow = self.join(sample.token, sample.key, now_s)
            else:
                known = self._by_key.get(sample.key)
                if known is None:  # older than the daemon
                    known = LivingFlow(sample.key, now_s, None)
                    self._add_path(known, sample.key)
                flow = known
            path = flow.paths[sample.key]
            if path.on_sample(sample):
                self._on_use(path, now_s)
                flow.still = False
            heard_s = path.heard_s
            if sample.state != SYN_SENT:
                self._on_answer(path, sample.at_s - heard_s)
            if not flow.still or sample.unacknowledged or sample.unread or heard_s < RESTS_S:
                seen[id(flow)] = flow
        for flow in seen.values():
            flow.on_samples(now_s, self._looks_at_s)
        self._looks_at_s.append(now_s)
        while len(self._looks_at_s) > 1 and self._looks_at_s[1] <= now_s - RATE_S:
            self._looks_at_s.popleft()
        return list(seen.values())

    def on_size(self, event: SizeLearned) -> LivingFlow | None:
        """Take the size of a new transfer, or a better estimate of the current one; return its flow."""
        flow = self._by_key.get(event.key)
        if flow is not None:
            flow.on_size(event)
        return flow

    def on_early_size(self, event: SizeLearned, at_s: float) -> None:
        """Keep a size and a name for a flow that is told of later than its first packet."""
        self._early.pop(event.key, None)
        self._early[event.key] = at_s, event
        if len(self._early) > _EARLY:
            del self._early[next(iter(self._early))]

    def on_close(self, event: FlowClosed) -> FlowRecord | None:
        """Close a path; return the flow's record if that was its last one."""
        self._early.pop(event.key, None)
        flow = self._by_key.get(event.key)
        if flow is None:
            return None
        path = flow.paths[event.key]
        path.on_close(event)
        flow.catch_up(self._looks_at_s)
        flow.count_transfers()
        self._on_use(path, event.at_s)
        if event.idle_down_s is not None and event.idle_ack_s is not None:
            self._on_answer(path, event.at_s - min(event.idle_down_s, event.idle_ack_s))
        if any(each.closed is None for each in flow.paths.values()):
            return None
        for key in flow.paths:
            self._by_key.pop(key, None)
            self._rescued.discard(key)
        if flow.token is not None:
            self._by_token.pop(flow.token, None)
        return flow.record()

    def _on_use(self, path: FlowPath, at_s: float) -> None:
        if path.network is not None:
            self._used_at_s[path.network] = max(at_s, self._used_at_s.get(path.network, at_s))

    def _on_answer(self, path: FlowPath, at_s: float) -> None:
        if path.near or path.network is None:
            return
        if at_s > self.heard_at_s(path.network):
            self._heard_at_s[path.network] = at_s

    def _add_path(self, flow: LivingFlow, key: FlowKey) -> None:
        prefix = self._prefixes.get(key.local)
        near = prefix is not None and key.remote in prefix
        flow.add_path(key, self._owners.get(key.local), near=near)
        self._by_key[key] = flow
        # What an earlier connection of the same ports left behind is too old.
        at_s, early = self._early.pop(key, (-math.inf, None))
        if early is not None and abs(flow.started_at_s - at_s) <= _EARLY_S:
            self.on_size(replace(early, key=flow.key))
