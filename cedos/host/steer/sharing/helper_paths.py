"""The requestor's side: an address of its own for each helper, from which packets go by that helper."""

import socket
import struct
import time
from dataclasses import dataclass
from ipaddress import IPv4Address
from random import SystemRandom
from typing import Final

from cedos.errors import HostError, SteeringError
from cedos.host.steer.journal import JournalKeeper
from cedos.host.steer.journal_records import SHARING
from cedos.host.steer.sharing.kernel import (
    MOST_NEIGHBOURS,
    PROVIDERS,
    SharingKernel,
    SharingRole,
    host,
)
from cedos.kernel.policy_routing import Route, Rule
from cedos.kernel.rtnetlink import Link

_ROLE: Final = SharingRole.REQUEST
_FIRST: Final = int(IPv4Address("169.254.1.0"))
_COUNT: Final = 254 * 256

_TRIES: Final = 20
_PROBES, _PROBE_S = 3, 0.1
_ETH_P_ARP: Final = 0x0806
_ARP: Final = struct.Struct("!HHBBH6s4s6s4s")


@dataclass(frozen=True, slots=True)
class HelperPath:
    """A path by way of a helper: the address that leads there, and the gateway that it leads to.

    `price`: millionths of the currency for 10^9 bytes.
    """

    address: IPv4Address
    helper: IPv4Address
    gateway: IPv4Address
    slot: int
    price: int = 0


class HelperPaths:
    """The paths of this host by its helpers, until `close`. Use it from one thread.

    Args:
        kernel: of the host's namespace.
        journal: gets the way back before each change.
        shared: the interface of the link that helpers are on.

    Raises:
        HostError: there is no such interface.
        SteeringError: the journal cannot be written.
        OSError: the kernel refuses, as without CAP_NET_ADMIN.
    """

    def __init__(self, kernel: SharingKernel, journal: JournalKeeper, shared: str) -> None:
        self._kernel = kernel
        self._shared = kernel.link(shared)
        self._random = SystemRandom()
        self._paths: dict[IPv4Address, HelperPath] = {}
        journal.append(SHARING)

    def new_address(self) -> IPv4Address:
        """Return an address that no host of the link uses, in 0.3 s; SteeringError: none was found."""
        taken = {each.interface.ip for each in self._kernel.addresses()}
        for _ in range(_TRIES):
            candidate = IPv4Address(_FIRST + self._random.randrange(_COUNT))
            if candidate in taken or any(candidate in each for each in PROVIDERS):
                continue
            if is_free(self._shared, candidate):
                return candidate
        raise SteeringError(f"no free address on {self._shared.name} in {_TRIES} tries")

    def add(
        self,
        helper: IPv4Address,
        gateway: IPv4Address,
        own: IPv4Address | None = None,
        price: int = 0,
    ) -> HelperPath:
        """Lead an address (`new_address`) to the gateway by way of a helper; return the path.

        The helper must forward from that address already, or connections begin with a silence.
        """
        free = set(range(MOST_NEIGHBOURS)) - {each.slot for each in self._paths.values()}
        if not free:
            raise SteeringError(f"no more than {MOST_NEIGHBOURS} helpers are used at once")
        path = HelperPath(own or self.new_address(), helper, gateway, min(free), price)
        self._paths[path.address] = path
        # The way first: what programs see last is the address, and nothing leaves by another one.
        self._kernel.add_rules(_rules(path))
        self._kernel.add_address(self._shared.index, path.address, price)
        self._kernel.add_routes(self._routes(path))
        return path

    def prefer(self, address: IPv4Address, preferred: bool) -> None:
        """Let new data leave from an address, or no more; none with this address is fine.

        A deprecated address (RFC 4862, 5.5.4) keeps its connections. Sessions send nothing new from it.
        """
        if (path := self._paths.get(address)) is not None:
            self._kernel.prefer_address(self._shared.index, address, preferred, path.price)

    def remove(self, address: IPv4Address) -> None:
        """Give a path up; its connections end. None with this address is fine."""
        path = self._paths.pop(address, None)
        if path is None:
            return
        self._kernel.delete_address(self._shared.index, address)
        self._kernel.delete_routes(self._routes(path))
        self._kernel.delete_rules(_rules(path))

    def _routes(self, path: HelperPath) -> list[Route]:
        table, index = _ROLE.table(path.slot), self._shared.index
        return [Route(table, host(path.gateway), index, path.helper, source=path.address)]


def _rules(path: HelperPath) -> list[Rule]:
    own, first = host(path.address), _ROLE.preference
    return [
        Rule(4, first, _ROLE.table(path.slot), source=own),
        Rule(4, first + 1, None, source=own),
    ]


def is_free(link: Link, candidate: IPv4Address) -> bool:
    """Ask by ARP whether a host of the link has an address (RFC 5227, in less time).

    Raises:
        HostError: this program may not ask, or the link has no hardware addresses.
    """
    own = link.hardware_address
    if len(own) != 6:
        raise HostError(f"{link.name} has no hardware addresses; Wi-Fi or Ethernet would be right")
    question = _ARP.pack(1, 0x0800, 6, 4, 1, own, bytes(4), bytes(6), candidate.packed)
    frame = b"\xff" * 6 + own + struct.pack("!H", _ETH_P_ARP) + question
    try:
        asking = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ARP))
    except OSError as error:
        raise HostError(f"ARP cannot be asked: {error.strerror}; run it as root") from error
    with asking:
        asking.bind((link.name, _ETH_P_ARP))
        for _ in range(_PROBES):
            asking.send(frame)
            until_s = time.monotonic() + _PROBE_S
            while (left_s := until_s - time.monotonic()) > 0:
                asking.settimeout(left_s)
                try:
                    answer = asking.recv(2048)
                except TimeoutError:
                    break
                if _uses(answer[14:], own, candidate):
                    return False
    return True


def _uses(arp: bytes, own: bytes, candidate: IPv4Address) -> bool:
    """Return whether another host says that it has the address, or asks for it at the same time."""
    if len(arp) < _ARP.size:
        return False
    *_, hardware, sender, _, wanted = _ARP.unpack_from(arp)
    if hardware == own:
        return False
    probes = sender == bytes(4) and wanted == candidate.packed
    return bool(sender == candidate.packed or probes)
