"""Packets that came before the word that opens their association: kept for the moment that it needs."""

from collections import OrderedDict
from typing import Final

from cedos.proxy.streams.packets import ProgramPacket

KEPT_S: Final = 1.0
"""As long as the packets themselves are good for."""

MOST_ASSOCIATIONS: Final = 64
MOST_OF_ONE: Final = 16
MOST_BYTES: Final = 1 << 20


class EarlyPackets:
    """Datagrams do not wait for what goes in order: over another path they may be the quicker ones."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, list[tuple[float, ProgramPacket]]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, packet: ProgramPacket, now: float) -> None:
        """Or not: there is room for a few."""
        while self._kept and next(iter(self._kept.values()))[0][0] <= now - KEPT_S:
            self._drop(next(iter(self._kept)))
        many = packet.stream not in self._kept and len(self._kept) >= MOST_ASSOCIATIONS
        if many or self._bytes + len(packet.data) > MOST_BYTES:
            return
        waiting = self._kept.setdefault(packet.stream, [])
        if len(waiting) < MOST_OF_ONE:
            waiting.append((now, packet))
            self._bytes += len(packet.data)

    def take(self, number: int, now: float) -> list[ProgramPacket]:
        """Those of an association that is opened now."""
        return [packet for at_s, packet in self._drop(number) if at_s > now - KEPT_S]

    def _drop(self, number: int) -> list[tuple[float, ProgramPacket]]:
        gone = self._kept.pop(number, [])
        self._bytes -= sum(len(packet.data) for _, packet in gone)
        return gone
