"""What a gateway shows of itself."""

from typing import NamedTuple


class GatewayFigures(NamedTuple):
    """Figures of now (`sessions`, `connections`, `held_bytes`), and counts since the gateway began.

    Up is from clients.
    """

    sessions: int = 0
    connections: int = 0
    held_bytes: int = 0
    sessions_opened: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
