"""`[networks.NAME]`: what the user says of interfaces."""

from typing import Annotated

from msgspec import Meta

from cedos.config.section import NetworkName, Section
from cedos.model import NetworkKind


class NetworkConfig(Section, frozen=True, kw_only=True):
    """What the user knows better than the host about one interface; None: as found."""

    name: NetworkName | None = None
    kind: NetworkKind | None = None
    metered: bool | None = None
    ignore: bool = False
    money_per_mb: Annotated[float, Meta(ge=0, le=1e6)] | None = None
