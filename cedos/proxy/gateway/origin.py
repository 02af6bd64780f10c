"""Connections to origins: look up the name, then race its addresses for a connection (RFC 8305).

Rules for the gateway's destinations. They judge addresses, so a name is looked up first.
"""

import asyncio
import errno
import os
import socket
import threading
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from http import HTTPStatus
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address, ip_network
from itertools import chain, zip_longest
from typing import Any, Final
from weakref import WeakValueDictionary

from cedos.global_unicast import IPNetwork, is_global, is_within, meanings
from cedos.kernel.policy_routing import DELIVERED_HERE, RTN_BROADCAST, route_type
from cedos.kernel.process_limits import OUT_OF_FILES
from cedos.model import Address
from cedos.proxy.http import RefusedError

_STAGGER_S: Final = 0.25
_MOST_LOOKUPS: Final = 64
_MOST_LOOKUPS_EACH: Final = 32
# Who asks, of an asker's users (`OpenStream.user`): each leaves as many look-ups, and as many attempts
# beside each connection's first, to one more.
asking_user: Final[ContextVar[int]] = ContextVar("asking_user", default=0)
# The most addresses of a name that are considered. A DNS answer has room for thousands.
MOST_ADDRESSES: Final = 32
# The most attempts of one asker at once, the first one of each connection not counted.
MOST_SECOND_ATTEMPTS: Final = 64
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}
_LOCAL: Final = tuple(map(ip_network, ("0.0.0.0/8", "127.0.0.0/8", "::/127")))
_LINK: Final = (IPv4Network("169.254.0.0/16"), IPv6Network("fe80::/10"))
# Addresses at which clouds answer their own hosts. Azure's is public, the others are private.
_CLOUDS: Final[tuple[IPNetwork, ...]] = tuple(
    map(
        ip_network,
        ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::254/128",
         "fd20:ce::254/128"),
    )
)  # fmt: skip
# Networks that only an `inside` network of the same or a smaller size opens.
HIDDEN: Final = (*_LINK, *_CLOUDS)
# Ports that attackers use a gateway for: to try passwords, and to send mail.
GUARDED_PORTS: Final = {22: "SSH", 25: "mail between servers"}


class DestinationRules:
    """Destinations that the gateway may connect to.

    - This program's `own_ports` on this host and `denied` networks are never allowed.
    - Addresses that the kernel delivers to this host itself are allowed if `local`.
    - Link-local addresses, and those where clouds keep their hosts' secrets (`HIDDEN`), are allowed only
      by an `inside` network that lies within these.
    - Other addresses that are not global unicast are allowed if an `inside` network contains them.
    - Ports 22 and 25 of an allowed address are allowed if they are among the `ports`.
    """

    def __init__(
        self,
        own_ports: Container[int] = (),  # asked at each check: they may still come
        denied: Sequence[IPNetwork] = (),
        *,
        inside: Sequence[IPNetwork] = (),
        ports: Iterable[int] = (),
        local: bool = False,
    ) -> None:
        self._own_ports = own_ports
        self._inside = inside
        self._opened = [each for each in inside if _is_part(each, HIDDEN)]
        self._ports = frozenset(ports)
        self._denied = denied
        self._local = local

    def check(self, text: str, port: int) -> None:
        """Refuse (403) an address, IPv4 or IPv6 as text, that the gateway must not connect to."""
        # An IPv6 address may contain an IPv4 one (mapped, translated): all that it can mean must be
        # allowed.
        for address in meanings(text):
            self._check(address, port)
        if port in GUARDED_PORTS and port not in self._ports:
            raise _denial(f"this gateway does not connect to port {port} ({GUARDED_PORTS[port]})")

    def _check(self, address: Address, port: int) -> None:
        if address.is_multicast or address == IPv4Address("255.255.255.255"):
            raise _denial(f"{address} is not one host's address")
        if is_within(address, self._denied):
            raise _denial(f"this gateway does not connect to {address}")
        try:
            kind = route_type(address)
        except OSError as error:
            raise _failure(str(address), port, error) from None
        if kind == RTN_BROADCAST:
            raise _denial(f"{address} is not one host's address")
        here = is_within(address, _LOCAL) or kind in DELIVERED_HERE
        if here and port in self._own_ports:
            raise _denial(f"{address} port {port} leads back here", "proxy_loop_detected")
        if here and self._local:
            return
        if here:
            raise _denial(f"{address} is an address of the gateway's own host")
        if is_within(address, HIDDEN) and not is_within(address, self._opened):
            what = (
                "on the gateway's own link"
                if is_within(address, _LINK)
                else "a cloud's, for its hosts"
            )
            raise _denial(f"{address} is {what}")
        if not is_global(address) and not is_within(address, self._inside):
            raise _denial(f"{address} is no public address, and this gateway keeps to those")


