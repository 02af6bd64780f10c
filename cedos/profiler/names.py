"""Server names as they come in hostile bytes: checked, in lower case, without a final dot."""

import re

_LONGEST = 253  # a domain name in text (RFC 1035, 2.3.4)
_NAME = re.compile(rb"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?")


def server_name(raw: bytes) -> str | None:
    """The DNS name or IPv4 address in `raw`, underscores let through as real servers use them.

    Or None.
    """
    name = raw.lower()
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        return None
    return name.decode("ascii").removesuffix(".")


def domain(name: str) -> str | None:
    """The domain that a server name most likely belongs to, as `.example.org`; None for an address.

    Guessed without a list of public suffixes: the last two labels, or three where the second is one
    under which names are registered (`co.uk`). A wrong guess only makes a wider neighbourhood.
    """
    labels = name.split(".")
    if len(labels) < 2 or labels[-1].isdigit() or ":" in name:
        return None
    registered = len(labels[-1]) == 2 and labels[-2] in _REGISTRIES
    return "." + ".".join(labels[-3 if registered else -2 :])


_REGISTRIES = frozenset({"ac", "co", "com", "edu", "go", "gov", "gob", "ne", "net", "or", "org"})
