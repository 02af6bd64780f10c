"""Generic netlink: families by name, and dumps (linux/genetlink.h)."""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from cedos.kernel.netlink import (
    NETLINK_GENERIC,
    AsyncRequester,
    NetlinkMessage,
    attribute,
    attributes,
    read_unsigned,
    text,
)

GENL_ID_CTRL: Final = 16
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME, _MCAST_GROUPS = 3, 1, 2, 7
_GROUP_NAME, _GROUP_ID = 1, 2
_HEADER: Final = struct.Struct("=BBxx")  # command, version
HEADER_BYTES: Final = _HEADER.size


class Family(NamedTuple):
    """A family's message type, and its multicast groups by name."""

    number: int
    groups: Mapping[str, int]


def request(command: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(command, 1) + body


def family_request(name: str) -> bytes:
    """Return the request (of type GENL_ID_CTRL) for the numbers of a family."""
    return request(_GET_FAMILY, attribute(_FAMILY_NAME, name.encode() + b"\0"))


def parse_family(message: NetlinkMessage) -> Family | None:
    found = attributes(message.payload, HEADER_BYTES)
    number = read_unsigned(found.get(_FAMILY_ID))
    # The groups are an array: nested attributes, each with a name and a number.
    groups = map(attributes, attributes(found.get(_MCAST_GROUPS, b"")).values())
    named = {
        text(group.get(_GROUP_NAME)): read_unsigned(group.get(_GROUP_ID)) or 0 for group in groups
    }
    return Family(number, named) if number else None


async def dump(name: str, command: int, body: bytes = b"") -> list[bytes]:
    """Return the attributes of all messages of a dump; `body` is the request's own.

    LookupError: the kernel has no such family. OSError: it is refused.
    """
    requester = AsyncRequester(NETLINK_GENERIC)
    try:
        found = map(parse_family, await requester.get(GENL_ID_CTRL, family_request(name)))
        family = next(filter(None, found), None)
        if family is None:
            raise LookupError(f"no {name} in this kernel")
        answers = await requester.dump(family.number, request(command, body))
    except FileNotFoundError as error:
        raise LookupError(f"no {name} in this kernel") from error
    finally:
        requester.close()
    return [answer.payload[HEADER_BYTES:] for answer in answers]
