"""A resolver on loopback. It asks the gateway, and for nearby names this host's own resolvers."""

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Final
from weakref import WeakValueDictionary

from cedos.errors import HostError
from cedos.host.monitor.dns_message import parse
from cedos.host.monitor.resolvers import search_domains
from cedos.kernel.process_limits import OUT_OF_FILES
from cedos.kernel.socket_owners import UNKNOWN, SocketOwners
from cedos.limits import UsersTable
from cedos.logs import get_logger
from cedos.model import Address
from cedos.proxy.local.direct import LocalNames, RuleBook, is_near
from cedos.proxy.local.gateway_link import GatewayUnreachableError
from cedos.proxy.local.gateway_links import GatewayLinks
from cedos.proxy.names import (
    ADDRESS_KINDS,
    NO_SUCH_NAME,
    SERVER_FAILED,
    AskedName,
    Endpoint,
    NobodyAnswersError,
    Resolver,
    answered_here,
    answers,
    error_of,
    host_servers,
    read,
    read_message,
    servfail,
    truncate,
)
from cedos.proxy.own_tasks import OwnTasks

_AT_ONCE: Final = 64
_MOST, _MOST_CONNECTIONS = 512, 64
# Of one user, who may count twice: sockets that are closed already have no user.
_MOST_OF_USER, _MOST_CONNECTIONS_OF_USER = 240, 24
# One user's questions at the gateway at once. It allows this host 64, and may look up for twice as long
# as this host waits.
MOST_FAR_OF_USER: Final = 15
_IDLE_S: Final = 10.0
_FULL_PAUSE_S: Final = 0.2
_LARGEST: Final = 65_535
_LONGEST_QUESTION: Final = 4_096  # by TCP; a longer one is no DNS question
# If any port will do, so many are tried: one has to be free for UDP and for TCP.
_PORTS: Final = 8
# The domains of reverse look-ups of private and link-local addresses (RFC 6303).
_NEAR_REVERSE: Final = (
    *("10.in-addr.arpa", "127.in-addr.arpa", "168.192.in-addr.arpa", "254.169.in-addr.arpa"),
    *(f"{number}.172.in-addr.arpa" for number in range(16, 32)),
    *("c.f.ip6.arpa", "d.f.ip6.arpa", *(f"{each}.e.f.ip6.arpa" for each in "89ab")),
)

_MOST_KNOWN: Final = 2_048

_log = get_logger(__name__)


class KnownNames:
    """Names that users' programs looked up, by address, for `cedos status`: 2,048 addresses."""

    def __init__(self) -> None:
        self._names: UsersTable[str, str] = UsersTable(_MOST_KNOWN)

    def learn(self, name: str, addresses: Iterable[Address], user: int) -> None:
        for address in addresses:
            self._names.put(str(address), name, user)

    def name_of(self, address: str) -> str | None:
        return self._names.get(address)


