"""The handshakes under way: ClientHellos that take more than one packet, over TCP or QUIC."""

from collections import OrderedDict

from cedos.model import FlowKey
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.tls.client_hello import ClientHello, read_records
from cedos.profiler.tls.quic import InitialReader
from cedos.profiler.tls.reassembly import MAX_BYTES, Reassembly

_NUMBERS = 1 << 32
_MAX_HANDSHAKES = 256
"""At once, each of at most 16 KB; then the oldest is given up."""


class Handshakes:
    """Reads each flow's hello as its packets come; each answers what is known by then, if new."""

    def __init__(self) -> None:
        self._segments: OrderedDict[FlowKey, tuple[int, Reassembly]] = OrderedDict()
        self._initials: OrderedDict[FlowKey, InitialReader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments) + len(self._initials)

    def begin(self, captured: CapturedPacket) -> ClientHello | None:
        hello = read_records(captured.payload)
        self._segments.pop(captured.key, None)
        if hello is None or not hello.complete:
            stream = Reassembly()
            stream.add(0, captured.payload)
            self._segments[captured.key] = captured.segment, stream
            if len(self._segments) > _MAX_HANDSHAKES:
                self._segments.popitem(last=False)
        return hello

    def proceed(self, captured: CapturedPacket) -> ClientHello | None:
        """A TCP segment that may go on with a hello; None where there is none to go on with."""
        begun = self._segments.get(captured.key)
        if begun is None:
            return None
        start, stream = begun
        offset = (captured.segment - start) % _NUMBERS
        if offset >= MAX_BYTES or not stream.add(offset, captured.payload):
            return None
        hello = read_records(stream.prefix)
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