def _is_part(network: IPNetwork, of: Iterable[IPNetwork]) -> bool:
    return any(
        network.prefixlen >= each.prefixlen and is_within(network.network_address, [each])
        for each in of
    )


def _denial(details: str, kind: str = "destination_ip_prohibited") -> RefusedError:
    return RefusedError(HTTPStatus.FORBIDDEN, kind, details)


class Origins:
    """A connector to origins; `timeout_s` is the time limit of look-up and connection together."""

    def __init__(self, destinations: DestinationRules, timeout_s: float = 10.0) -> None:
        self._destinations = destinations
        self._timeout_s = timeout_s
        self._running: Counter[Hashable] = Counter()  # look-ups, by asker
        self._of_user: Counter[tuple[Hashable, int]] = Counter()
        self._freed = asyncio.Event()  # set, and replaced, when a look-up ends
        # Held by a user's look-up that waits: the user's others wait behind it.
        self._first: WeakValueDictionary[tuple[Hashable, int], asyncio.Lock]
        self._first = WeakValueDictionary()
        self._looking_up: set[asyncio.Task[list[Any]]] = set()
        self._second_attempts: Counter[Hashable] = Counter()

    async def connect(self, host: str, port: int, asker: Hashable = None) -> socket.socket:
        """Return a connected non-blocking socket. RefusedError: 403, 502 to 504.

        `asker`: whose connection it is. Each asker has its own limit of simultaneous look-ups, so that
        names that no resolver answers delay only that asker's own look-ups.
        """
        what = f"{host} was not found in time"
        try:
            async with asyncio.timeout(self._timeout_s):
                addresses = self._permitted_addresses(await self.look_up(host, asker), port)
                what = f"{host} port {port} did not answer within {self._timeout_s:g} s"
                return await self._race(host, addresses, port, asker)
        except TimeoutError:
            kind = "connection_timeout" if "did not answer" in what else "dns_timeout"
            raise RefusedError(HTTPStatus.GATEWAY_TIMEOUT, kind, what) from None

    async def addresses(self, host: str, port: int, asker: Hashable = None) -> list[str]:
        """Return the permitted addresses of a host's port, in the resolver's order. RefusedError."""
        return self._permitted_addresses(await self.look_up(host, asker), port)

    async def look_up(self, host: str, asker: Hashable) -> list[str]:
        """Return the addresses of a host, permitted or not. RefusedError."""
        with suppress(ValueError):
            return [str(ip_address(host))]
        try:
            found = await self._answer(host, asker)
        except RuntimeError:  # no thread can be started
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "proxy_internal_error", "too many look-ups"
            ) from None
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or "not a name"
            raise RefusedError(
                HTTPStatus.BAD_GATEWAY, "dns_error", f"{host} was not found: {why}"
            ) from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:MOST_ADDRESSES]

    async def _answer(self, host: str, asker: Hashable) -> list[Any]:
        """Return the resolver's answer.

        The C library's look-up cannot be cancelled: its thread stays for half a minute. So a look-up
        counts against the limits until its answer comes, even if its caller waits no longer.
        No asker takes more than half of what is free, nor an asker's user of what the asker has, so
        that there is room for one more.
        """
        user, most = (asker, asking_user.get()), _MOST_LOOKUPS_EACH
        async with self._first.setdefault(user, asyncio.Lock()):
            while (
                self._running[asker] >= _MOST_LOOKUPS - self._running.total()
                or self._of_user[user] >= most - self._running[asker]
            ):
                await self._freed.wait()
            self._running[asker] += 1
            self._of_user[user] += 1
        answering = asyncio.get_running_loop().create_task(_getaddrinfo(host))

        def on_done(done: asyncio.Task[list[Any]]) -> None:
            self._looking_up.discard(done)
            self._running -= Counter((asker,))
            self._of_user -= Counter((user,))
            self._freed.set()
            self._freed = asyncio.Event()
            if not done.cancelled():
                done.exception()  # for a caller that waits no more

        self._looking_up.add(answering)
        answering.add_done_callback(on_done)
        return await asyncio.shield(answering)

    def _permitted_addresses(self, addresses: list[str], port: int) -> list[str]:
        """Return the permitted addresses in the resolver's order, IPv4 and IPv6 in turn."""
        permitted, refused = [], None
        for address in addresses:
            try:
                self._destinations.check(address, port)
                permitted.append(address)
            except RefusedError as error:
                refused = error
        if not permitted and refused is not None:
            raise refused
        # Interleave the families, beginning with that of the first address (RFC 8305, 4).
        first = [address for address in permitted if (":" in address) == (":" in permitted[0])]
        others = [address for address in permitted if address not in first]
        return [each for each in chain.from_iterable(zip_longest(first, others)) if each]

    async def _race(
        self, host: str, addresses: list[str], port: int, asker: Hashable
    ) -> socket.socket:
        """Connect to the address that answers first."""
        trying: set[asyncio.Task[socket.socket]] = set()
        waiting = list(reversed(addresses))
        error = OSError(errno.EADDRNOTAVAIL, "there is no address")
        connected: socket.socket | None = None
        try:
            while waiting or trying:
                # Begin the next attempt, and give it a head start before another one (RFC 8305, 5).
                if waiting and (not trying or self._may_try_more(asker)):
                    trying.add(self._attempt(waiting.pop(), port, asker, second=bool(trying)))
                # Wait for an attempt to end, or until it is time for the next one.
                stagger_s = _STAGGER_S if waiting else None
                done, _ = await asyncio.wait(
                    trying, timeout=stagger_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    trying.discard(task)
                    if isinstance(failed := task.exception(), OSError):
                        error = failed
                    elif connected is None:
                        connected = task.result()
                    else:
                        task.result().close()
                if connected is not None:
                    return connected
        finally:
            # Close the connections of attempts that came too late.
            for task in trying:
                task.cancel()
            for late in await asyncio.gather(*trying, return_exceptions=True):
                if isinstance(late, socket.socket):
                    late.close()
        raise _failure(host, port, error)

    def _attempt(
        self, address: str, port: int, asker: Hashable, *, second: bool
    ) -> asyncio.Task[socket.socket]:
        attempt = asyncio.get_running_loop().create_task(self._connect_one(address, port))
        if second:
            whose: tuple[Hashable, ...] = (asker, (asker, asking_user.get()))
            self._second_attempts.update(whose)
            attempt.add_done_callback(lambda _: self._on_second_ended(whose))
        return attempt

    def _may_try_more(self, asker: Hashable) -> bool:
        """Tell whether one attempt more of this user leaves as many to one user more."""
        attempts = self._second_attempts
        return attempts[asker] + attempts[asker, asking_user.get()] < MOST_SECOND_ATTEMPTS

    def _on_second_ended(self, whose: tuple[Hashable, ...]) -> None:
        for each in whose:
            self._second_attempts[each] -= 1
            if not self._second_attempts[each]:
                del self._second_attempts[each]

    async def _connect_one(self, address: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        trying = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            trying.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(trying)
            code = trying.connect_ex((address, port))
            if code == errno.EINPROGRESS:
                await _writable(trying)
                code = trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
        except BaseException:
            trying.close()
            raise
        return trying


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel find out that a silent peer is gone, if it can."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


async def _writable(one: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(one, tell)
    try:
        await ready
    finally:
        loop.remove_writer(one)


def _failure(host: str, port: int, error: OSError) -> RefusedError:
    kinds = {
        errno.ECONNREFUSED: "connection_refused",
        errno.ETIMEDOUT: "connection_timeout",
        errno.EHOSTUNREACH: "destination_ip_unroutable",
        errno.ENETUNREACH: "destination_ip_unroutable",
        **dict.fromkeys(OUT_OF_FILES, "connection_limit_reached"),
    }
    status = HTTPStatus.BAD_GATEWAY
    if error.errno == errno.ETIMEDOUT:
        status = HTTPStatus.GATEWAY_TIMEOUT
    elif error.errno in OUT_OF_FILES:
        status = HTTPStatus.SERVICE_UNAVAILABLE
    return RefusedError(
        status,
        kinds.get(error.errno or 0, "connection_terminated"),
        f"{host} port {port}: {error.strerror or error}",
    )


async def _getaddrinfo(host: str) -> list[Any]:
    """Return the resolver's answer, by a daemon thread: the process can end without it."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[list[Any]] = loop.create_future()

    def tell(result: list[Any] | None, error: Exception | None) -> None:
        if answered.done():
            return
        if error is not None:
            answered.set_exception(error)
        else:
            answered.set_result(result or [])

    def resolve() -> None:
        result: list[Any] | None = None
        failed: Exception | None = None
        try:
            result = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            failed = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=resolve, name=f"resolve {host}", daemon=True).start()
    return await answered