class NameStub:
    """A resolver: `open`, then it serves until `close`."""

    def __init__(
        self,
        link: GatewayLinks,
        *,
        # Whether to ask this host's own resolvers while the gateway is out of reach.
        fails_open: bool,
        # Domains that are looked up by this host's resolvers, as a VPN's are.
        near: Sequence[str] = (),
        # Tells whether this host has a VPN, whose resolver may know names that the gateway does not
        # know.
        tunnelled: Callable[[], bool] = lambda: False,
        servers: Callable[[], Sequence[Endpoint]] = host_servers,  # returns this host's resolvers
        # The user's rules; names under a rule are looked up by this host's resolvers, since their
        # connections go direct.
        rules: RuleBook | None = None,
        known: KnownNames | None = None,  # learns the answers
        names: LocalNames | None = None,  # the names that this host knows itself
    ) -> None:
        self._known, self._names = known, names or LocalNames()
        self._link, self._fails_open, self._tunnelled = link, fails_open, tunnelled
        self._near = frozenset(each.strip(".").lower() for each in near)
        self._servers = servers
        self._rules = rules or RuleBook()
        self._local = Resolver(self._other_resolvers)
        self._sockets: list[tuple[socket.socket, socket.socket]] = []
        self._tasks = OwnTasks(_log, "a look-up failed")
        self._owners = SocketOwners()
        self._users: Counter[int] = Counter()  # questions by UDP that wait
        self._connections: Counter[int] = Counter()
        self._shares: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        # By user, and what is asked.
        self._asked_here: Counter[tuple[int, str, int]] = Counter()

    @property
    def addresses(self) -> list[Endpoint]:
        return [udp.getsockname()[:2] for udp, _ in self._sockets]

    def open(self, address: str, port: int, *, optional: bool = False) -> None:
        """Listen by UDP and TCP; port 0: any. HostError: it cannot.

        `optional`: do nothing if the host lacks the address.
        """
        try:
            udp, tcp = _bound(address, port)
        except OSError as error:
            if optional and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                return
            why = os.strerror(error.errno) if error.errno else str(error)
            raise HostError(
                f"cannot listen at {address} port {port}: {why}; a port that is free would be right"
            ) from error
        self._sockets.append((udp, tcp))
        loop = asyncio.get_running_loop()
        loop.add_reader(udp, self._readable, udp)
        loop.add_reader(tcp, self._acceptable, tcp)

    async def close(self) -> None:
        loop = asyncio.get_running_loop()
        for pair in self._sockets:
            for one in pair:
                loop.remove_reader(one)
                one.close()
        self._sockets.clear()
        await self._tasks.end()
        self._owners.close()

    def take(self, message: bytes, user: int, say: Callable[[bytes], object]) -> None:
        """Answer a user's question by UDP through `say`, unless the user, or all, have too many."""
        question = read(message)
        if question is None or self._users.total() >= _MOST or self._users[user] >= _MOST_OF_USER:
            return
        self._users[user] += 1
        asking = self._tasks.begin(self._say(message, question, user, say))
        asking.add_done_callback(partial(_give_back, self._users, user))

    async def answer(self, message: bytes, question: AskedName, user: int = UNKNOWN.user) -> bytes:
        """Return a resolver's answer to a user's question, or SERVFAIL if none answers."""
        found = await self._answer(message, question, user)
        if self._known is not None and (reply := parse(found)) is not None:
            self._known.learn(question.name, reply.addresses, user)
        return found

    async def _answer(self, message: bytes, question: AskedName, user: int) -> bytes:
        # Names that this host knows itself are answered at once.
        if question.kind in ADDRESS_KINDS and (own := self._names.find(question.name)):
            return answered_here(message, question, own)
        # Names nearby, and those under a rule, are looked up by this host's resolvers.
        if self._is_near(question.name):
            return await self._ask_here(message, question, user)
        if self._fails_open and self._rules.names(question.name):
            return await self._answer_under_rule(message, question, user)
        # All others: the gateway, then this host's resolvers if the gateway fails or knows no such name.
        share = self._shares.setdefault(user, asyncio.Semaphore(MOST_FAR_OF_USER))
        try:
            async with share:
                found = await self._link.ask(message)
        except GatewayUnreachableError as error:
            _log.debug("name looked up here", why=str(error))
            found = servfail(message, question)
        if not answers(found, question, question.number):
            found = servfail(message, question)
        code = error_of(found)
        if self._fails_open and (
            code == SERVER_FAILED or (code == NO_SUCH_NAME and self._tunnelled())
        ):
            here = await self._ask_here(message, question, user)
            # If the VPN's resolver does not know the name either, the gateway's answer stands.
            return found if code == NO_SUCH_NAME and error_of(here) else here
        # An alias of a ruled name (or what does not tell that) is asked for here again: so the daemon
        # hears of its addresses, and leads them.
        if self._fails_open and self._rules.stands:
            reply = parse(found)
            if reply is None or any(map(self._rules.names, reply.aliases)):
                return await self._answer_under_rule(message, question, user)
        return found

    async def _answer_under_rule(self, message: bytes, question: AskedName, user: int) -> bytes:
        """Ask this host's own resolvers, and put what the answer leads to under the name's rule.

        Where that cannot be read, or is too much, the program gets a failure.
        """
        found = await self._ask_here(message, question, user)
        if (reply := parse(found)) is None:
            return servfail(message, question)
        for each in reply.names:
            self._rules.learn(each.name, (*each.addresses, *each.aliases), user)
        return found

    async def _ask_here(self, message: bytes, question: AskedName, user: int) -> bytes:
        """Ask this host's own resolvers for a user.

        One on loopback may itself be asking this stub (systemd-resolved, say): fail when its user asks
        the same once more, to end the circle.
        """
        what = user, question.name, question.kind
        if self._asked_here[what] and all(map(_is_loopback, self._other_resolvers())):
            return servfail(message, question)
        self._asked_here[what] += 1
        try:
            return await self._local.ask(message, question)
        except NobodyAnswersError:
            return servfail(message, question)
        finally:
            self._asked_here[what] -= 1
            if not self._asked_here[what]:
                del self._asked_here[what]

    def _other_resolvers(self) -> list[Endpoint]:
        """Return this host's resolvers without this one."""
        own = set(self.addresses)
        return [each for each in self._servers() if each not in own]

    def _is_near(self, name: str) -> bool:
        return (
            is_near(name)
            or self._link.leads_to(name)
            or _is_within(name, self._near)
            or _is_within(name, _NEAR_REVERSE)
            # Search domains come from the network, and a hostile one may name any domain. So they count
            # only where names may be looked up outside the gateway anyway.
            or (self._fails_open and _is_within(name, search_domains()))
        )

    def _readable(self, udp: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                message, sender = udp.recvfrom(_LARGEST)
            except OSError:
                return
            user = self._owners.user_of(socket.IPPROTO_UDP, sender, udp)
            self.take(message, user, partial(_send, udp, sender))

    async def _say(
        self, message: bytes, question: AskedName, user: int, say: Callable[[bytes], object]
    ) -> None:
        answer = await self.answer(message, question, user)
        say(answer if len(answer) <= question.takes_bytes else truncate(answer, question))

    def _acceptable(self, tcp: socket.socket) -> None:
        try:
            connection, program = tcp.accept()
        except OSError as error:
            if error.errno in OUT_OF_FILES:
                # No files are left. Pause, or the loop would call again at once.
                loop = asyncio.get_running_loop()
                loop.remove_reader(tcp)
                loop.call_later(_FULL_PAUSE_S, self._go_on, tcp)
            return
        user = self._owners.user_of(socket.IPPROTO_TCP, program, connection)
        if (
            self._connections.total() >= _MOST_CONNECTIONS
            or self._connections[user] >= _MOST_CONNECTIONS_OF_USER
        ):
            connection.close()
            return
        connection.setblocking(False)
        self._connections[user] += 1
        serving = self._tasks.begin(self._serve(connection, user))
        serving.add_done_callback(partial(_give_back, self._connections, user))

    def _go_on(self, tcp: socket.socket) -> None:
        if tcp.fileno() >= 0:
            asyncio.get_running_loop().add_reader(tcp, self._acceptable, tcp)

    async def _serve(self, connection: socket.socket, user: int) -> None:
        loop = asyncio.get_running_loop()
        with connection, suppress(OSError, TimeoutError):
            while True:
                async with asyncio.timeout(_IDLE_S):
                    message = await read_message(connection, _LONGEST_QUESTION)
                question = read(message) if message else None
                if message is None or question is None:
                    return
                answer = await self.answer(message, question, user)
                async with asyncio.timeout(_IDLE_S):
                    await loop.sock_sendall(connection, len(answer).to_bytes(2) + answer)


def _send(udp: socket.socket, to: Endpoint, answer: bytes) -> None:
    with suppress(OSError):
        udp.sendto(answer, to)


def _give_back(places: Counter[int], user: int, _task: asyncio.Task[None]) -> None:
    places[user] -= 1
    if not places[user]:
        del places[user]


def _is_within(name: str, domains: Sequence[str] | frozenset[str]) -> bool:
    name = name.strip(".")
    return any(name == each or name.endswith(f".{each}") for each in domains)


def _is_loopback(server: Endpoint) -> bool:
    return ip_address(server[0].partition("%")[0]).is_loopback


def _bound(address: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a TCP socket with the same port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for left in reversed(range(1 if port else _PORTS)):
        udp = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            udp.bind((address, port))
            tcp = socket.create_server((address, udp.getsockname()[1]), family=family)
        except OSError:
            udp.close()
            if not left:
                raise
        else:
            tcp.setblocking(False)
            return udp, tcp
    raise AssertionError("the last one raises")
