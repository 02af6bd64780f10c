"""The addresses that this host has now."""

import socket

from cedos.errors import HostError
from cedos.kernel import rtnetlink
from cedos.kernel.netlink import NETLINK_ROUTE, Requester
from cedos.model import Address


def host_addresses(version: int) -> list[Address]:
    """Those of an IP version, but link-local ones; HostError where the kernel does not tell."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    requester = Requester(NETLINK_ROUTE)
    try:
        answers = requester.dump(rtnetlink.RTM_GETADDR, rtnetlink.addresses_request(family))
    except OSError as error:
        raise HostError(f"rtnetlink does not tell this host's addresses ({error})") from error
    finally:
        requester.close()
    found = [each for answer in answers if (each := rtnetlink.parse_address(answer)) is not None]
    return [each.interface.ip for each in found if each.wide or each.interface.ip.is_loopback]
