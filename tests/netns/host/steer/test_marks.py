"""Marks (`cedos exec`): packets with a mark take the mark's network, and no others do."""

import socket
import struct

import pytest
from kit.steered import steered, steering_of

from cedos.errors import SteeringError

MARK = 0xCE00_0007


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("proto", [0, 262])
def test_marked_sockets(host, version, proto):
    family, server = {
        4: (socket.AF_INET, "198.51.100.1"),
        6: (socket.AF_INET6, "2001:db8:100::1"),
    }[version]

    def seen_marked():
        with socket.socket(family, socket.SOCK_STREAM, proto) as asking:
            asking.settimeout(5)
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, struct.pack("=I", MARK))
            asking.connect((server, 8000))
            asking.sendall(b"who\n")
            return asking.recv(100).decode()

    async def body():
        async with steering_of(host, default="wlan0") as steering:
            for network in ("lte0", "wlan0", "lte0"):
                steering.set_mark(MARK, network)
                assert seen_marked() == host.address(network, version)
                assert host.seen_tcp(version) == host.address("wlan0", version)
            await steering.networks_changed(host.networks("lte0"))
            assert seen_marked() == host.address("wlan0", version)
            await steering.networks_changed(host.networks())
            assert seen_marked() == host.address("lte0", version)
            steering.set_mark(MARK, None)
            assert seen_marked() == host.address("wlan0", version)

    before = host.client.ip("rule")
    host.run(body)
    assert host.client.ip("rule") == before


@steered()
async def test_what_is_no_mark(host, steering):
    for mark, network in ((0, "lte0"), (1 << 32, "lte0"), (1, "usb7")):
        with pytest.raises(SteeringError):
            steering.set_mark(mark, network)
