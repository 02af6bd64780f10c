"""Attempts to get a TCP connection over one interface, repeated until one succeeds."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, Protocol

from cedos.model import NetworkKind
from cedos.session.io.driver import Driver
from cedos.session.io.links import Egress
from cedos.session.io.path import QUIET_S, SILENCE_S, prepare

# An address (IPv4 or IPv6, no name) and a port.
Endpoint = tuple[str, int]

# The pauses between attempts. The kernel repeats an unanswered SYN only after a second, and then ever
# more rarely, so a new connection is begun beside it. The first attempts of an interface are frequent,
# because one that has just come up takes a moment to carry anything.
_PAUSES_S: Final = (0.1, 0.2, 0.4, *((1.0,) * 60), *((3.0,) * 60))
_LAST_PAUSE_S: Final = 10.0
_EACH_SECOND: Final = 3  # the number of the first attempt with a pause of a second
_AT_ONCE: Final = 3  # the most attempts of one interface: a round trip may be longer than a pause
_RETRY_S: Final = 0.010
# The wait before the first attempt over a new link. The far end may not hear at once, and the
# kernel repeats its question for the hardware address only after a second.
_SETTLE_S: Final = 0.020
# So many bytes may be sent in vain, over connections that were lost before the session heard of their
# arrival. Then a pause precedes each connection. One that carries nothing sends less than the least.
_IN_VAIN_BYTES: Final = 4 << 20
_LEAST_IN_VAIN_BYTES: Final = 1 << 14
_FIRST_IN_VAIN_S: Final = 0.5
_LONGEST_IN_VAIN_S: Final = 30.0
_MOST_NETWORKS: Final = 8
_NEXT_NETWORK_S: Final = 5.0  # the longest rest of a further network, from the last loss on


class SentInVain:
    """The account of what lost connections sent beyond what a session has heard to have arrived.

    An attacker on the way who resets connections, and takes what they send, could have the session send
    all its data again over each new connection.
    """

    def __init__(self) -> None:
        self._bytes, self._arrived_bytes, self._pause_s = 0, 0, _FIRST_IN_VAIN_S

    def on_lost(self, in_vain_bytes: int, arrived_bytes: int) -> float:
        """Take what a lost connection sent in vain; return for how long to pause, in seconds.

        `arrived_bytes`: what arrived over all of the session's connections, since it began.
        """
        arrived = arrived_bytes - self._arrived_bytes
        self._bytes, self._arrived_bytes = max(self._bytes - arrived, 0), arrived_bytes
        if not self._bytes:
            self._pause_s = _FIRST_IN_VAIN_S
        if in_vain_bytes < _LEAST_IN_VAIN_BYTES:
            return 0.0
        self._bytes += in_vain_bytes
        if self._bytes <= _IN_VAIN_BYTES:
            return 0.0
        pause_s, self._pause_s = self._pause_s, min(2.0 * self._pause_s, _LONGEST_IN_VAIN_S)
        return pause_s


class RestingNetworks:
    """The networks of which some rest (`SentInVain`): by the peer's address at an accepting end.

    At a dialling end those of one interface, by its addresses. Who is on one of them may have any number
    of addresses come and go. So a further network gets the account of the one that rests least. It may be
    an honest one, where the session goes on: it does not rest for as long.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, SentInVain] = {}
        self._until_s: dict[str, float] = {}
        self._lost_s = 0.0  # when a loss last made a network rest

    def until_s(self, network: str) -> float:
        """Return until when a network rests: it has no new connection before, or one without data."""
        if network not in self._accounts:
            account, until_s = SentInVain(), 0.0
            if len(self._accounts) >= _MOST_NETWORKS:
                least = min(self._until_s, key=self._until_s.__getitem__)
                account, until_s = self._accounts.pop(least), self._until_s.pop(least)
                until_s = min(until_s, self._lost_s + _NEXT_NETWORK_S)
            self._accounts[network], self._until_s[network] = account, until_s
        return self._until_s[network]

    def on_lost(self, network: str, in_vain_bytes: int, arrived_bytes: int, now: float) -> None:
        """Take what a lost connection sent in vain; see `SentInVain.on_lost`."""
        until_s = self.until_s(network)
        pause_s = self._accounts[network].on_lost(in_vain_bytes, arrived_bytes)
        self._until_s[network] = max(until_s, now + pause_s)
        if pause_s:
            self._lost_s = now


@dataclass(slots=True)
class Connected:
    """A TCP connection that has carried nothing yet; `began_s`: when it was begun."""

    egress: Egress
    endpoint: Endpoint
    connection: socket.socket
    began_s: float


class Caller(Protocol):
    def is_wanted(self, egress: str) -> bool:
        """Return whether a connection over the egress of this name is still needed."""

    def on_connected(self, made: Connected) -> None:
        """Take a connection; all other attempts over its interface have ended."""

    def attempt_failed(self, why: str, code: int) -> None:
        """Note a failure; `code` is an errno."""

    def on_unanswered(self) -> None:
        """Note that several attempts had no answer: the server may have moved."""


