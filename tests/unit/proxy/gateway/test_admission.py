"""Destinations that the gateway may connect to; closed unless its settings open them."""

import errno
from ipaddress import IPv4Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.global_unicast import meanings
from cedos.proxy.gateway import origin
from cedos.proxy.gateway.origin import DestinationRules
from cedos.proxy.http import RefusedError


def forbidden(where, address, port=443):
    try:
        where.check(address, port)
    except RefusedError as error:
        return error.kind if error.status == 403 else f"{error.status}"
    return None


def test_others_are_within_reach_unless_denied():
    assert forbidden(DestinationRules(), "8.8.8.1") is None
    assert forbidden(DestinationRules(), "2001:4860::1") is None
    denying = DestinationRules(denied=[ip_network("8.8.8.0/24"), ip_network("::/0")])
    assert forbidden(denying, "8.8.8.1") == "destination_ip_prohibited"
    assert forbidden(denying, "::ffff:8.8.8.1") == "destination_ip_prohibited"
    assert forbidden(denying, "8.8.4.4") is None


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "172.31.0.1", "192.168.1.1", "100.64.0.1", "fd00::1", "::ffff:10.0.0.1",
     "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"],
)  # fmt: skip
def test_private_and_carriers_networks_are_out_of_reach_unless_allowed(address):
    assert forbidden(DestinationRules(), address) == "destination_ip_prohibited"
    everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert forbidden(DestinationRules(inside=everywhere), address) is None
    other = DestinationRules(inside=[ip_network("10.200.0.0/16")])
    assert forbidden(other, address) == "destination_ip_prohibited"


@pytest.mark.parametrize("address", ["64:ff9b::7f00:1", "2002:7f00:1::1", "64:ff9b::a9fe:a9fe"])
def test_no_wrapping_leads_to_the_host_itself(address):
    inside = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert forbidden(DestinationRules(inside=inside), address) == "destination_ip_prohibited"


LINKS = ["169.254.169.254", "fe80::1", "fe80::a9fe:a9fe%eth0", "::ffff:169.254.169.254",
         "64:ff9b::a9fe:a9fe"]  # fmt: skip


@pytest.mark.parametrize("address", LINKS)
def test_link_local_addresses_want_a_network_of_their_own(address):
    everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0"), ip_network("169.0.0.0/8")]
    wide = DestinationRules(inside=everywhere, local=True)
    assert forbidden(wide, address) == "destination_ip_prohibited"
    links = [ip_network("169.254.169.254/32"), ip_network("fe80::/10")]
    assert forbidden(DestinationRules(inside=links), address) is None
    assert forbidden(DestinationRules(inside=links), "169.254.169.253") is not None


def test_ports_that_strangers_would_misuse_are_out_of_reach_unless_allowed():
    for port in (22, 25):
        assert forbidden(DestinationRules(), "8.8.8.1", port) == "destination_ip_prohibited"
        assert forbidden(DestinationRules(ports=[port]), "8.8.8.1", port) is None
    assert forbidden(DestinationRules(ports=[22]), "8.8.8.1", 25) is not None
    assert forbidden(DestinationRules(), "8.8.8.1", 587) is None


def test_itself_is_never_within_reach():
    local = DestinationRules([3128], local=True)
    assert forbidden(local, "127.0.0.1", 8080) is None
    for address in ("127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"):
        assert forbidden(local, address, 3128) == "proxy_loop_detected"
    assert forbidden(local, "8.8.8.1", 3128) is None


