"""On which networks connections wait for an answer in vain, by samples of the living flows. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cedos.controller.events import SYN_SENT
from cedos.model import Address, FlowKey, FlowSample, Network, owners

# A connection that waited this long waits longer than any round trip. The kernel's second try is
# after 1 s.
WAITED_S = 0.9
# If this many servers do not answer, the network is at fault.
SERVERS = 2
# A connection that was rescued onto another network gave the first one about 0.3 s, and networks
# pause for longer. After this much more time it counts against that network.
RESCUED_AFTER_S = 0.65
_RESCUED_S = 10.0
# A network that delivered within this time carries. Looks are 0.2 s apart under load, and slow
# networks deliver less often.
_CARRIES_S = 1.0
# More bytes than a middlebox answers before its certificate is refused. Answers from port 80 prove
# nothing.
_PROVEN_BYTES, _WEB = 20_000, 80


class InVain(NamedTuple):
    """Servers that do not answer over a network: how many, since when, and how many do elsewhere."""

    servers: int
    asked_s: float
    at_s: float
    elsewhere: int

    @property
    def counts(self) -> bool:
        """Return whether it is the network: several servers, or one that is known to live."""
        return self.servers >= SERVERS or self.elsewhere > 0


class Unanswered:
    """Servers without an answer, by network.

    Attributes:
        carrying: network -> when a flow was last answered there or received something, within a second.
        proven: those among them where a transfer received more than a box in the way would answer.
    """

    def __init__(self) -> None:
        self._since_s: dict[FlowKey, float] = {}
        self._bytes_down: dict[FlowKey, int] = {}
        self._waiting: dict[str, dict[Address, float]] = {}
        self._rescued: dict[str, dict[Address, float]] = {}
        self._elsewhere: dict[str, set[Address]] = {}
        self.carrying: dict[str, float] = {}
        self.proven: dict[str, set[Address]] = {}

    def observe(
        self, samples: Sequence[FlowSample], networks: Iterable[Network], now_s: float
    ) -> None:
        """Take a look at the living flows."""
        owner = {ip: (network.name, address) for ip, (network, address) in owners(networks).items()}
        self._waiting, self.proven = {}, {}
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
                    self._waiting.setdefault(name, {})[sample.key.remote] = first_s
                continue
            self._bytes_down[sample.key] = sample.bytes_down
            # One that came up since, or received something: the network does carry.
            if sample.bytes_down > before.get(sample.key, 0) or sample.key in since_s:
                self.carrying[name] = now_s
                self._rescued.pop(name, None)
                if sample.bytes_down >= _PROVEN_BYTES and sample.key.remote_port != _WEB:
                    self.proven.setdefault(name, set()).add(sample.key.remote)
        there = {name for name, _ in owner.values()}
        self.carrying = {
            name: at_s
            for name, at_s in self.carrying.items()
            if name in there and now_s - at_s <= _CARRIES_S
        }

    def on_rescue(self, name: str, server: Address, now_s: float) -> None:
        """Note that a flow to `server` was rescued; that it is asked again does not restart its wait."""
        before = self._rescued.get(name, {})
        lately = {each: at_s for each, at_s in before.items() if now_s - at_s <= _RESCUED_S}
        self._elsewhere[name] = self._elsewhere.get(name, set()) & lately.keys()
        self._rescued[name] = {server: now_s} | lately

    def answered_elsewhere(self, name: str, server: Address) -> None:
        """Note that a server from which a flow was rescued has answered over another network."""
        if server in self._rescued.get(name, {}):
            self._elsewhere.setdefault(name, set()).add(server)

    def in_vain(self, name: str, now_s: float) -> InVain | None:
        """Return what speaks against a network; None: nothing does, or something is carried."""
        if name in self.carrying:
            return None
        rescued = {
            server: at_s
            for server, at_s in self._rescued.get(name, {}).items()
            if RESCUED_AFTER_S <= now_s - at_s <= _RESCUED_S
        }
        waiting = self._waiting.get(name, {})
        if not rescued and not waiting:
            return None
        elsewhere = rescued.keys() & self._elsewhere.get(name, set())
        last_s = max(rescued.values(), default=-1.0)
        return InVain(
            len(rescued.keys() | waiting.keys()),
            min([*rescued.values(), *waiting.values()]),
            now_s if waiting else last_s + RESCUED_AFTER_S,
            len(elsewhere),
        )
