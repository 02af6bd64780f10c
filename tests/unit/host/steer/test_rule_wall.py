"""The wall of users' rules on a kernel in memory: what is forbidden at which interface."""

from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from cedos.host.steer import rule_wall
from cedos.host.steer.kernel.rule_filter import element, later_parts, own_address
from cedos.host.steer.routing_rules import contains
from cedos.model import Translator

PLACE, WIDE = ("198.51.100.7/32", None), ("0.0.0.0/0", 443)


def said(world, network, prefix, port=None):
    return world.kernel.forbidden.get(network.index, {}).get(element(ip_network(prefix), port))


@pytest.fixture
async def steering(steering, world):
    yield steering
    await steering.close()
    assert not any(world.kernel.forbidden.values()), "it is undone at the end"


async def test_a_place_is_forbidden_at_the_interfaces_of_its_networks(world, steering):
    steering.forbid({PLACE: ["lte0"]})
    assert said(world, world.lte0, PLACE[0]) is True
    assert said(world, world.wlan0, PLACE[0]) is None, "an interface without any has no filter"
    moved = replace(world.lte0, index=99, interface="wwan7")
    await steering.networks_changed([world.wlan0, moved])
    assert not world.kernel.forbidden[world.lte0.index]
    assert said(world, moved, PLACE[0]) is True
    steering.forbid({PLACE: None})
    assert not world.kernel.forbidden[99]


async def test_two_networks_of_one_interface_are_forbidden_together(world, steering):
    both = replace(world.lte0, name="second")
    await steering.networks_changed([world.wlan0, world.lte0, both])
    steering.forbid({PLACE: ["lte0"]})
    assert said(world, world.lte0, PLACE[0]) is None
    steering.forbid({PLACE: ["lte0", "second"]})
    assert said(world, world.lte0, PLACE[0]) is True


async def test_own_subnets_and_what_stays_on_the_link_are_exceptions(world, steering):
    own = (ip_interface("10.7.0.2/24"), ip_interface("8.8.8.2/24"))
    lte0 = replace(world.lte0, addresses=own)
    await steering.networks_changed([world.wlan0, lte0])
    steering.forbid({WIDE: ["lte0"], ("169.254.7.7/32", None): ["lte0"]})
    for prefix in ("10.7.0.0/24", "169.254.0.0/16"):
        assert said(world, lte0, prefix, 443) is False
        assert said(world, lte0, prefix) is None, "no rule for all ports is around it"
    assert said(world, lte0, "169.254.7.7/32") is True, "a rule for just that counts"
    assert said(world, lte0, "8.8.8.0/24") is None, "any network may give public addresses"
    assert said(world, lte0, *WIDE) is True
    parts = world.kernel.forbidden[lte0.index]
    assert parts[later_parts(ip_network(WIDE[0]))] is True, "parts of datagrams have no port"
    assert parts[later_parts(ip_network("10.7.0.0/24"))] is False


async def test_a_refusal_is_a_problem_until_it_is_made_good(world, steering):
    world.kernel.no_wall = True
    steering.forbid({PLACE: ["lte0"]})
    assert any("your rules hold by routes alone" in each for each in steering.problems)
    world.kernel.no_wall = False
    steering._look()
    assert said(world, world.lte0, PLACE[0]) is True
    assert not any("your rules" in each for each in steering.problems)


async def test_a_rule_for_a_port_elsewhere_opens_nothing_within_the_own_subnet(world, steering):
    own = world.lte0.addresses[0].network
    host = f"{own.network_address + 9}/32"
    steering.forbid({(host, None): ["lte0"], ("203.0.113.77/32", 443): ["lte0"]})
    assert said(world, world.lte0, str(own), 443) is None
    steering.forbid({("0.0.0.0/0", 443): ["lte0"]})
    assert said(world, world.lte0, str(own), 443) is False
    assert said(world, world.lte0, host, 443) is True, "its own rule holds for each port"


async def test_many_ports_and_addresses_are_compared_once_each(world, steering, monkeypatch):
    """With 60 rules of ports, each new address of a ruled name stopped the daemon for half a second."""
    lte0 = replace(world.lte0, addresses=(ip_interface("10.7.0.2/24"),))
    await steering.networks_changed([world.wlan0, lte0])
    ports = range(1000, 1060)
    steering.forbid({("0.0.0.0/0", port): ["lte0"] for port in ports})
    steering.forbid({("10.7.0.9/32", None): ["lte0"]})
    steering.forbid({(f"198.51.{i >> 8}.{i & 255}/32", None): ["lte0"] for i in range(1000)})
    compared = []

    def counted(*both):
        compared.append(both)
        return contains(*both)

    monkeypatch.setattr(rule_wall, "contains", counted)
    steering.forbid({PLACE: ["lte0"]})
    assert len(compared) < 10_000
    for port in ports:
        assert said(world, lte0, "10.7.0.0/24", port) is False
        assert said(world, lte0, "10.7.0.9/32", port) is True


async def test_what_a_full_table_took_goes_at_the_end_too(world, steering, monkeypatch):
    """A filter that was refused in part stayed at the interface when the daemon ended."""
    steering.forbid({PLACE: ["lte0"]})
    takes, before = world.kernel.forbid, dict(world.kernel.forbidden[world.lte0.index])

    def full(index, changes):
        takes(index, changes[:1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(world.kernel, "forbid", full)
        steering.forbid({(f"203.0.113.{i}/32", None): ["lte0"] for i in range(3)})
    assert len(world.kernel.forbidden[world.lte0.index]) == len(before) + 1
    steering.forbid({(f"203.0.113.{i}/32", None): None for i in range(3)})
    assert world.kernel.forbidden[world.lte0.index] == before


async def test_connections_live_from_the_addresses_that_the_interface_has_now(world, steering):
    translator = Translator("clat", 98, (ip_interface("192.0.0.4/32"),))
    steering.forbid({PLACE: ["lte0"]})
    for last in (2, 3):
        own = (ip_interface(f"10.7.0.{last}/24"), ip_interface(f"2001:db8::{last}/64"))
        lte0 = replace(world.lte0, addresses=own, translator=translator)
        await steering.networks_changed([world.wlan0, lte0])
        for at in (lte0, translator):
            said_there = world.kernel.forbidden[at.index]
            wanted = {own_address(each.ip) for each in at.addresses}
            assert wanted == {each for each in said_there if each[5] == 2}
