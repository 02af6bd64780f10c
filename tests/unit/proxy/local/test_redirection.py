"""Programs that are redirected: the BPF programs."""

import struct
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local import redirection_programs as programs
from cedos.proxy.local.direct import NEAR, is_near
from cedos.proxy.local.redirection_programs import Here, LedDatagrams, LedTo, RedirectTables

TABLES = RedirectTables(3, 4, 5, 6, 7, 4, 8, 9)
LED, NAMES = LedTo(4711, 4712), LedTo(4713, 4714)
DATAGRAMS = LedDatagrams(4715, six=True)


@given(st.ip_addresses())
def test_addresses_there_and_back(address):
    packed = programs.address_bytes(address)
    assert len(packed) == programs.ADDRESS_BYTES
    mapped = getattr(address, "ipv4_mapped", None)
    assert programs.address_of(packed) == (mapped or address)


@given(st.integers(0, 65_535))
def test_ports_there_and_back(port):
    kernel = programs.kernel_port(port)
    assert programs.port_of(kernel) == port
    assert programs.NUMBER.pack(kernel)[:2] == struct.pack("!H", port)


@given(st.ip_addresses(v=4), st.integers(0, 32))
def test_a_prefix_of_ipv4_lies_within_its_mapped_one(address, length):
    network = IPv4Network((address, length), strict=False)
    (bits,) = struct.unpack_from("=I", programs.direct_key(network))
    mapped = IPv6Network((programs.direct_key(network)[4:], bits))
    assert mapped == ip_network((f"::ffff:{network.network_address}", 96 + length))


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("0.0.0.0", True), ("127.0.0.53", True), ("192.168.1.7", True), ("224.0.0.251", True),
        ("255.255.255.255", True), ("::", True), ("ff02::fb", True), ("fe80::1", True),
        ("203.0.113.2", False), ("2001:db8::1", False), ("223.255.255.255", False),
    ],
)  # fmt: skip
def test_what_is_near_never_reaches_the_proxy(address, near):
    assert is_near(address) is near
    assert any(ip_address(address) in each for each in NEAR) is near


def test_programs_are_small_and_end():
    here = Here(1 << 40, 1234)
    without = replace(DATAGRAMS, six=False)
    found = [
        programs.connect_program(version, here, TABLES, LED, NAMES, datagrams, closed=closed)
        for version in (4, 6)
        for closed in (False, True)
        for datagrams in (DATAGRAMS, without)
    ]
    assert len(set(found[4:])) == len(found[4:])
    assert found[0] == found[1]  # IPv4's
    found += [
        programs.connect_program(
            6, here, TABLES, LedTo(4711, None), LedTo(4713, None), DATAGRAMS, closed=closed
        )
        for closed in (False, True)
    ]
    found.append(programs.arrival_program(TABLES))
    for version in (4, 6):
        found.append(programs.peer_name_program(version, TABLES, DATAGRAMS))
        found.append(programs.sender_program(version, here, TABLES, DATAGRAMS))
    for code in found:
        assert len(code) % 8 == 0
        assert len(code) // 8 < 500
        assert code[-8] == 0x95