class ConnectAttempts:
    """The attempts over one interface to `endpoints`, which are tried in turn.

    After each pause a new attempt begins beside the unanswered ones. The first connection ends the rest.
    `probing`: a connection is tried beside one that is silent, needed or not. `not_before_s`: the server
    asked, over this interface, not to be tried before this; a network may have forged it.
    """

    def __init__(
        self, driver: Driver, caller: Caller, egress: Egress, resting: RestingNetworks
    ) -> None:
        self._driver = driver
        self._caller = caller
        self.egress = egress
        self.endpoints: list[Endpoint] = []
        self.probing = False
        self.not_before_s = 0.0
        self._resting, self._network = resting, " ".join(sorted(egress.addresses))
        self._tries: list[Connected] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tried_s = 0.0

    def update(self, egress: Egress, endpoints: list[Endpoint]) -> None:
        self.egress, self.endpoints = egress, endpoints

    @property
    def _idle(self) -> bool:
        return self._timer is None and not self._tries

    def begin(self) -> None:
        """Begin an attempt, unless one is planned already."""
        if self._timer is not None or not self.endpoints:
            return
        now = self._driver.now()
        settled_s = self.egress.came_s + _SETTLE_S
        not_before_s = max(self.not_before_s, settled_s, self._resting.until_s(self._network))
        if now < not_before_s:
            self._plan(not_before_s - now)
            return
        # The oldest try has waited longest for nothing: give it up.
        if len(self._tries) >= _AT_ONCE:
            self._drop(self._tries[0])
        endpoint = self.endpoints[self._count % len(self.endpoints)]
        pause_s = _PAUSES_S[self._count] if self._count < len(_PAUSES_S) else _LAST_PAUSE_S
        self._count += 1
        self._tried_s = now
        # Now and then, ask for the server's addresses anew: it may have moved.
        if self._count % 8 == 4:
            self._caller.on_unanswered()
        self._plan(pause_s)
        self._dial(endpoint)

    def probe(self) -> None:
        """Try once a second, beside a connection that is silent."""
        self.probing = True
        self._count = _EACH_SECOND
        self.begin()

    def reset(self) -> None:
        """Make the next attempts frequent again: the connection was lost."""
        if self._idle:
            self._count = 0

    def on_lost(self, in_vain_bytes: int, arrived_bytes: int) -> None:
        """Pause if lost connections have sent much in vain (`SentInVain`)."""
        now = self._driver.now()
        self._resting.on_lost(self._network, in_vain_bytes, arrived_bytes, now)

    def retry_now(self) -> None:
        """Try again at once: something has changed.

        An interface that is up may drop everything for a second more, until the kernel has noticed
        its carrier; the kernel reports that.
        """
        if self._timer is not None and self._driver.now() - self._tried_s > _RETRY_S:
            self._timer.cancel()
            self._timer = None
            self._count = 0

    def on_success(self) -> None:
        self._count, self.probing = 0, False
        self.end()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for attempt in list(self._tries):
            self._drop(attempt)

    def _plan(self, pause_s: float) -> None:
        def again() -> None:
            self._timer = None
            if self.probing or self._caller.is_wanted(self.egress.name):
                self.begin()

        self._timer = self._driver.loop.call_later(pause_s, again)

    def _dial(self, endpoint: Endpoint) -> None:
        family = socket.AF_INET if ip_address(endpoint[0]).version == 4 else socket.AF_INET6
        connection = self._driver.host.new_socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        attempt = Connected(self.egress, endpoint, connection, self._tried_s)
        try:
            prepare(
                connection,
                self.egress.interface,
                self.egress.source,
                asks_after_s=asks_after_s(self.egress),
            )
            # The socket does not block: EINPROGRESS means that the SYN is on its way.
            code = connection.connect_ex(endpoint)
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._on_failure(attempt, code)
            return
        self._tries.append(attempt)
        # A connecting socket becomes writable once it is connected, or has failed (connect(2)).
        self._driver.loop.add_writer(connection.fileno(), lambda: self._on_answer(attempt))

    def _on_answer(self, attempt: Connected) -> None:
        connection = attempt.connection
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self._driver.loop.remove_writer(connection.fileno())
        self._tries.remove(attempt)
        if code:
            self._on_failure(attempt, code)
            return
        # The first connection wins.
        for other in list(self._tries):
            self._drop(other)
        self._caller.on_connected(attempt)

    def _on_failure(self, attempt: Connected, code: int) -> None:
        attempt.connection.close()
        over = f"{attempt.endpoint[0]} over {attempt.egress.name}"
        self._caller.attempt_failed(f"{over}: {os.strerror(code)}", code)

    def _drop(self, attempt: Connected) -> None:
        self._tries.remove(attempt)
        self._driver.loop.remove_writer(attempt.connection.fileno())
        attempt.connection.close()


def asks_after_s(egress: Egress) -> int:
    """Return the seconds of silence after which the kernel asks for the peer.

    Over a phone 16 questions in four minutes kept its radio awake while Wi-Fi carried everything.
    """
    return QUIET_S if egress.metered or egress.kind is NetworkKind.CELLULAR else SILENCE_S


# For each egress by name, the endpoints that can be reached over it.
Usable = Mapping[str, tuple[Egress, list[Endpoint]]]


def follow(
    attempts: dict[str, ConnectAttempts], usable: Usable, make: Callable[[Egress], ConnectAttempts]
) -> None:
    """Keep attempts for each usable egress alone; make new ones where its addresses changed."""
    for name in [name for name in attempts if name not in usable]:
        attempts.pop(name).end()
    for name, (egress, endpoints) in usable.items():
        known = attempts.get(name)
        if known is None or known.egress.addresses != egress.addresses:
            if known is not None:
                known.end()
            known = attempts[name] = make(egress)
        known.update(egress, endpoints)
