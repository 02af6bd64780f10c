"""The messages in TCP streams of answers, each behind its length (RFC 1035, 4.2.2). Pure."""

import struct
from collections import OrderedDict
from typing import Final

from cedos.model import FlowKey

_MOST_STREAMS: Final = 64
_LENGTH: Final = struct.Struct("!H")
_NUMBERS: Final = 0xFFFFFFFF
# The number of a stream's next byte, and the received part of a message.
Reading = tuple[int, bytearray]


class AnswerStreams:
    """The streams of which a part was read; the one that was read longest ago is forgotten first."""

    def __init__(self) -> None:
        self._known: OrderedDict[FlowKey, Reading] = OrderedDict()

    def reading(self, key: FlowKey) -> Reading | None:
        """Return what was read of a stream so far; None: nothing."""
        known = self._known.get(key)
        return None if known is None else (known[0], bytearray(known[1]))

    def restore(self, key: FlowKey, reading: Reading | None) -> None:
        """Forget what was read of a stream since `reading`."""
        if reading is not None:
            self._known[key] = reading
        else:
            self._known.pop(key, None)

    def messages(self, key: FlowKey, segment: int, payload: bytes) -> list[bytes] | None:
        """Return the messages that end with a segment; None: an earlier one is missing."""
        expected, buffer = self._known.get(key) or (segment, bytearray())
        known = (expected - segment) & _NUMBERS
        if known > _NUMBERS // 2:
            return None
        buffer += payload[known:]
        found = []
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                break
            found.append(bytes(buffer[_LENGTH.size : end]))
            del buffer[:end]
        self._known[key] = (segment + max(len(payload), known)) & _NUMBERS, buffer
        self._known.move_to_end(key)
        while len(self._known) > _MOST_STREAMS:
            self._known.popitem(last=False)
        return found
