"""The bytes of servers: directly, through gateways, and of the gateways themselves."""

from cedos.api.budgets import NetworkUsage, UsageMessage
from cedos.daemon.budgets import used
from cedos.model import CarriedConnection

METERED = UsageMessage(
    since_unix_s=0.0,
    networks=(NetworkUsage(network="lte0", metered_bytes=1.0, free_bytes=0.0, radio_j=0.0),),
)


def carried(server, gateway, addresses, **sizes):
    return CarriedConnection(
        server=server, port=443, gateway=gateway, addresses=addresses,
        bytes_up=sum(sizes.values()), bytes_by_network=sizes,
    )  # fmt: skip


def shown(tmp_path, living, *through):
    message = used.by_server(METERED, tmp_path / "none.sqlite", living, through)
    return {(each.server, each.gateway): each.bytes_by_network for each in message.servers}


def test_a_gateways_own_entry_is_without_what_it_carried(tmp_path):
    living = {
        "198.51.100.7": {"wlan0": 1000, "lte0": 300},
        "2001:db8::7": {"wlan0": 10},
        "gw.example": {"lte0": 50},
        "github.com": {"wlan0": 5},
    }
    addresses = ("198.51.100.7", "2001:db8::7")
    assert shown(
        tmp_path,
        living,
        carried("github.com", "gw.example", addresses, wlan0=600, lte0=400),
        carried("github.com", "gw.example", addresses, wlan0=100),
        carried("gw.example", "gw.example", addresses, wlan0=20),
    ) == {
        ("github.com", "gw.example"): {"wlan0": 700, "lte0": 400},
        ("gw.example", "gw.example"): {"wlan0": 20},
        ("gw.example", None): {"wlan0": 290},
        ("github.com", None): {"wlan0": 5},
    }


def test_a_gateway_with_two_names_is_one(tmp_path):
    assert shown(
        tmp_path,
        {"198.51.100.7": {"wlan0": 1000}, "198.51.100.8": {"wlan0": 1}},
        carried("a.example", "gw.example", ("198.51.100.7",), wlan0=300),
        carried("b.example", "198.51.100.7", ("198.51.100.7", "198.51.100.8"), wlan0=200),
        carried("c.example", "other.example", ("198.51.100.9",), wlan0=400),
    ) == {
        ("a.example", "gw.example"): {"wlan0": 300},
        ("b.example", "198.51.100.7"): {"wlan0": 200},
        ("c.example", "other.example"): {"wlan0": 400},
        ("gw.example", None): {"wlan0": 501},
    }
