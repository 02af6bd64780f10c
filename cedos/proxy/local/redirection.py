"""The redirection of programs' connections to the local proxy, for as long as this process lives.

BPF programs (`redirection_programs`) change the destination of a chosen program's socket to the proxy.
They write the real destination into tables, where the proxy finds it.
"""

import os
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cedos.errors import HostError, PrivilegeError
from cedos.kernel import sock_diag
from cedos.kernel.bpf import (
    CONNECTS,
    AttachType,
    BpfMap,
    MapType,
    ProgramType,
    link,
    load,
    netns_cookie,
    root_cgroup,
)
from cedos.kernel.netlink import (
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NetlinkMessage,
    Requester,
)
from cedos.kernel.policy_routing import own_prefix_metrics, own_prefix_request
from cedos.kernel.rtnetlink import RTM_DELROUTE, RTM_NEWROUTE
from cedos.kernel.socket_owners import UNKNOWN, Endpoint, SocketOwners
from cedos.logs import get_logger
from cedos.model import Address, FlowKey
from cedos.proxy.local import redirection_programs as programs
from cedos.proxy.local.direct import NEAR
from cedos.proxy.local.redirection_programs import Here, LedDatagrams, LedTo, RedirectTables

_MOST_USERS: Final = 1024
_MOST_DIRECT: Final = 4096
_MOST_CONNECTIONS: Final = 16_384
MOST_PLACES: Final = 65_536  # of all users together

_SO_ATTACH_REUSEPORT_EBPF: Final = 52
_PRESENT: Final = b"\1\0\0\0"
_PLACES: Final = (programs.PLACES4, programs.PLACES6)
_MOUNTS: Final = Path("/proc/self/mounts")
_PROCESSES: Final = Path("/proc/self/ns/pid")
# The inode of the initial process namespace (linux/proc_ns.h).
_FIRST_PROCESSES: Final = 0xEFFFFFFC
_PEER_NAMES: Final = {4: AttachType.INET4_GETPEERNAME, 6: AttachType.INET6_GETPEERNAME}
_SENDERS: Final = {4: AttachType.UDP4_RECVMSG, 6: AttachType.UDP6_RECVMSG}
# The accounts of root and of services: of packages, and those that systemd draws (DynamicUser).
_SERVICES: Final = (range(1_000), range(61_184, 65_520))
_SIX: Final = frozenset({AttachType.INET6_CONNECT, AttachType.UDP6_SENDMSG})

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RedirectedTo:
    """The destination of a redirected connection."""

    address: str
    port: int
    cookie: int


@dataclass(frozen=True, slots=True)
class SentTo:
    """The destination of a redirected datagram, with the sending socket's user and cookie."""

    address: str
    port: int
    user: int
    cookie: int


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise PrivilegeError(
            "redirecting users' connections needs CAP_BPF and CAP_NET_ADMIN: run it as root, or by"
            " the systemd unit (`cedos example redirect-unit`)"
        ) from error
    except OSError as error:
        raise HostError(
            f"this kernel cannot redirect users' connections ({error}); Linux 5.14 or later, with"
            " BPF and cgroups, can"
        ) from error


