"""Ask unanswered look-ups again over another network.

If a resolver leaves a question without an answer for 300 ms, or for three times as long as it usually
takes, while another network's resolver answers, it counts as silent until it answers in time again:
meanwhile its questions are asked there at once. Names that belong to a local network are left alone.

If the other resolver says that a name does not exist, that is not believed: the name may exist in the
silent network alone. But no program is left waiting: it receives SERVFAIL, which is cached for seconds
at most.
"""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from cedos.daemon.lookups.delivery import Deliver
from cedos.host.monitor.dns import message as dns
from cedos.host.profiler.frame import CapturedPacket
from cedos.model import Address, FlowKey, Network
from cedos.token_bucket import TokenBucket

PATIENCE_S, USUAL_TIMES, _MOST_PATIENCE_S = 0.3, 3.0, 1.0
_MOST_LOOKUPS, _MOST_REPEATED, _MOST_RESOLVERS = 256, 64, 64
_PER_S, _BURST = 20.0, 64
"""The rate at which questions are asked again: a program that asks without end costs no more."""
_KEPT_S: Final = 6.0
"""A program has given up, or asked again, after so long."""
_APART_S: Final = 0.3
"""The next network is asked, too, where one has not answered for so long."""
_REFUSED_S: Final = 2.0
"""Seconds that a resolver not known to be silent has if only others' refusals were received."""
_WEIGHT: Final = 0.2
_PORT: Final = 53
_FAILING: Final = 3
"""A resolver that fails for so many names in a row, with nothing in common, has no way out itself."""
_LOCAL: Final = frozenset(
    ("local", "lan", "home", "home.arpa", "internal", "localdomain", "corp", "localhost")
)
_NO_ERROR: Final = 0

