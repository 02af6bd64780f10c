"""A namespace's packets in the hands of a test: read, changed, or late (NFQUEUE, nfnetlink_queue.h)."""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from emu.testbed.netns import Namespace
from emu.testbed.services import Watcher

_NETFILTER: Final = 12
_PACKET, _VERDICT, _CONFIG = 0x300, 0x301, 0x302
_CFG_CMD, _CFG_PARAMS = 1, 2
_PACKET_HEADER, _VERDICT_HEADER, _PAYLOAD = 1, 2, 10
_BIND, _COPY_PACKET, _ACCEPT = 1, 2, 1
_NUMBER: Final = 5
_HEADER: Final = struct.Struct("=IHHII")


class PacketQueue(Watcher):
    """A queue of packets that are forwarded out of an interface, while a `with` block runs."""

    def __init__(
        self,
        namespace: Namespace,  # of the host that forwards
        interface: str,  # on which they leave
        # Gets an IPv4 packet of 300 bytes or more, and returns what is sent on.
        changed: Callable[[bytes], bytes],
        late_s: float = 0.0,  # each is kept for so long
    ) -> None:
        super().__init__(namespace, "packet queue")
        self._changed, self._late_s = changed, late_s
        self._rule = ("FORWARD", "-o", interface, "-m", "length", "--length", "300:65535")
        self._rule += ("-j", "NFQUEUE", "--queue-num", str(_NUMBER), "--queue-bypass")

    def _watch(self) -> None:
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        with netlink:
            netlink.bind((0, 0))
            netlink.settimeout(0.02)
            netlink.send(_message(_CONFIG, _CFG_CMD, struct.pack(">BxH", _BIND, socket.AF_INET)))
            netlink.send(_message(_CONFIG, _CFG_PARAMS, struct.pack(">IB", 0xFFFF, _COPY_PACKET)))
            self._namespace.run("iptables", "-t", "mangle", "-I", *self._rule)
            try:
                self._ready.set()
                self._serve(netlink)
            finally:
                self._namespace.run("iptables", "-t", "mangle", "-D", *self._rule)

    def _serve(self, netlink: socket.socket) -> None:
        waiting: deque[tuple[float, bytes]] = deque()
        while not self._stop.is_set():
            try:
                data = netlink.recv(1 << 17)
            except TimeoutError:
                data = b""
            if len(data) > 20 and struct.unpack_from("=H", data, 4)[0] == _PACKET:
                found = _attributes(data[20:])
                number = found[_PACKET_HEADER][:4]
                header = struct.pack(">I", _ACCEPT) + number
                payload = self._changed(found[_PAYLOAD])
                verdict = _message(_VERDICT, _VERDICT_HEADER, header, _PAYLOAD, payload)
                waiting.append((time.monotonic() + self._late_s, verdict))
            while waiting and waiting[0][0] <= time.monotonic():
                netlink.send(waiting.popleft()[1])


def _message(kind: int, *attributes: int | bytes) -> bytes:
    body = struct.pack(">BBH", socket.AF_INET, 0, _NUMBER)
    for number, value in zip(attributes[::2], attributes[1::2], strict=True):
        assert isinstance(value, bytes)
        body += struct.pack("=HH", 4 + len(value), number) + value + bytes(-len(value) % 4)
    return _HEADER.pack(_HEADER.size + len(body), kind, 1, 0, 0) + body


def _attributes(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while len(data) >= 4:
        length, number = struct.unpack_from("=HH", data)
        found[number & 0x3FFF] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def with_another_last_byte(packet: bytes) -> bytes:
    """Return a TCP packet whose last byte is another one, with the right checksum."""
    header = 4 * (packet[0] & 15)
    tcp = bytearray(packet[header:])
    tcp[-1] ^= 0xFF
    tcp[16:18] = bytes(2)
    pseudo = packet[12:20] + struct.pack(">BBH", 0, socket.IPPROTO_TCP, len(tcp))
    summed = pseudo + tcp + bytes(len(tcp) % 2)
    total = sum(struct.unpack(f">{len(summed) // 2}H", summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    tcp[16:18] = struct.pack(">H", ~total & 0xFFFF)
    return packet[:header] + bytes(tcp)
