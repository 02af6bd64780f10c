"""Messages and hints."""

from ipaddress import IPv4Address

import msgspec
import pytest

from cedos.api.messages import DecisionMessage, flow_matches, server_matches
from cedos.model import FlowKey

V4 = FlowKey(IPv4Address("192.168.43.2"), 5000, IPv4Address("198.51.100.1"), 443)


@pytest.mark.parametrize(
    "wanted",
    [
        "tcp 192.168.43.2:5000 > 198.51.100.1:443", "192.168.43.2:5000 > 198.51.100.1:443",
        " 198.51.100.1:443", "198.51.100.1", "192.168.43.2", "5000", "www.example.org",
        "Example.org",
    ],
)  # fmt: skip
def test_flow_matches(wanted):
    assert flow_matches(wanted, V4, "www.example.org")


@pytest.mark.parametrize(
    ("wanted", "server", "means"),
    [
        (" Example.org ", "www.EXAMPLE.org", True), ("example.org:443", "www.example.org", True),
        ("www.example.org", "www.example.org", True), ("example.org:44", "example.org", False),
        ("ample.org", "example.org", False), ("443", "example.org", False),
        ("2001:DB8::1", "2001:db8::1", True), ("[2001:db8::1]:443", "2001:db8::1", True),
        ("[2001:db8::1]:444", "2001:db8::1", False), ("198.51.100.1:443", "198.51.100.1", True),
        ("100.1", "198.51.100.1", False), ("100.1:443", "198.51.100.1", False),
    ],
)  # fmt: skip
def test_server_matches(wanted, server, means):
    assert server_matches(wanted, server, 443) is means


def test_decisions_survive_the_wire(make_decision):
    message = DecisionMessage.of(make_decision(3))
    assert msgspec.json.decode(msgspec.json.encode(message), type=DecisionMessage) == message
