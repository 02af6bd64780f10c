"""The sockets of one association: they send its packets to any host's port, and receive the answers.

They take packets only from addresses and ports that the client sent to (RFC 4787, section 5: address and
port-dependent filtering). So no stranger's packets reach the client, and a client that causes floods of
answers floods only itself.

The gateway's associations: how many there may be, for whom, and when they end.
"""

import asyncio
import errno
import socket
import struct
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import Any, Final
from weakref import WeakValueDictionary

from cedos.logs import BoundLogger, get_logger
from cedos.proxy.gateway.origin import Origins, asking_user
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.frames import Obstacle, ProgramPacket
from cedos.session.io.driver import current

# The lifetime of an association without outgoing packets (RFC 4787, REQ-5: five minutes, never
# below two).
IDLE_S: Final = 300.0
MOST_PEERS: Final = 1_024
MOST_NAMES: Final = 64
_MOST_WAITING: Final = 16  # packets for a name that is being looked up
# Bytes of an association's packets that wait for look-ups.
MOST_WAITING_BYTES: Final = 1 << 16
# The most remembered peers and names of all associations, each of 300 to 700 bytes.
MOST_REMEMBERED: Final = 131_072
MOST_REMEMBERED_OF_CLIENT: Final = 16_384
_LOOK_UP_COUNTS: Final = 8  # a look-up takes the memory of so many of them
_LOOK_UP_S: Final = 10.0
_NAME_S: Final = 60.0
_REFUSED_S: Final = 10.0
_AT_ONCE: Final = 64
_LARGEST: Final = 65_535
_RECEIVE_BYTES: Final = 1 << 18
# Level and number of IP_RECVERR and IPV6_RECVERR: of the socket option and of its control messages.
_TELL_ERRORS: Final = {
    socket.AF_INET: (socket.IPPROTO_IP, 11),
    socket.AF_INET6: (socket.IPPROTO_IPV6, 25),
}
_FROM_ERRORS: Final = 0x2000  # MSG_ERRQUEUE
# The first fields of struct sock_extended_err: the error's number, and its origin.
_ERROR: Final = struct.Struct("=IB")
_ICMP_ORIGINS: Final = (2, 3)  # SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6
_Peer = tuple[str, int]
# Returns the permitted addresses of a host's port. RefusedError: there are none.
Permitted = Callable[[str, int], Awaitable[list[str]]]
MOST: Final = 4_096
MOST_PER_CLIENT: Final = 512
_CHECK_S: Final = 15.0
_log: Final[BoundLogger] = get_logger(__name__)


class RememberedPeers:
    """The number of peers and names that the associations of all clients remember."""

    def __init__(
        self, most: int = MOST_REMEMBERED, most_of_one: int = MOST_REMEMBERED_OF_CLIENT
    ) -> None:
        self.most, self.most_of_one = most, most_of_one
        self.count = 0
        self._clients: WeakValueDictionary[bytes, RememberedOfClient] = WeakValueDictionary()

    def share(self, client: bytes, user: int = 0) -> "RememberedOfUser":
        """Return the number of a client's user; all the user's associations count in the same one."""
        of_client = self._clients.get(client)
        if of_client is None:
            of_client = self._clients[client] = RememberedOfClient(self)
        of_user = of_client.users.get(user)
        if of_user is None:
            of_user = of_client.users[user] = RememberedOfUser(of_client)
        return of_user

    @property
    def most_now(self) -> int:
        """Return how many a client may have: an equal share once all together have too many."""
        equal = self.most // max(len(self._clients), 1)
        return min(self.most_of_one, equal) if self.count >= self.most else self.most_of_one


class RememberedOfClient:
    """The number of peers and names that one client's associations remember, and its users' ones."""

    def __init__(self, all_: RememberedPeers) -> None:
        self.all = all_
        self.count = self.looking_up = 0
        self.users: WeakValueDictionary[int, RememberedOfUser] = WeakValueDictionary()


class RememberedOfUser:
    """The number of peers and names that the associations of one user of a client remember."""

    def __init__(self, client: RememberedOfClient) -> None:
        self._client = client
        self._count = self._looking_up = 0
        # Those that may remember something; the one that was used longest ago is the first.
        self._relays: OrderedDict[PacketRelay, None] = OrderedDict()

    def add(self, more: int) -> None:
        self._count += more
        self._client.count += more
        self._client.all.count += more

    def look_up(self, more: int) -> None:
        """Count `more` look-ups, each as the memory that it takes."""
        more *= _LOOK_UP_COUNTS
        self._looking_up += more
        self._client.looking_up += more
        self._client.count += more
        self._client.all.count += more

    @property
    def may_look_up(self) -> bool:
        """Tell whether one more look-up leaves as many to one user more."""
        return self._client.looking_up + self._looking_up < self._client.all.most_now

    def on_use(self, relay: "PacketRelay") -> None:
        self._relays[relay] = None
        self._relays.move_to_end(relay)

    def on_left(self, relay: "PacketRelay") -> None:
        self._relays.pop(relay, None)

    def make_room(self) -> None:
        """Have the user of the client who remembers most forget what was used longest ago."""
        client = self._client
        while client.count >= client.all.most_now:
            most = max(client.users.values(), key=lambda each: each._count)
            if not most._forget():
                return  # look-ups have it all

    def _forget(self) -> bool:
        while self._relays:
            relay = next(iter(self._relays))
            if relay.forget_oldest():
                return True
            del self._relays[relay]
        return False


