"""The handshakes under way: ClientHellos that take more than one packet, over TCP or QUIC."""

from collections import OrderedDict
from dataclasses import dataclass

from cedos.model import FlowKey
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.tls.client_hello import ClientHello, read_records
from cedos.profiler.tls.quic import InitialReader
from cedos.profiler.tls.reassembly import MAX_BYTES, Reassembly

_NUMBERS = 1 << 32
_MAX_HANDSHAKES = 256
"""At once, each of at most 16 KB; then the oldest is given up."""


_READ_BYTES = 32 * MAX_BYTES
"""Each piece of a hello is read with all before it, up to so many bytes in all; of whoever sends tiny
ones, only when they have doubled."""


@dataclass(slots=True)
class _HelloUnderWay:
    """`segment` is TCP's number of the first byte; `left_bytes` may still be read piece by piece."""

    segment: int
    stream: Reassembly
    left_bytes: int = _READ_BYTES
    due_bytes: int = 0

    def read(self) -> ClientHello | None:
        """What it says by now, where that may be more than the last time."""
        known = self.stream.prefix
        if self.left_bytes <= 0 and len(known) < self.due_bytes:
            return None
        self.left_bytes -= len(known)
        self.due_bytes = 2 * len(known)
        return read_records(known)


class Handshakes:
    """Reads each flow's hello as its packets come; each answers what is known by then, if new."""

    def __init__(self) -> None:
        self._segments: OrderedDict[FlowKey, _HelloUnderWay] = OrderedDict()
        self._initials: OrderedDict[FlowKey, InitialReader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments) + len(self._initials)

    def begin(self, captured: CapturedPacket) -> ClientHello | None:
        under_way = _HelloUnderWay(captured.segment, Reassembly())
        under_way.stream.add(0, captured.payload)
        hello = under_way.read()
        self._segments.pop(captured.key, None)
        if hello is None or not hello.complete:
            self._segments[captured.key] = under_way
            if len(self._segments) > _MAX_HANDSHAKES:
                self._segments.popitem(last=False)
        return hello

    def proceed(self, captured: CapturedPacket) -> ClientHello | None:
        """A TCP segment that may go on with a hello; None where there is none to go on with."""
        begun = self._segments.get(captured.key)
        if begun is None:
            return None
        offset = (captured.segment - begun.segment) % _NUMBERS
        if offset >= MAX_BYTES or not begun.stream.add(offset, captured.payload):
            return None
        hello = begun.read()
        if hello is not None and hello.complete:
            del self._segments[captured.key]
        return hello

    def initial(self, captured: CapturedPacket) -> ClientHello | None:
        reader = self._initials.get(captured.key)
        if reader is None:
            reader = self._initials[captured.key] = InitialReader()
            if len(self._initials) > _MAX_HANDSHAKES:
                self._initials.popitem(last=False)
        return None if reader.complete else reader.feed(captured.payload)

    def forget(self, key: FlowKey) -> None:
        self._segments.pop(key, None)
        self._initials.pop(key, None)