class Redirection:
    """BPF programs and tables that redirect from `attach` on, for as long as this process lives.

    `users`: those whose programs' connections are redirected, by number.

    PrivilegeError: CAP_BPF or CAP_NET_ADMIN is missing. HostError: this kernel cannot do it.
    """

    def __init__(self, users: Collection[int]) -> None:
        # BPF programs know processes by their numbers in the first process namespace. Within another one
        # (a container), the proxy cannot tell them its own number.
        if os.geteuid() in users and _PROCESSES.stat().st_ino != _FIRST_PROCESSES:
            raise HostError(
                "within a container the proxy cannot redirect the user that it runs as: run it as"
                " another one"
            )
        self._routes: Requester | None = None
        self._held = 0
        self._owners = SocketOwners()
        self._links = ExitStack()
        self._port = 0  # where datagrams are led
        self._tcp_ports: frozenset[int | None] = frozenset()
        with _refusals(), ExitStack() as stack:

            def table(
                key_bytes: int,
                value_bytes: int,
                entries: int = _MOST_CONNECTIONS,
                kind: MapType = MapType.LRU_HASH,
            ) -> BpfMap:
                made = BpfMap(key_bytes, value_bytes, entries, kind)
                stack.callback(made.close)
                return made

            direct = table(programs.DIRECT_KEY_BYTES, 4, _MOST_DIRECT, MapType.LPM_TRIE)
            for network in NEAR:
                direct[programs.direct_key(network)] = _PRESENT
            # Each user has a share alone, unless there are more users than shares.
            shares = 1 << min(len(users) - 1, programs.STRANGERS - 1).bit_length()
            share_of = table(4, 4, _MOST_USERS, MapType.HASH)
            for number, user in enumerate(users):
                share_of[programs.NUMBER.pack(user)] = programs.NUMBER.pack(number % shares)
            self._places = [
                table(programs.ADDRESS_BYTES, programs.PLACE.size, MOST_PLACES // shares)
                for _ in range(shares)
            ]
            by_share = BpfMap(4, 4, shares, MapType.ARRAY_OF_MAPS, self._places[0].file)
            stack.callback(by_share.close)
            for share, places in enumerate(self._places):
                by_share[programs.NUMBER.pack(share)] = programs.NUMBER.pack(places.file)

            self._asked = table(8, programs.ASKED.size)
            self._arrived = table(programs.ARRIVED_KEY.size, programs.ARRIVED.size)
            self._tables = RedirectTables(
                users=share_of.file,
                direct=direct.file,
                asked=self._asked.file,
                arrived=self._arrived.file,
                places=by_share.file,
                shares=shares,
                sent_to=table(programs.PLACE.size, programs.ADDRESS_BYTES).file,
                heard=table(programs.PLACE.size, 4).file,
            )
            self._kept = stack.pop_all()

    def attach(
        self,
        proxy: LedTo,
        names: LedTo,
        datagrams: LedDatagrams,
        *,
        closed: bool = False,
    ) -> None:
        """Redirect connections, those to resolvers, and datagrams to these ports from now on.

        What cannot be redirected (IPv6 on a host without ::1) goes direct, or is refused (`closed`).
        Raises: as the constructor.
        """
        tables, self._port = self._tables, datagrams.port
        self._tcp_ports = frozenset((proxy.port4, proxy.port6, names.port4, names.port6))
        self._end_those_of_dead()
        with _refusals():
            # Link the programs to the root of the hierarchy. The one that notes ports (`arrival_program`)
            # comes first: without it the proxy could not find the destination of a redirected connection.
            here = Here(netns_cookie(), os.getpid())
            cgroup = os.open(
                root_cgroup(_MOUNTS.read_text()), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
            try:
                arrival = programs.arrival_program(tables)
                self._link(cgroup, arrival, ProgramType.SOCK_OPS, AttachType.SOCK_OPS)
                for version, where in _PEER_NAMES.items():
                    code = programs.peer_name_program(version, tables, datagrams)
                    self._link(cgroup, code, ProgramType.CGROUP_SOCK_ADDR, where)
                for where in CONNECTS:
                    version = 6 if where in _SIX else 4
                    code = programs.connect_program(
                        version,
                        here,
                        tables,
                        proxy,
                        names,
                        datagrams,
                        closed=closed,
                        sending=where in (AttachType.UDP4_SENDMSG, AttachType.UDP6_SENDMSG),
                    )
                    self._link(cgroup, code, ProgramType.CGROUP_SOCK_ADDR, where)
                for version, where in _SENDERS.items():
                    code = programs.sender_program(version, here, tables, datagrams, closed=closed)
                    self._link(cgroup, code, ProgramType.CGROUP_SOCK_ADDR, where)
            finally:
                os.close(cgroup)

    def divide(self, sockets: Sequence[socket.socket]) -> None:
        """Give each user's datagrams to one of the sockets that share a port, by the user's share."""
        version = 4 if sockets[0].family is socket.AF_INET else 6
        with _refusals():
            program = load(
                programs.buffer_program(version, self._tables), ProgramType.SOCKET_FILTER
            )
            try:
                sockets[0].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_EBPF, program)
            finally:
                os.close(program)

    def destination(self, program: socket.socket) -> RedirectedTo | None:
        """Return the destination of an accepted connection; None: it was not redirected."""
        try:
            own, peer = program.getsockname()[:2], program.getpeername()[:2]
            key = programs.ARRIVED_KEY.pack(peer[1], programs.kernel_port(own[1]))
            found = self._arrived[key]
        except OSError:
            return None
        address, port, _, cookie = programs.ARRIVED.unpack(found)
        # The key is two ports alone. Another address of this host may have the same ones, and ports are
        # used again: so check that the socket at the other end is the one in the table.
        owner = self._owners.find(socket.IPPROTO_TCP, peer, own)
        if owner is None or owner.cookie not in (cookie, UNKNOWN.cookie):
            return None
        with suppress(OSError):
            del self._arrived[key]
        return RedirectedTo(str(programs.address_of(address)), programs.port_of(port), cookie)

    def place(self, here: str) -> SentTo | None:
        """Return the destination of datagrams that are sent to a stand-in address; None: it is none."""
        try:
            packed = programs.address_bytes(ip_address(here))
            found = self._places[programs.share_of(packed, len(self._places))][packed]
        except OSError:
            return None
        address, port, user, cookie = programs.PLACE.unpack(found)
        return SentTo(str(programs.address_of(address)), programs.port_of(port), user, cookie)

    def hold_addresses(self, port: int) -> bool:
        """Make the stand-in IPv6 addresses local for `port`; return whether that succeeded.

        Each redirection has a route of its own, whose metric is its port: the one that ends leaves the
        others theirs. If this process is killed, its route stays until the next one ends: sockets that
        are connected to these addresses go on to send, and must not send into a network.
        """
        if self._routes is None:
            self._routes = Requester(NETLINK_ROUTE)
        try:
            self._routes.ask(
                RTM_NEWROUTE,
                own_prefix_request(programs.PLACES6, port),
                NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
            )
        except OSError as error:
            _log.warning("datagrams by IPv6 go direct", why=error.strerror or str(error))
            return False
        self._held = port
        return True

    def _leave_addresses(self) -> None:
        """Delete the own route, and those of killed redirections: no datagram socket has their port."""
        if (asking := self._routes) is None:
            return
        self._routes = None
        with (
            suppress(OSError, HostError),
            closing(asking),
            closing(Requester(NETLINK_SOCK_DIAG)) as diag,
        ):
            there = own_prefix_metrics(asking, programs.PLACES6)
            udp = _sockets(diag, socket.IPPROTO_UDP)
            living = {sock_diag.local_port(each) for each in udp} - {self._held}
            for metric in there - living:
                asking.ask(RTM_DELROUTE, own_prefix_request(programs.PLACES6, metric), NLM_F_ACK)

    def forget(self, to: RedirectedTo) -> None:
        """Forget a connection that was closed."""
        with suppress(OSError):
            del self._asked[programs.COOKIE.pack(to.cookie)]

    def detach(self) -> None:
        """Lead nothing here any more."""
        self._links.close()

    def end_led(self) -> None:
        """End what is led here and has not arrived: any user may have the ports after this.

        Datagram sockets that are connected here would go on to send here, and sockets whose first packet
        was dropped would send it again.
        """
        port, self._port = self._port, 0
        ports, self._tcp_ports = self._tcp_ports, frozenset()
        if port:
            _end_sockets(socket.IPPROTO_UDP, lambda to, at: at == port and _is_place(to))
            _end_sockets(socket.IPPROTO_TCP, lambda to, at: at in ports and to.is_loopback)

    @staticmethod
    def end(program: Endpoint, here: Endpoint) -> None:
        """End a program's datagram socket (CAP_NET_ADMIN) if it is connected to `here`."""
        ends = ip_address(program[0]), program[1], ip_address(here[0]), here[1]
        with suppress(OSError, HostError), closing(Requester(NETLINK_SOCK_DIAG)) as asking:
            request = sock_diag.sender_request(socket.IPPROTO_UDP, FlowKey(*ends))
            for each in asking.ask(sock_diag.SOCK_DIAG_BY_FAMILY, request, 0):
                if sock_diag.remote_end(each) == ends[2:]:
                    ending = sock_diag.destroy_request(each, socket.IPPROTO_UDP)
                    asking.ask(sock_diag.SOCK_DESTROY, ending)

    def _end_those_of_dead(self) -> None:
        """End the datagram sockets that a killed proxy has left, connected to a port of no proxy.

        Another proxy may run under another account. That of a person has no proxy that redirects, and
        could have the dead one's port.
        """
        with suppress(OSError, HostError), closing(Requester(NETLINK_SOCK_DIAG)) as asking:
            living = {
                sock_diag.local_port(each)
                for each in _sockets(asking, socket.IPPROTO_UDP)
                if (owner := sock_diag.owner_of(each)) is not None
                and (owner[1] == os.geteuid() or any(owner[1] in each for each in _SERVICES))
            }
            _end_sockets(socket.IPPROTO_UDP, lambda to, at: at not in living and _is_place(to))

    def close(self) -> None:
        """End the redirection; later connections go to their own destinations."""
        self.detach()
        self.end_led()
        self._kept.close()
        self._owners.close()
        self._leave_addresses()

    def _link(self, cgroup: int, code: bytes, kind: ProgramType, where: AttachType) -> None:
        program = load(code, kind, where, "cedos_redirect")
        try:
            self._links.callback(os.close, link(cgroup, program, where))
        finally:
            os.close(program)


def _is_place(to: Address) -> bool:
    return any(to in places for places in _PLACES)


def _end_sockets(protocol: int, wanted: Callable[[Address, int], bool]) -> None:
    """End sockets by where they are connected to; of TCP those that wait for the first answer."""
    try:
        with closing(Requester(NETLINK_SOCK_DIAG)) as asking:
            for each in _sockets(asking, protocol):
                if (end := sock_diag.remote_end(each)) is not None and wanted(*end):
                    with suppress(OSError):  # it has ended meanwhile
                        ending = sock_diag.destroy_request(each, protocol)
                        asking.ask(sock_diag.SOCK_DESTROY, ending)
    except (OSError, HostError) as error:
        _log.debug("sockets that are led to no proxy stay", why=str(error))


def _sockets(asking: Requester, protocol: int) -> list[NetlinkMessage]:
    return [
        each
        for family in (socket.AF_INET, socket.AF_INET6)
        for each in asking.dump(
            sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.sockets_request(family, protocol)
        )
    ]
