"""Rules and routes as people read them."""

from ipaddress import ip_address, ip_network

from cedos.kernel.policy_routing import Route

EVERYTHING = ip_network("0.0.0.0/0")


def test_a_route_names_its_interface_as_people_do() -> None:
    gateway = ip_address("192.0.2.1")
    assert str(Route(7, EVERYTHING, 1, gateway)) == "-4 route default via 192.0.2.1 dev lo table 7"
    source = ip_address("192.0.2.2")
    assert str(Route(7, EVERYTHING, 1, source=source)) == (
        "-4 route default dev lo table 7 src 192.0.2.2"
    )
    gone = 2**30
    assert str(Route(7, EVERYTHING, gone)) == f"-4 route default dev #{gone} table 7"
