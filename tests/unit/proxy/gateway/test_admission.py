"""Where the gateway may connect; closed unless it is told otherwise."""

from ipaddress import ip_address, ip_network

import pytest

from cedos.proxy.gateway.admission import DestinationRules, plain
from cedos.proxy.http import RefusedError


def forbidden(where: DestinationRules, address: str, port: int = 443) -> str | None:
    try:
        where.check(address, port)
    except RefusedError as error:
        return error.kind if error.status == 403 else f"{error.status}"
    return None


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1",
     "fe80::1%lo", "224.0.0.1", "ff02::1", "255.255.255.255"],
)  # fmt: skip
def test_the_gateways_own_host_and_link_are_out_of_reach(address: str):
    assert forbidden(DestinationRules(), address) == "destination_ip_prohibited"


def test_others_are_within_reach_unless_denied():
    assert forbidden(DestinationRules(), "203.0.113.1") is None
    assert forbidden(DestinationRules(), "2001:db8::1") is None
    denying = DestinationRules(denied=[ip_network("203.0.113.0/24"), ip_network("::/0")])
    assert forbidden(denying, "203.0.113.1") == "destination_ip_prohibited"
    assert forbidden(denying, "::ffff:203.0.113.1") == "destination_ip_prohibited"
    assert forbidden(denying, "203.0.112.1") is None


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "100.100.100.200", "192.0.0.192",
     "fd00:ec2::254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"],
)  # fmt: skip
def test_private_and_carriers_networks_are_out_of_reach_unless_allowed(address: str):
    assert forbidden(DestinationRules(), address) == "destination_ip_prohibited"
    everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert forbidden(DestinationRules(inside=everywhere), address) is None
    other = DestinationRules(inside=[ip_network("10.200.0.0/16")])
    assert forbidden(other, address) == "destination_ip_prohibited"


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "2002:7f00:1::1", "64:ff9b::a9fe:a9fe"])
def test_no_wrapping_leads_to_the_host_itself(address: str):
    inside = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert forbidden(DestinationRules(inside=inside), address) == "destination_ip_prohibited"


LINKS = ["169.254.169.254", "fe80::1", "fe80::a9fe:a9fe%eth0", "::ffff:169.254.169.254",
         "64:ff9b::a9fe:a9fe"]  # fmt: skip


@pytest.mark.parametrize("address", LINKS)
def test_link_local_addresses_want_a_network_of_their_own(address: str):
    everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0"), ip_network("169.0.0.0/8")]
    wide = DestinationRules(inside=everywhere, local=True)
    assert forbidden(wide, address) == "destination_ip_prohibited"
    links = [ip_network("169.254.169.254/32"), ip_network("fe80::/10")]
    assert forbidden(DestinationRules(inside=links), address) is None
    assert forbidden(DestinationRules(inside=links), "169.254.169.253") is not None


def test_ports_that_strangers_would_misuse_are_out_of_reach_unless_allowed():
    for port in (22, 25):
        assert forbidden(DestinationRules(), "203.0.113.1", port) == "destination_ip_prohibited"
        assert forbidden(DestinationRules(ports=[port]), "203.0.113.1", port) is None
    assert forbidden(DestinationRules(ports=[22]), "203.0.113.1", 25) is not None
    assert forbidden(DestinationRules(), "203.0.113.1", 587) is None


def test_itself_is_never_within_reach():
    local = DestinationRules([3128], local=True)
    assert forbidden(local, "127.0.0.1", 8080) is None
    for address in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"):
        assert forbidden(local, address, 3128) == "proxy_loop_detected"
    assert forbidden(local, "203.0.113.1", 3128) is None


def test_an_address_has_one_plain_form():
    assert plain("::ffff:192.0.2.1") == ip_address("192.0.2.1")
    assert plain("fe80::1%eth0") == ip_address("fe80::1")
