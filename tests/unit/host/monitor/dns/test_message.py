"""Answers to DNS questions: honest ones, and all the others."""

import struct
from ipaddress import ip_address

import pytest

from cedos.host.monitor.dns_message import DnsFault, fault, is_public, parse, question

PUBLIC, PRIVATE = "93.184.216.34", "192.168.1.1"


def answer(number=7, name="example.com", *addresses, code=0, cut=False, kind=1):
    asked = bytearray(question(number, name))
    asked[-4:-2] = struct.pack("!H", kind)
    flags = 0x8180 | code | (0x0200 if cut else 0)
    head = struct.pack("!6H", number, flags, 1, len(addresses), 0, 0)
    records = b""
    for text in addresses:
        octets = ip_address(text).packed
        kind = 1 if len(octets) == 4 else 28
        records += b"\xc0\x0c" + struct.pack("!2HIH", kind, 1, 60, len(octets)) + octets
    return head + bytes(asked[12:]) + records


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (answer(7, "example.com", PUBLIC), None),
        (answer(7, "EXAMPLE.com", PUBLIC), None),
        (answer(7, "example.com", code=3), None),  # that it does not exist is an answer
        (answer(8, "example.com", PUBLIC), DnsFault.FOREIGN),
        (answer(7, "example.org", PUBLIC), DnsFault.FOREIGN),
        (answer(7, "example.com", PUBLIC, kind=28), DnsFault.FOREIGN),
        (question(7, "example.com"), DnsFault.FOREIGN),  # an echo of the question
        (b"", DnsFault.FOREIGN),
        (answer(7, "example.com", PUBLIC, cut=True), DnsFault.TRUNCATED),
        (answer(7, "example.com", code=2), DnsFault.REFUSED),
        (answer(7, "example.com", code=5), DnsFault.REFUSED),
        (answer(7, "example.com", PRIVATE), DnsFault.HIJACKED),
        (answer(7, "example.com", PUBLIC, "0.0.0.0"), DnsFault.HIJACKED),
    ],
)
def test_what_is_wrong_with_an_answer(data, wrong):
    assert fault(data, 7, "example.com.") is wrong


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *(("198.51.100.1", True), ("2001:db8::1", True), ("100.64.0.1", False)),
        *(("fd00::1", False), ("10.1.1.1", False), ("172.31.0.1", False), ("::1", False)),
    ],
)
def test_addresses_that_public_names_may_have(address, public):
    assert is_public(ip_address(address)) is public


def test_a_reader_of_names_ends():
    """Pointers in a circle, to themselves, forwards, and many of them."""
    head = b"\0\1\x81\x80\0\1\0\2\0\0\0\0\1a\0\0\1\0\1"
    for target in (b"\xc0\x1f", b"\xc0\xff", b"\xc0\x0c", b"\1b\xc0\x1f", b"\3"):
        record = b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, 60, len(target)) + target
        reply = parse(head + record + record)
        assert all(len(alias) < 300 for alias in reply.aliases)


def test_hints_of_a_service_are_addresses():
    """Browsers use the addresses of HTTPS records (RFC 9460)."""
    hints = struct.pack("!HH8s", 4, 8, ip_address("192.0.2.1").packed * 2)
    hints += struct.pack("!HH16s", 6, 16, ip_address("2001:db8::1").packed)
    data = struct.pack("!H", 1) + b"\3svc\7example\0" + struct.pack("!HH2s", 1, 2, b"h2") + hints
    asked = question(7, "updates.example", 65)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 65, 1, 60, len(data)) + data
    reply = parse(asked[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0" + asked[12:] + record)
    assert [str(each) for each in reply.addresses] == ["192.0.2.1", "192.0.2.1", "2001:db8::1"]
    assert reply.aliases == ("svc.example",)
