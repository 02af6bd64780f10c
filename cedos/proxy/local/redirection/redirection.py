"""Users' connections, led to the local proxy for as long as this process lives."""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final

import structlog

from cedos.errors import HostError, PrivilegeError
from cedos.kernel.bpf.programs import (
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
    NLM_F_ACK,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    Requester,
)
from cedos.kernel.policy_routing import own_prefix_request
from cedos.kernel.rtnetlink import RTM_DELROUTE, RTM_NEWROUTE
from cedos.proxy.local.redirection import programs
from cedos.proxy.local.redirection.programs import Here, LedDatagrams, LedTo, RedirectTables

_MOST_USERS: Final = 1024
_MOST_DIRECT: Final = 4096
_MOST_CONNECTIONS: Final = 16_384
_HOLD_S: Final = 60
"""What a killed proxy leaves, a route within the host, ends by itself after so long."""

_PRESENT: Final = b"\1\0\0\0"
_MOUNTS: Final = Path("/proc/self/mounts")
_PROCESSES: Final = Path("/proc/self/ns/pid")
# The inode of the processes' namespace that the kernel began with (linux/proc_ns.h).
_FIRST_PROCESSES: Final = 0xEFFFFFFC
_PEER_NAMES: Final = {4: AttachType.INET4_GETPEERNAME, 6: AttachType.INET6_GETPEERNAME}
_SENDERS: Final = {4: AttachType.UDP4_RECVMSG, 6: AttachType.UDP6_RECVMSG}
_SIX: Final = frozenset({AttachType.INET6_CONNECT, AttachType.UDP6_SENDMSG})

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RedirectedTo:
    """Where a redirected connection was going."""

    address: str
    port: int
    cookie: int


