"""The socket's side without a kernel."""

import errno
import struct
from ipaddress import ip_address

import pytest
from scapy.layers.inet import IP, TCP
from scapy.packet import Raw

from cedos.errors import HostError, PrivilegeError
from cedos.model import FlowKey
from cedos.profiler.capture import packet_socket
from cedos.profiler.capture.packet_socket import Capture, open_capture

PACKET = bytes(IP(src="192.0.2.1", dst="198.51.100.1") / TCP() / Raw(b"GET / HTTP/1.1\r\n"))
KEY = FlowKey(ip_address("192.0.2.1"), 1, ip_address("198.51.100.1"), 80)


class FakeSocket:
    """Gives packets, and raises errors, in the order of a script."""

    def __init__(self, script: list[tuple[bytes, str, int] | OSError]) -> None:
        self.script = script
        self.closed = False

    def recvfrom(self, size: int) -> tuple[bytes, tuple[str, int, int, int, bytes]]:
        if not self.script:
            raise BlockingIOError
        one = self.script.pop(0)
        if isinstance(one, OSError):
            raise one
        packet, interface, packet_type = one
        return packet[:size], (interface, 0x0800, packet_type, 1, b"")

    def getsockopt(self, level: int, option: int, length: int) -> bytes:
        assert (level, option, length) == (263, 6, 8)
        return struct.pack("II", 12, 3)

    def fileno(self) -> int:
        return -1 if self.closed else 77

    def close(self) -> None:
        self.closed = True


def test_packets_come_with_their_side_and_interface() -> None:
    fake = FakeSocket([(PACKET, "wlan0", 4), (b"no packet", "wlan0", 0), (PACKET, "lte0", 0)])
    with Capture(fake) as source:
        sent, received = source.read()
        assert source.read() == []
        assert source.fileno() == 77
        assert source.statistics() == (12, 3)
    assert (sent.outgoing, sent.interface, sent.key.remote_port) == (True, "wlan0", 80)
    assert (received.outgoing, received.interface, received.key.remote_port) == (False, "lte0", 20)
    assert source.fileno() == -1


def test_reading_is_bounded() -> None:
    source = Capture(FakeSocket([(PACKET, "wlan0", 4)] * 100))
    assert [len(source.read(limit=64)), len(source.read(limit=64))] == [64, 36]


def test_an_interface_that_goes_down_is_survived() -> None:
    down = OSError(errno.ENETDOWN, "Network is down")
    source = Capture(FakeSocket([down, (PACKET, "wlan0", 4)]))
    assert len(source.read()) == 1
    broken = Capture(FakeSocket([OSError(errno.EBADF, "Bad file descriptor")]))
    with pytest.raises(OSError, match="Bad file"):
        broken.read()


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (PermissionError(errno.EPERM, "no"), PrivilegeError, "CAP_NET_RAW"),
        (OSError(errno.EAFNOSUPPORT, "no"), HostError, "CONFIG_PACKET"),
    ],
)
def test_what_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, error: OSError, expected: type[Exception], says: str
) -> None:
    def refuse(wanted: object) -> None:
        raise error

    monkeypatch.setattr(packet_socket, "opened", refuse)
    with pytest.raises(expected, match=says):
        open_capture()
