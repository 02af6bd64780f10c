"""What a gateway has carried since it began."""

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """`connections`: to origins; `up_bytes`: from clients to origins."""

    sessions: int = 0
    connections: int = 0
    refused: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
