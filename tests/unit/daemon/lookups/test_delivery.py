"""The datagram that a program gets, as scapy reads it."""

from ipaddress import ip_address

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from cedos.daemon.lookup_watch import datagram
from cedos.model import FlowKey

ENDS = {4: ("192.168.43.2", "192.168.43.1"), 6: ("2001:db8::2", "2001:db8::1")}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("size", [0, 11, 512, 1231])
def test_it_is_a_right_one(version, size):
    local, remote = map(ip_address, ENDS[version])
    payload = bytes(number % 251 for number in range(size))
    packet = datagram(FlowKey(local, 40_000, remote, 53, "udp"), payload)
    read = (IP if version == 4 else IPv6)(packet)
    assert (read.src, read.dst) == (str(remote), str(local))
    assert (read[UDP].sport, read[UDP].dport, read[UDP].len) == (53, 40_000, 8 + size)
    assert bytes(read[UDP].payload) == payload
    told = read[UDP].chksum
    del read[UDP].chksum
    assert type(read)(bytes(read))[UDP].chksum == told
