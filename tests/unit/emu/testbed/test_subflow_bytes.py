from ipaddress import ip_address

from cedos.model import FlowKey, NetworkKind
from emu.testbed.access import ADDRESSES
from emu.testbed.counters import CarriedBytes, by_connection

WIFI, CELLULAR = (ADDRESSES[kind] for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR))


def key(local: str, port: int, remote: str = "198.51.100.3") -> FlowKey:
    return FlowKey(ip_address(local), port, ip_address(remote), 80)


def test_connections_that_share_a_port_are_counted_each_by_itself() -> None:
    found = by_connection(
        {key(WIFI, 5000): 150_000, key(CELLULAR, 5000, "198.51.100.4"): 2_200_000}, {}
    )
    assert found[WIFI, 5000, "198.51.100.3"] == CarriedBytes(150_000, 0)
    assert found[CELLULAR, 5000, "198.51.100.4"] == CarriedBytes(0, 2_200_000)


def test_subflows_of_one_connection_are_one() -> None:
    subflows = {key(WIFI, 5000): 100, key(CELLULAR, 6000): 200}
    found = by_connection(subflows, dict.fromkeys(subflows, 7))
    assert found[WIFI, 5000, "198.51.100.3"] == CarriedBytes(100, 200)
