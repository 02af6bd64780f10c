"""On which networks connections wait for an answer in vain, by samples of the living flows. Pure."""

from collections.abc import Iterable, Sequence

from cedos.kernel.sock_diag import SYN_SENT
from cedos.model import Address, FlowKey, Network
from cedos.monitor.events import FlowSample

# A connection that waits longer than any network's round trip. The kernel's own second try is after 1 s.
WAITED_S = 0.9
# So many servers at once are not all down: the network is.
SERVERS = 2
# When a connection was rescued onto another network, the one that it was on has had about 0.3 s to
# answer, and networks pause for longer than that: it speaks against it when the rest has passed, and
# for so long.
RESCUED_AFTER_S = 0.65
_RESCUED_S = 10.0
# Looks follow each other by 0.2 s where much is under way, and a slow network brings less often.
_CARRIES_S = 1.0


class Unanswered:
    """`carrying`: networks on which a flow was answered or received something within the last second."""

    def __init__(self) -> None:
        self._since_s: dict[FlowKey, float] = {}
        self._bytes_down: dict[FlowKey, int] = {}
        self._servers: dict[str, frozenset[Address]] = {}
        self._rescued: dict[str, dict[Address, float]] = {}
        self._carried_at_s: dict[str, float] = {}
        self.carrying: frozenset[str] = frozenset()

    def observe(
        self, samples: Sequence[FlowSample], networks: Iterable[Network], now_s: float
    ) -> frozenset[str]:
        """Return the networks on which connections wait in vain while nothing else is carried."""
        owner = {address.ip: (n.name, address) for n in networks for address in n.addresses}
        waiting: dict[str, set[Address]] = {}
        before, self._bytes_down = self._bytes_down, {}
        since_s, self._since_s = self._since_s, {}
        for sample in samples:
            name, subnet = owner.get(sample.key.local, (None, None))
            # (A router's own page tells nothing of what lies behind it.)
            if name is None or subnet is None or sample.key.remote in subnet.network:
                continue
            if sample.state == SYN_SENT:
                first_s = self._since_s[sample.key] = since_s.get(sample.key, now_s)
                if now_s - first_s >= WAITED_S:
                    waiting.setdefault(name, set()).add(sample.key.remote)
                continue
            self._bytes_down[sample.key] = sample.bytes_down
            # One that came up since, or received something: the network does carry.
            if sample.bytes_down > before.get(sample.key, 0) or sample.key in since_s:
                self._carried_at_s[name] = now_s
                self._rescued.pop(name, None)
        there = {name for name, _ in owner.values()}
        self.carrying = frozenset(
            name
            for name, at_s in self._carried_at_s.items()
            if name in there and now_s - at_s <= _CARRIES_S
        )
        self._carried_at_s = {name: self._carried_at_s[name] for name in self.carrying}
        self._servers = {
            name: frozenset(found) for name, found in waiting.items() if name not in self.carrying
        }
        return frozenset(self._servers)

    def rescued(self, name: str, server: Address, now_s: float) -> bool:
        """Return whether `server`, from which a flow was rescued, completes the needed number."""
        rescued = self._rescued.setdefault(name, {})
        lately = [each for each, at_s in rescued.items() if now_s - at_s <= _RESCUED_S]
        if server in lately:  # that it is asked again does not restart its wait
            return False
        rescued[server] = now_s
        return len(lately) + 1 == SERVERS

    def forget(self, name: str) -> None:
        self._rescued.pop(name, None)
        self._servers.pop(name, None)

    def unanswered_servers(self, name: str, now_s: float) -> int:
        """Return how many servers have not answered over a network; 0 while they are too few to tell."""
        rescued = self._rescued.get(name, {})
        servers = {
            server
            for server, at_s in rescued.items()
            if RESCUED_AFTER_S <= now_s - at_s <= _RESCUED_S
        }
        count = len(servers | self._servers.get(name, frozenset()))
        return count if count >= SERVERS else 0
