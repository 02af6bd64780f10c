"""What a program is told of a port at which nobody listens."""

import struct
from ipaddress import ip_address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.redirected_datagrams import unreachable

PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(v=4), PORTS, st.ip_addresses(v=4), PORTS)
def test_by_ipv4(source: Any, own: int, destination: Any, port: int) -> None:
    message = unreachable((str(source), own), (str(destination), port))
    words = sum(struct.unpack("!18H", message))
    assert (words & 0xFFFF) + (words >> 16) in (0xFFFF, 0x1FFFF - 1)
    assert message[:2] == b"\3\3"
    about = message[8:]
    assert (about[0], about[9]) == (0x45, 17)
    assert (ip_address(about[12:16]), ip_address(about[16:20])) == (source, destination)
    assert struct.unpack("!2H", about[20:24]) == (own, port)


@given(st.ip_addresses(v=6), PORTS, st.ip_addresses(v=6), PORTS)
def test_by_ipv6(source: Any, own: int, destination: Any, port: int) -> None:
    message = unreachable((str(source), own), (str(destination), port))
    assert message[:2] == b"\1\4"
    about = message[8:]
    assert (about[0] >> 4, about[6]) == (6, 17)
    assert (ip_address(about[8:24]), ip_address(about[24:40])) == (source, destination)
    assert struct.unpack("!2H", about[40:44]) == (own, port)
