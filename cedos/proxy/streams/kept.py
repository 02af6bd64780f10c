"""What a gateway hands over of a session's streams to the process that follows it."""

from msgspec import Struct


class KeptStream(Struct, array_like=True):
    """A `ProxiedStream`. `waiting` came and was not read; the next message goes behind `after`."""

    number: int
    sent_bytes: int
    received_bytes: int
    after: tuple[int, ...]
    limit: int
    granted: int
    waiting: bytes
    peer_ended: bool
    ended: bool


class KeptFrame(Struct, array_like=True):
    """A frame for which the session had no room yet."""

    stream: int
    data: bytes
    large: bool
    ordered: bool


class KeptStreams(Struct, array_like=True):
    """A `Multiplexer` of the end that accepts streams."""

    opened_to: int
    opened_ahead: list[int]
    streams: list[KeptStream]
    frames: list[KeptFrame]