@dataclass(frozen=True, slots=True)
class SentTo:
    """Where a redirected datagram was going; `cookie`: of the socket that sends, `user`: whose it is."""

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
    """Nothing is redirected before `attach`; whatever ends the process ends it.

    Args:
        users: whose connections, by number.
        networks, ports: what goes where it was going, without the proxy.

    Raises:
        PrivilegeError: CAP_BPF or CAP_NET_ADMIN is missing.
        HostError: this kernel cannot do it.
    """

    def __init__(
        self,
        users: Collection[int],
        networks: Collection[IPv4Network | IPv6Network],
        ports: Collection[int],
    ) -> None:
        # A program sees processes as the first namespace numbers them.
        if os.geteuid() in users and _PROCESSES.stat().st_ino != _FIRST_PROCESSES:
            raise HostError(
                "within a container the proxy cannot redirect the user that it runs as: run it as"
                " another one"
            )
        self._routes: Requester | None = None
        self._kept = ExitStack()
        with _refusals(), ExitStack() as stack:
            self._users = self._map(stack, 4, 4, _MOST_USERS)
            self._direct = self._map(
                stack, programs.DIRECT_KEY_BYTES, 4, _MOST_DIRECT, MapType.LPM_TRIE
            )
            self._ports = self._map(stack, 4, 4, _MOST_DIRECT)
            self._asked = self._map(
                stack, 8, programs.ASKED.size, _MOST_CONNECTIONS, MapType.LRU_HASH
            )
            self._arrived = self._map(
                stack,
                programs.ARRIVED_KEY.size,
                programs.ARRIVED.size,
                _MOST_CONNECTIONS,
                MapType.LRU_HASH,
            )
            self._named = self._map(
                stack, 8, programs.ASKED.size, _MOST_CONNECTIONS, MapType.LRU_HASH
            )
            self._places = self._map(
                stack,
                programs.ADDRESS_BYTES,
                programs.PLACE.size,
                _MOST_CONNECTIONS,
                MapType.LRU_HASH,
            )
            self._sent_to = self._map(
                stack,
                programs.PLACE.size,
                programs.ADDRESS_BYTES,
                _MOST_CONNECTIONS,
                MapType.LRU_HASH,
            )
            self._heard = self._map(
                stack, programs.PLACE.size, 4, _MOST_CONNECTIONS, MapType.LRU_HASH
            )
            for user in users:
                self._users[programs.NUMBER.pack(user)] = _PRESENT
            for network in networks:
                self._direct[programs.direct_key(network)] = _PRESENT
            for port in ports:
                self._ports[programs.NUMBER.pack(programs.kernel_port(port))] = _PRESENT
            self._kept = stack.pop_all()

    def attach(
        self, proxy: LedTo, names: LedTo | None = None, datagrams: LedDatagrams | None = None
    ) -> None:
        """From now on it leads connections, questions for names and other datagrams to these ports.

        Errors as above.
        """
        tables = RedirectTables(
            self._users.file,
            self._direct.file,
            self._ports.file,
            self._asked.file,
            self._arrived.file,
            self._named.file,
            self._places.file,
            self._sent_to.file,
            self._heard.file,
        )
        with _refusals():
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
                    code = programs.connect_program(version, here, tables, proxy, names, datagrams)
                    self._link(cgroup, code, ProgramType.CGROUP_SOCK_ADDR, where)
                for version, where in _SENDERS.items():
                    if names is None and datagrams is None:
                        break
                    code = programs.sender_program(version, here, tables, names, datagrams)
                    self._link(cgroup, code, ProgramType.CGROUP_SOCK_ADDR, where)
            finally:
                os.close(cgroup)

    def destination(self, program: socket.socket) -> RedirectedTo | None:
        """Where an accepted connection was going; None: it was not led here, but came by itself."""
        try:
            own, peer = program.getsockname()[1], program.getpeername()[1]
            key = programs.ARRIVED_KEY.pack(peer, programs.kernel_port(own))
            found = self._arrived[key]
            del self._arrived[key]
        except OSError:
            return None
        address, port, _, cookie = programs.ARRIVED.unpack(found)
        return RedirectedTo(str(programs.address_of(address)), programs.port_of(port), cookie)

    def place(self, here: str) -> SentTo | None:
        """What an address that a datagram was sent to stands for; None: it is nobody's."""
        try:
            found = self._places[programs.address_bytes(ip_address(here))]
        except OSError:
            return None
        address, port, user, cookie = programs.PLACE.unpack(found)
        return SentTo(str(programs.address_of(address)), programs.port_of(port), user, cookie)

    def hold_addresses(self) -> bool:
        """Makes those that stand for places of IPv6 this host's own for a minute; False: it cannot."""
        if self._routes is None:
            self._routes = Requester(NETLINK_ROUTE)
        try:
            self._routes.ask(
                RTM_NEWROUTE,
                own_prefix_request(programs.PLACES6, _HOLD_S),
                NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
            )
        except OSError as error:
            _log.warning("datagrams by IPv6 go direct", why=error.strerror or str(error))
            return False
        return True

    def forget(self, to: RedirectedTo) -> None:
        """The connection has ended."""
        with suppress(OSError):
            del self._asked[programs.COOKIE.pack(to.cookie)]

    def close(self) -> None:
        """Connections go where they are going again."""
        self._kept.close()
        if self._routes is not None:
            with suppress(OSError):
                self._routes.ask(RTM_DELROUTE, own_prefix_request(programs.PLACES6))
            self._routes.close()
            self._routes = None

    @staticmethod
    def _map(
        stack: ExitStack,
        key_bytes: int,
        value_bytes: int,
        entries: int,
        kind: MapType = MapType.HASH,
    ) -> BpfMap:
        made = BpfMap(key_bytes, value_bytes, entries, kind)
        stack.callback(made.close)
        return made

    def _link(self, cgroup: int, code: bytes, kind: ProgramType, where: AttachType) -> None:
        program = load(code, kind, where, "cedos_redirect")
        try:
            self._kept.callback(os.close, link(cgroup, program, where))
        finally:
            os.close(program)
