"""Server names as they come in hostile bytes: checked, in lower case, without a final dot."""

import re

_LONGEST = 253  # a domain name in text (RFC 1035, 2.3.4)
_NAME = re.compile(rb"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?")


def server_name(raw: bytes) -> str | None:
    """The DNS name or IPv4 address in `raw`, or None where it is neither.

    Underscores are let through: real servers use them, though no host name may have them.
    """
    name = raw.lower()
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        return None
    return name.decode("ascii").removesuffix(".")