class PacketRelay:
    """The packets of one association, until `close`. Made within the event loop.

    Attributes:
        refused: number of packets that may not be sent, or whose name was not found.
        strangers: number of packets from addresses that were not sent to.
        used_s: when a packet was last sent, in the loop's time.
    """

    def __init__(
        self,
        permitted: Permitted,  # returns the addresses of a host's port that packets may be sent to
        # Called with each answer: from which address and port, and its data.
        received: Callable[[str, int, bytes], None],
        # Called with the host and port of an undelivered packet, and the reason.
        undelivered: Callable[[str, int, Obstacle], None],
        # Counts the peers and names that the user's relays remember; None: this relay's alone.
        share: RememberedOfUser | None = None,
    ) -> None:
        self._share = share or RememberedPeers().share(b"")
        self._permitted, self._received = permitted, received
        self._undelivered = undelivered
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[int, socket.socket] = {}
        # By address and port: when a packet was last sent there. Only these may answer.
        self._peers: OrderedDict[_Peer, float] = OrderedDict()
        # By host and port: the address found (None: not permitted), and until when that holds.
        self._found: OrderedDict[_Peer, tuple[str | None, float]] = OrderedDict()
        self._waiting: dict[_Peer, list[bytes]] = {}
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = self.strangers = 0
        self.used_s = self._loop.time()

    def send(self, host: str, port: int, data: bytes) -> None:
        """Send a datagram, or lose it."""
        now = self.used_s = self._loop.time()
        # Fast path: the address was looked up lately.
        found = self._found.get((host, port))
        if found is not None and found[1] > now:
            self._send_to(found[0], port, data)
            return
        # Else the packet waits for a look-up, which the first packet to that host begins.
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            return
        waiting = self._waiting.get((host, port))
        if waiting is not None:
            if len(waiting) < _MOST_WAITING:
                waiting.append(data)
                self._waiting_bytes += len(data)
            return
        if len(self._waiting) < MOST_NAMES and self._share.may_look_up:
            self._share.make_room()
            self._waiting[host, port] = [data]
            self._share.look_up(1)
            self._waiting_bytes += len(data)
            task = self._loop.create_task(self._find(host, port))
            self._tasks.add(task)
            task.add_done_callback(self._on_looked_up)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for one in self._sockets.values():
            self._loop.remove_reader(one)
            one.close()
        self._sockets.clear()
        self._share.add(-len(self._peers) - len(self._found))
        self._share.on_left(self)
        self._peers.clear()
        self._found.clear()

    def forget_oldest(self) -> bool:
        """Forget the oldest peer or name; False: there is none."""
        table: OrderedDict[_Peer, Any] = max(self._found, self._peers, key=len)
        if not table:
            return False
        table.popitem(last=False)
        self._share.add(-1)
        return True

    def _remember(self, table: OrderedDict[_Peer, Any], key: _Peer, value: object) -> None:
        """Remember a peer or a name, even if older ones have to be forgotten for it."""
        self._share.on_use(self)
        if key not in table:
            if len(table) >= MOST_PEERS:
                table.popitem(last=False)
                self._share.add(-1)
            self._share.make_room()
            self._share.add(1)
        table[key] = value
        table.move_to_end(key)

    def _on_looked_up(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._share.look_up(-1)

    async def _find(self, host: str, port: int) -> None:
        """Look up a host, remember the result for a while, and send the packets that waited for it."""
        address, good_s = None, _REFUSED_S
        try:
            async with asyncio.timeout(_LOOK_UP_S):
                permitted = await self._permitted(host, port)
            address = _reachable(permitted, port)
            if address is not None:
                good_s = _NAME_S
            else:
                self._undelivered(host, port, Obstacle.NO_WAY)
        except (RefusedError, TimeoutError):
            pass
        finally:
            waiting = self._waiting.pop((host, port), [])
            self._waiting_bytes -= sum(map(len, waiting))
        self._remember(self._found, (host, port), (address, self._loop.time() + good_s))
        for data in waiting:
            self._send_to(address, port, data)

    def _send_to(self, address: str | None, port: int, data: bytes) -> None:
        one = None if address is None else self._socket(address)
        if one is None or address is None:
            self.refused += 1
            return
        # Remember the peer: only it may answer.
        self._remember(self._peers, (address, port), self.used_s)
        try:
            one.sendto(data, (address, port))
        except OSError:
            # Try once more: the error may be an ICMP message about an earlier packet.
            with suppress(OSError):
                one.sendto(data, (address, port))

    def _socket(self, address: str) -> socket.socket | None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        one = self._sockets.get(family)
        if one is None:
            try:
                one = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            except OSError:
                return None
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
                one.setsockopt(*_TELL_ERRORS[family], 1)
                if family is socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._sockets[family] = one
            self._loop.add_reader(one, self._readable, one)
        return one

    def _readable(self, one: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, sender = one.recvfrom(_LARGEST)
            except (BlockingIOError, InterruptedError):
                self._take_errors(one)
                return
            except OSError:
                continue  # `_take_errors` reads the details
            peer = str(sender[0]).partition("%")[0], int(sender[1])
            sent_s = self._peers.get(peer)
            if sent_s is None or self._loop.time() - sent_s > IDLE_S:
                self.strangers += 1
                continue
            self._received(*peer, data)

    def _take_errors(self, one: socket.socket) -> None:
        """Read ICMP messages about this socket's packets; the kernel has checked them."""
        told = _TELL_ERRORS[one.family]
        for _ in range(_AT_ONCE):
            try:
                _, ancillary, _, peer = one.recvmsg(0, 256, _FROM_ERRORS)
            except OSError:
                return
            for level, kind, data in ancillary:
                if (level, kind) != told or not peer:
                    continue
                code, origin = _ERROR.unpack_from(data)
                if code == errno.ECONNREFUSED and origin in _ICMP_ORIGINS:
                    self._undelivered(str(peer[0]), int(peer[1]), Obstacle.REFUSED)


def _reachable(addresses: Sequence[str], port: int) -> str | None:
    """Return the first address to which this host has a route; None: there is none.

    An IPv4 address within an IPv6 one is returned as IPv4, since answers come from there.
    """
    for text in addresses:
        address = ip_address(text)
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as trying:
            trying.connect((str(address), port))  # asks the routing tables, and sends nothing
            return str(address)
    return None


class Associations:
    """The associations of all clients, until `close`."""

    def __init__(
        self,
        origins: Origins,
        # Returns a client's name; None: it is not invited any more.
        name_of: Callable[[bytes], str | None],
        *,
        most: int = MOST,
        most_per_client: int = MOST_PER_CLIENT,
        idle_s: float = IDLE_S,
    ) -> None:
        self._origins, self._name_of = origins, name_of
        self._most, self._most_per_client, self._idle_s = most, most_per_client, idle_s
        self._remembered = RememberedPeers()
        self._relays: dict[ProxiedAssociation, PacketRelay] = {}
        self._per_client: Counter[bytes] = Counter()
        self._checking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._relays)

    def open(self, client: bytes, association: ProxiedAssociation, counted: ExitStack) -> None:
        """Accept a client's association, `counted` until it is closed. RefusedError: too many."""
        full = len(self._relays) >= self._most
        if full or self._per_client[client] >= self._most_per_client:
            most = self._most if full else self._most_per_client
            whose = "the gateway takes" if full else "one client may have"
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "connection_limit_reached",
                f"{most} associations are all that {whose}",
            )
        # Connect both ends: packets of the client go to the relay, answers come back to the client.
        relay = PacketRelay(
            partial(self._permitted_addresses, client, association.user),
            association.send,
            association.tell_undelivered,
            self._remembered.share(client, association.user),
        )
        self._relays[association] = relay
        self._per_client[client] += 1
        association.received = partial(_sent_on, relay)
        association.ended = partial(self._on_over, client, association, counted.pop_all())
        association.accept()
        self._check_later()

    async def _permitted_addresses(
        self, client: bytes, user: int, host: str, port: int
    ) -> list[str]:
        asking_user.set(user)
        await current().turns.turn(client.hex())
        if self._name_of(client) is None:
            raise RefusedError(HTTPStatus.FORBIDDEN, "http_request_denied", "not invited any more")
        return await self._origins.addresses(host, port, asker=client)

    def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        for relay in self._relays.values():
            relay.close()
        self._relays.clear()

    def _on_over(self, client: bytes, association: ProxiedAssociation, counted: ExitStack) -> None:
        relay = self._relays.pop(association, None)
        if relay is None:
            return
        relay.close()
        counted.close()
        self._per_client[client] -= 1
        if not self._per_client[client]:
            del self._per_client[client]
        _log.debug("association over", refused=relay.refused, strangers=relay.strangers)

    def _check_later(self) -> None:
        if self._checking is None:
            loop = asyncio.get_running_loop()
            self._checking = loop.call_later(min(_CHECK_S, self._idle_s), self._check)

    def _check(self) -> None:
        self._checking = None
        old_s = asyncio.get_running_loop().time() - self._idle_s
        for association, relay in list(self._relays.items()):
            if relay.used_s <= old_s:
                association.drop()
        if self._relays:
            self._check_later()


def _sent_on(relay: PacketRelay, packet: ProgramPacket) -> None:
    relay.send(packet.host, packet.port, packet.data)
