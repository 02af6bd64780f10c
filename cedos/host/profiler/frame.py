"""Captured packets: flow and payload of each; pure, and total over hostile input."""

import struct
from hashlib import sha256
from typing import NamedTuple

from cedos.model import FlowKey, address

_TCP, _UDP = 6, 17
_UDP_HEADER_BYTES = 8
_SHORTEST = 28  # headers of IPv4 and UDP
_TCP_HEADER = struct.Struct("!HHIIB")
_IPV6_HEADER_BYTES = 40
_IPV6_EXTENSIONS = (0, 43, 60)
_OPTION_END, _OPTION_NOTHING, _OPTION_MPTCP = 0, 1, 30
_MP_CAPABLE, _DATA_SEQUENCE_SIGNAL = 0, 2
_WITH_BOTH_KEYS_BYTES = 20
_NUMBERS = 0xFFFFFFFF
_SYN = 0x02


class CapturedPacket(NamedTuple):
    """A packet that begins a message: its flow (of MPTCP, the subflow) and its payload's beginning.

    `sequence` is the number of the payload's first byte modulo 2**32: TCP's, or MPTCP's data sequence
    number, which counts over all subflows, None where the packet does not tell it; `acknowledgement`
    likewise. `segment` is TCP's own number in the connection or subflow. `opens`: it has TCP's bit SYN,
    whose number counts before the payload's.
    """

    key: FlowKey
    outgoing: bool
    payload: bytes
    sequence: int | None = 0
    acknowledgement: int | None = 0
    mptcp: bool = False
    interface: str = ""
    segment: int = 0
    opens: bool = False


def parse_frame(
    packet: bytes, *, outgoing: bool, interface: str = "", empty: bool = False
) -> CapturedPacket | None:
    """Read a packet, perhaps cut, from its IP header on; None: it carries no TCP or UDP payload.

    `empty`: also one of TCP that carries none.
    """
    if len(packet) < _SHORTEST:
        return None
    version = packet[0] >> 4
    if version == 4:
        if (packet[6] & 0x1F) | packet[7]:
            return None
        protocol, start = packet[9], (packet[0] & 0x0F) * 4
        length = packet[2] << 8 | packet[3]
        source, destination = packet[12:16], packet[16:20]
    elif version == 6 and len(packet) > _IPV6_HEADER_BYTES:
        protocol, start = _transport_in_ipv6(packet)
        length = packet[4] << 8 | packet[5]
        source, destination = packet[8:24], packet[24:40]
        if length:
            length += _IPV6_HEADER_BYTES
    else:
        return None
    # A length of 0 is a packet over 64 KB that segmentation offload has not yet split.
    end = min(length, len(packet)) if length else len(packet)
    if protocol == _UDP:
        return _datagram(packet, start, end, source, destination, outgoing, interface)
    if protocol != _TCP or not 20 <= start <= end - 20:
        return None
    source_port, destination_port, sequence, acknowledgement, words = _TCP_HEADER.unpack_from(
        packet, start
    )
    data = start + (words >> 4) * 4
    if not start + 20 <= data < end + empty:
        return None
    if outgoing:
        key = FlowKey(address(source), source_port, address(destination), destination_port)
    else:
        key = FlowKey(address(destination), destination_port, address(source), source_port)
    option = _mptcp_option(packet, start + 20, data) if data > start + 20 else None
    if option is None:
        numbers: tuple[int | None, int | None] = sequence, acknowledgement
    else:
        numbers = _data_numbers(option)
    opens = bool(packet[start + 13] & _SYN)
    return CapturedPacket(
        key, outgoing, packet[data:end], *numbers, option is not None, interface, sequence, opens
    )


def _datagram(
    packet: bytes,
    start: int,
    end: int,
    source: bytes,
    destination: bytes,
    outgoing: bool,
    interface: str,
) -> CapturedPacket | None:
    data = start + _UDP_HEADER_BYTES
    if not 20 <= start <= end - _UDP_HEADER_BYTES or data == end:
        return None
    near, far = address(source), address(destination)
    near_port, far_port = struct.unpack_from("!HH", packet, start)
    if not outgoing:
        near, near_port, far, far_port = far, far_port, near, near_port
    key = FlowKey(near, near_port, far, far_port, "udp")
    return CapturedPacket(key, outgoing, packet[data:end], None, None, interface=interface)


def _transport_in_ipv6(packet: bytes) -> tuple[int, int]:
    """Return the protocol behind the extension headers, and the offset of its header."""
    kind, at = packet[6], _IPV6_HEADER_BYTES
    while kind in _IPV6_EXTENSIONS and at + 2 <= len(packet):
        kind, at = packet[at], at + (packet[at + 1] + 1) * 8
    return kind, at


def _mptcp_option(packet: bytes, at: int, end: int) -> bytes | None:
    """Return the most informative MPTCP option: a packet may have several."""
    found = None
    while at + 1 < end:
        kind = packet[at]
        if kind == _OPTION_END:
            break
        if kind == _OPTION_NOTHING:
            at += 1
            continue
        length = max(2, packet[at + 1])
        if kind == _OPTION_MPTCP:
            option = packet[at : min(at + length, end)]
            if len(option) > 3 and option[2] >> 4 in (_MP_CAPABLE, _DATA_SEQUENCE_SIGNAL):
                return option
            found = option
        at += length
    return found


def _data_numbers(option: bytes) -> tuple[int | None, int | None]:
    """Return data sequence number and acknowledgement (RFC 8684, 3.1 and 3.3), modulo 2**32.

    The mapping is taken to begin with the payload, as it does for what is sent after a pause.
    """
    kind = option[2] >> 4 if len(option) > 3 else None
    if kind == _MP_CAPABLE and option[2] & 0x0F == 1 and len(option) >= _WITH_BOTH_KEYS_BYTES:
        # The first data has no mapping yet: it begins where the keys say.
        return _first_number(option[4:12]), _first_number(option[12:20])
    if kind != _DATA_SEQUENCE_SIGNAL:
        return None, None
    flags, at = option[3], 4
    acknowledgement = sequence = None
    if flags & 0x01:
        size = 8 if flags & 0x02 else 4
        acknowledgement = _low(option[at : at + size], size)
        at += size
    if flags & 0x04:
        size = 8 if flags & 0x08 else 4
        sequence = _low(option[at : at + size], size)
    return sequence, acknowledgement


def _low(raw: bytes, size: int) -> int | None:
    return int.from_bytes(raw, "big") & _NUMBERS if len(raw) == size else None


def _first_number(key: bytes) -> int:
    return int.from_bytes(sha256(key).digest()[-4:], "big") + 1 & _NUMBERS