Ask = Callable[[Network, Address, bytes], Awaitable[bytes | None]]
"""Sends a question to a resolver over a network; its answer, None: there was none in time."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Lookup:
    """`first_at_s`: when it was asked for the first time; `over`: the program has been answered."""

    network: str
    question: bytes
    at_s: float
    name: str
    first_at_s: float
    waiting: asyncio.TimerHandle | None = None
    refusal: bytes | None = None
    over: bool = False


@dataclass(slots=True)
class _Resolver:
    """Whom programs ask over a network. `silent`: over which other one its questions are answered.

    `failed`: the domains for which it has said so since it last knew an answer.
    """

    usual_s: float | None = None
    silent: str | None = None
    failed: set[str] = field(default_factory=set)

    @property
    def patience_s(self) -> float:
        return min(max(PATIENCE_S, USUAL_TIMES * (self.usual_s or 0.0)), _MOST_PATIENCE_S)


class LookupFailover:
    """To be made within the event loop.

    Args:
        networks: those that may be used now, in the order of preference.
        doubt: takes a network whose resolver has left a question without an answer, and did not before.
        lies: whether a network answers whatever it likes (a captive portal).
        heard: told over which network which resolver has answered.
        is_own: whether a flow is this process's, to learn about a network.
    """

    def __init__(
        self,
        networks: Callable[[], Sequence[Network]],
        ask: Ask,
        deliver: Deliver,
        is_own: Callable[[FlowKey], bool] = lambda key: False,
        lies: Callable[[str], bool] = lambda name: False,
        doubt: Callable[[Network], None] = lambda network: None,
        heard: Callable[[str, Address], None] = lambda network, resolver: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._networks = networks
        self._ask = ask
        self._deliver = deliver
        self._is_own = is_own
        self._lies = lies
        self._doubt = doubt
        self._told_heard = heard
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lookups: OrderedDict[tuple[FlowKey, bytes], _Lookup] = OrderedDict()
        self._found: OrderedDict[tuple[Address, Address, str], float] = OrderedDict()
        self._resolvers: OrderedDict[tuple[str, Address], _Resolver] = OrderedDict()
        self._bucket = TokenBucket(_PER_S, _BURST, clock())
        self._repeating: set[asyncio.Task[None]] = set()

    @property
    def problems(self) -> list[str]:
        there = {network.name: network for network in self._networks()}
        own = {
            name: resolver
            for (name, address), resolver in self._resolvers.items()
            # (Another that one program asks is that program's own matter.)
            if name in there and address in (*there[name].resolvers, *there[name].gateways)
        }
        silent = [
            f"the DNS resolver of {name} does not answer. Look-ups are answered over {each.silent}"
            for name, each in own.items()
            if each.silent in there
        ]
        return silent + [
            f"the DNS resolver of {name} fails. Programs that ask no other one find no names"
            for name, each in own.items()
            if each.silent is None and len(each.failed) >= _FAILING
        ]

    def observe(self, packet: CapturedPacket) -> None:
        key, payload = packet.key, packet.payload
        if key.remote_port != _PORT or key.protocol != "udp" or key.local.is_loopback:
            return
        if packet.interface == "lo" or len(payload) < 2 or self._is_own(key):
            return
        if packet.outgoing:
            self._asked(key, payload, packet.interface)
        else:
            self._answered(key, payload)

    def close(self) -> None:
        for lookup in self._lookups.values():
            if lookup.waiting is not None:
                lookup.waiting.cancel()
        for task in self._repeating:
            task.cancel()

    def _asked(self, key: FlowKey, question: bytes, interface: str) -> None:
        network = next((n.name for n in self._networks() if n.interface == interface), None)
        asked = dns.asked(question)
        if network is None or asked is None or is_local(asked[0]):
            return
        now_s = self._clock()
        self._forget(now_s)
        resolver = self._resolver(network, key.remote)
        lookup = _Lookup(network, question, now_s, asked[0], now_s)
        number = (key, question[:2])
        again = False
        # A program's repetition of its question waits for the same answer.
        if (before := self._lookups.pop(number, None)) is not None:
            again = before.name == lookup.name and not before.over
            lookup.first_at_s = before.first_at_s if again else now_s
            if before.waiting is not None:
                before.waiting.cancel()
        self._lookups[number] = lookup
        at_once = resolver.silent is not None or again
        lookup.waiting = self._loop.call_later(
            0.0 if at_once else resolver.patience_s, self._over, number
        )

    def _resolver(self, network: str, address: Address) -> _Resolver:
        found = self._resolvers.setdefault((network, address), _Resolver())
        self._resolvers.move_to_end((network, address))
        while len(self._resolvers) > _MOST_RESOLVERS:
            self._resolvers.popitem(last=False)
        return found

    def _answered(self, key: FlowKey, answer: bytes) -> None:
        lookup = self._lookups.pop((key, answer[:2]), None)
        if lookup is None:
            return
        if lookup.waiting is not None:
            lookup.waiting.cancel()
        if not self._lies(lookup.network):
            self._told_heard(lookup.network, key.remote)
        took_s = self._clock() - lookup.at_s
        resolver = self._resolver(lookup.network, key.remote)
        self._counts(resolver, lookup, answer)
        usual_s = took_s if resolver.usual_s is None else resolver.usual_s
        resolver.usual_s = usual_s + _WEIGHT * (took_s - usual_s)
        if resolver.silent is not None and took_s <= resolver.patience_s:
            resolver.silent = None
            _log.info("a resolver answers again", network=lookup.network)

    def _counts(self, resolver: _Resolver, lookup: _Lookup, answer: bytes) -> None:
        """Count failures: programs believe a failing resolver, so at least users are told."""
        reply = dns.parse(answer)
        if reply is None or reply.code not in dns.FAILURES:
            resolver.failed.clear()
            return
        failing = len(resolver.failed) >= _FAILING
        if not failing:
            resolver.failed.add(".".join(lookup.name.split(".")[-2:]))
        if len(resolver.failed) >= _FAILING and not failing:
            _log.warning("a resolver fails for all names", network=lookup.network)
            self._ask_for(lookup.network)

    def _ask_for(self, name: str) -> None:
        """Have a network pinged."""
        for network in self._networks():
            if network.name == name:
                self._doubt(network)

    def _forget(self, now_s: float) -> None:
        while self._lookups:
            oldest = next(iter(self._lookups.values()))
            if len(self._lookups) < _MOST_LOOKUPS and now_s - oldest.at_s < _KEPT_S:
                return
            if oldest.waiting is not None:
                oldest.waiting.cancel()
            self._lookups.popitem(last=False)

    def _over(self, number: tuple[FlowKey, bytes]) -> None:
        lookup = self._lookups.get(number)
        if lookup is None or lookup.over or len(self._repeating) >= _MOST_REPEATED:
            return
        lookup.waiting = None
        if self._resolver(lookup.network, number[0].remote).silent is None:  # else it is no news
            self._ask_for(lookup.network)
        if not self._bucket.take(self._clock()):
            return
        task = self._loop.create_task(self._repeat(number, lookup))
        self._repeating.add(task)
        task.add_done_callback(self._repeating.discard)

    async def _repeat(self, number: tuple[FlowKey, bytes], lookup: _Lookup) -> None:
        """Ask over the other networks, one after the other, until one has answered."""
        others = [
            (network, resolver)
            for network in self._networks()
            if network.name != lookup.network and network.up and not self._lies(network.name)
            for resolver in resolvers_of(network, number[0].remote)
        ]
        asked: dict[asyncio.Task[bytes | None], str] = {}
        other: str | None = None
        try:
            while others or asked:
                if others:
                    network, resolver = others.pop(0)
                    task = self._loop.create_task(_asked_of(self._ask, network, resolver, lookup))
                    asked[task] = network.name
                done, _ = await asyncio.wait(
                    asked, timeout=_APART_S if others else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                for task in done:
                    name, answer = asked.pop(task), task.result()
                    if answer is None:
                        continue
                    if not is_refusal(answer):
                        self._heard(number, lookup, name, answer)
                        return
                    lookup.refusal = answer
                    if self._is_there(number[0], lookup):
                        self._heard(number, lookup, name, answer)
                        return
                    other = name
        finally:
            for task in asked:
                task.cancel()
        if other is not None and self._lookups.get(number) is lookup and not lookup.over:
            own = self._resolver(lookup.network, number[0].remote)
            patience_s = own.patience_s if own.silent is not None else _REFUSED_S
            lookup.waiting = self._loop.call_later(
                max(lookup.first_at_s + patience_s - self._clock(), 0.0),
                self._heard, number, lookup, other, dns.failure(lookup.question),
            )  # fmt: skip

    def _heard(
        self, number: tuple[FlowKey, bytes], lookup: _Lookup, other: str, answer: bytes
    ) -> None:
        # Its own resolver was quicker after all, or has been asked again.
        if self._lookups.get(number) is not lookup or lookup.over:
            return
        lookup.over = True  # what its own resolver says later still shows that it lives
        try:
            self._deliver(number[0], answer)
        except OSError as error:
            _log.debug("an answer cannot be handed over", why=error.strerror)
            return
        if is_refusal(answer):  # the name may not exist at all
            return
        resolver = self._resolver(lookup.network, number[0].remote)
        if resolver.silent is None:
            _log.warning("a resolver does not answer", network=lookup.network, asked=other)
        resolver.silent = other
        self._was_found(_place(number[0], lookup.name), other)

    def _was_found(self, place: tuple[Address, Address, str], other: str) -> None:
        """Hand over refusals of a name that was found: it may lack one kind of record.

        The port does not matter: systemd-resolved and browsers ask each question from its own.
        """
        self._found[place] = self._clock()
        self._found.move_to_end(place)
        while len(self._found) > _MOST_LOOKUPS:
            self._found.popitem(last=False)
        for number, lookup in list(self._lookups.items()):
            if _place(number[0], lookup.name) == place and lookup.refusal is not None:
                self._heard(number, lookup, other, lookup.refusal)

    def _is_there(self, key: FlowKey, lookup: _Lookup) -> bool:
        """Return whether its name was found elsewhere a moment ago, and its resolver is still silent."""
        found_at_s = self._found.get(_place(key, lookup.name))
        if found_at_s is None or self._clock() - found_at_s > _KEPT_S:
            return False
        return self._resolver(lookup.network, key.remote).silent is not None


def _place(key: FlowKey, name: str) -> tuple[Address, Address, str]:
    """Return a name as one resolver is asked for it from one network."""
    return key.local, key.remote, name


def resolvers_of(network: Network, asked: Address) -> tuple[Address, ...]:
    """Return the resolvers to ask over a network: a public one that was asked, and its own.

    Without a known resolver the gateway of a router or phone is one.
    """
    own = tuple(filter(network.reaches, (*network.resolvers, *network.gateways)))[:1]
    elsewhere = asked not in own and dns.is_public(asked) and network.reaches(asked)
    return (asked, *own) if elsewhere else own


async def _asked_of(ask: Ask, network: Network, resolver: Address, lookup: _Lookup) -> bytes | None:
    """Return what a resolver says to the question; None: nothing, or something else.

    Each is asked under a number of its own: who saw the program's question cannot answer for others.
    """
    number = secrets.token_bytes(2)
    answer = await ask(network, resolver, number + lookup.question[2:])
    reply = dns.parse(answer) if answer is not None else None
    if reply is None or answer is None or answer[:2] != number:
        return None
    asked_for = dns.asked(lookup.question) == (reply.name, reply.kind)
    return lookup.question[:2] + answer[2:] if asked_for else None


def is_refusal(answer: bytes) -> bool:
    """Return whether an answer refuses: the name may exist in the silent network alone."""
    reply = dns.parse(answer)
    return reply is None or reply.code != _NO_ERROR


def is_local(name: str) -> bool:
    """Return whether a name means something in one network only (RFC 6761, 6762, 6303, 8375)."""
    name = name.rstrip(".")
    if "." not in name or name.endswith((".in-addr.arpa", ".ip6.arpa")):
        return True
    return any(name == each or name.endswith(f".{each}") for each in _LOCAL)