# IPv4 addresses in every form that some translator takes for them.
WRAPPERS = {
    "mapped": lambda packed: bytes(10) + b"\xff\xff" + packed,
    "compatible": lambda packed: bytes(12) + packed,
    "translated": lambda packed: bytes(8) + b"\xff\xff\0\0" + packed,
    "NAT64": lambda packed: bytes.fromhex("0064ff9b") + bytes(8) + packed,
    "local NAT64 /48": lambda packed: (
        bytes.fromhex("0064ff9b0001") + packed[:2] + b"\0" + packed[2:] + bytes(5)
    ),
    "local NAT64 /56": lambda packed: (
        bytes.fromhex("0064ff9b000107") + packed[:1] + b"\0" + packed[1:] + bytes(4)
    ),
    "local NAT64 /64": lambda packed: bytes.fromhex("0064ff9b0001000100") + packed + bytes(3),
    "local NAT64 /96": lambda packed: bytes.fromhex("0064ff9b0001") + bytes(6) + packed,
    "6to4": lambda packed: b"\x20\x02" + packed + bytes(9) + b"\1",
    "Teredo's server": lambda packed: bytes.fromhex("20010000") + packed + bytes(7) + b"\1",
    "Teredo's client": lambda packed: (
        bytes.fromhex("20010000") + bytes(8) + bytes(255 - each for each in packed)
    ),
    "ISATAP": lambda packed: bytes.fromhex("200148600000000100005efe") + packed,
    "ISATAP of a public address": lambda packed: bytes.fromhex("200148600000000102005efe") + packed,
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@given(network=st.sampled_from(["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
                                "192.168.0.0/16", "168.63.129.16/32", "198.18.0.0/15",
                                "100.64.0.0/10", "224.0.0.0/4"]), data=st.data())  # fmt: skip
def test_no_translator_leads_to_where_ipv4_may_not_go(wrapper, network, data):
    packed = data.draw(st.ip_addresses(network=network)).packed
    address = str(ip_address(WRAPPERS[wrapper](packed)))
    assert forbidden(DestinationRules(), address) == "destination_ip_prohibited"
    # Who lets clients into IPv6's local prefixes does not let them to these.
    six = DestinationRules(inside=[ip_network("::/0")])
    if not wrapper.startswith("local NAT64"):
        assert forbidden(six, address) == "destination_ip_prohibited"
    assert IPv4Address(packed) in meanings(address)


@pytest.mark.parametrize("wrapper", ["mapped", "NAT64", "6to4", "ISATAP"])
def test_translators_lead_to_the_public(wrapper):
    address = str(ip_address(WRAPPERS[wrapper](ip_address("8.8.8.8").packed)))
    assert forbidden(DestinationRules(), address) is None


@given(st.ip_addresses())
def test_what_python_does_not_take_for_global_is_refused(address):
    address = getattr(address, "ipv4_mapped", None) or address
    if not address.is_global or address.is_multicast:
        assert forbidden(DestinationRules(), str(address)) is not None


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1",
     "fe80::1%lo", "224.0.0.1", "ff02::1", "255.255.255.255", "168.63.129.16", "198.18.0.1",
     "198.19.255.255", "192.0.0.8", "192.0.2.1", "198.51.100.1", "203.0.113.1", "192.88.99.1",
     "240.0.0.1", "::10.0.0.1", "::8.8.8.8", "::ffff:0:10.0.0.1", "::ffff:0:8.8.8.8",
     "64:ff9b:1::8.8.8.8", "64:ff9b:1:a00:0:100::", "2001::1",
     "2001:0:4136:e378:8000:63bf:f5ff:fffe", "2001:2::1", "2001:10::1", "2001:db8::1", "3fff::1",
     "100::1", "100:0:0:1::1", "5f00::1", "fec0::1", "4000::1", "e000::1", "fe00::1"],
)  # fmt: skip
def test_only_global_unicast_addresses_are_within_reach(address):
    assert forbidden(DestinationRules(), address) == "destination_ip_prohibited"


@pytest.mark.parametrize(
    "address", ["168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"]
)
def test_clouds_secrets_want_a_network_of_their_own(address):
    everywhere = [ip_network("0.0.0.0/0"), ip_network("::/0"), ip_network("100.64.0.0/10")]
    wide = DestinationRules(inside=everywhere, local=True)
    assert forbidden(wide, address) == "destination_ip_prohibited"
    assert forbidden(DestinationRules(inside=[ip_network(address)]), address) is None


def test_an_address_has_no_zone():
    assert meanings("::ffff:192.0.2.1") == [ip_address("192.0.2.1")]
    assert meanings("fe80::1%eth0") == [ip_address("fe80::1")]


def test_an_address_may_be_this_hosts_own_where_no_file_is_left_to_tell(monkeypatch):
    """The gateway took its host's public address for another one's, and then all for its host's."""

    def refuse(*_args):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(origin.socket, "socket", refuse)
    assert forbidden(DestinationRules(), "8.8.8.1") == "503"
