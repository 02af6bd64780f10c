"""Generic netlink, as far as looking needs it: families by name, and dumps (linux/genetlink.h)."""

import struct

from cedos.kernel.netlink import Requester, attribute, attributes, unsigned

_NETLINK_GENERIC, _CONTROLLER = 16, 16
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_HEADER = struct.Struct("=BBxx")


async def family(name: str) -> int:
    """The number that the kernel gave to a family.

    Raises:
        LookupError: the kernel does not have the family.
        OSError: generic netlink is refused.
    """
    requester = Requester(_NETLINK_GENERIC)
    try:
        return await _family(requester, name)
    finally:
        requester.close()


async def dump(name: str, command: int, body: bytes = b"") -> list[bytes]:
    """The attributes of all messages that a family's command dumps; `body` is the question's own.

    Raises:
        LookupError: the kernel does not have the family.
        OSError: the kernel refused, or generic netlink is refused.
    """
    requester = Requester(_NETLINK_GENERIC)
    try:
        number = await _family(requester, name)
        answers = await requester.dump(number, _HEADER.pack(command, 1) + body)
    finally:
        requester.close()
    return [answer.payload[_HEADER.size :] for answer in answers]


async def _family(requester: Requester, name: str) -> int:
    body = _HEADER.pack(_GET_FAMILY, 1) + attribute(_FAMILY_NAME, name.encode() + b"\0")
    try:
        answers = await requester.get(_CONTROLLER, body)
    except FileNotFoundError as error:
        raise LookupError(f"no {name} in this kernel") from error
    for answer in answers:
        if number := unsigned(attributes(answer.payload, _HEADER.size).get(_FAMILY_ID)):
            return number
    raise LookupError(f"no {name} in this kernel")
