"""What the sections of the configuration share: their base, and the kinds of values."""

from typing import Annotated

import msgspec
from msgspec import Meta

InterfaceName = Annotated[
    str,
    Meta(
        pattern=r"^[^/\s:]{1,15}$",
        description="an interface's name (at most 15 characters, as `ip link` shows it)",
    ),
]
NetworkName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,30}$",
        description="a short name of letters, digits and . _ -",
    ),
]
Exponent = Annotated[float, Meta(ge=0, le=10)]
Rate = Annotated[float, Meta(ge=0, le=1e6)]
Interval = Annotated[float, Meta(ge=0.1, le=3600)]
Offset = Annotated[float, Meta(ge=-1e9, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
Size = Annotated[int, Meta(ge=1, le=10**12)]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the configuration; never changes once loaded."""
