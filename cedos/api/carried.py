"""Connections that a proxy carries through a gateway: its word about them.

The daemon sees one session with the gateway; whose bytes it carries only the proxy knows.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MOST_TOLD: Final = 256
"""Connections in one report; of more each has its turn."""

_Text = Annotated[str, Meta(min_length=1, max_length=253)]
_Bytes = Annotated[int, Meta(ge=0, le=10**15)]
_Interface = Annotated[str, Meta(min_length=1, max_length=64)]


class CarriedNews(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One connection as it is now; all bytes are since it began, so that a lost report does no harm.

    Attributes:
        number: the proxy's own for it, never another one's.
        bytes_down, bytes_up: of the program.
        bytes_by_network: of these, by interface. Where several were in use at once, by what the whole
            session carried over each in that second.
        decision: the daemon's last one about data like this in its session; None: there was none.
        ended: nothing more comes of it.
    """

    number: Annotated[int, Meta(ge=0, le=2**53)]
    server: _Text
    port: Annotated[int, Meta(ge=1, le=65_535)]
    age_s: Annotated[float, Meta(ge=0, le=1e9)]
    bytes_down: _Bytes = 0
    bytes_up: _Bytes = 0
    bytes_by_network: Annotated[dict[_Interface, _Bytes], Meta(max_length=64)] = {}
    decision: Annotated[int, Meta(ge=1, le=2**53)] | None = None
    ended: bool = False


class CarriedReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one proxy (`program`: its own number, new with each start), told each second while it carries.

    Attributes:
        gateway: its name, as it was joined.
        addresses: of the gateway, to which the session's own connections lead now.
        connections: those that changed or ended, and others while there is room.
    """

    program: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    gateway: _Text
    addresses: Annotated[tuple[_Text, ...], Meta(max_length=16)] = ()
    connections: Annotated[tuple[CarriedNews, ...], Meta(max_length=MOST_TOLD)] = ()
