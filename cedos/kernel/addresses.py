"""IP addresses from octets: of each address one object, as they are made and compared all the time."""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from cedos.model import Address

_MAPPED = bytes(10) + b"\xff\xff"


@lru_cache(maxsize=4096)
def address(octets: bytes) -> Address:
    """The address of 4 or 16 octets (network order); one of IPv4 mapped into IPv6 is IPv4.

    An IPv6 socket that speaks IPv4 has such addresses; connection tracking and commands to the
    path manager call them IPv4.

    Raises:
        ValueError: there are more or fewer octets.
    """
    if len(octets) == 4:
        return IPv4Address(octets)
    if octets.startswith(_MAPPED):
        return IPv4Address(octets[len(_MAPPED) :])
    return IPv6Address(octets)
