"""New flows take the network that was chosen, and nothing else is disturbed."""

import os
import socket
import struct
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.namespaces import tun
from kit.steered import steered, steering_of

from cedos.errors import SteeringError
from cedos.host.monitor.links import KernelTables
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.steering import Steering

both = pytest.mark.parametrize("version", [4, 6])


@both
@steered()
async def test_new_flows_take_the_default(host, steering, version):
    for name in ("lte0", "wlan0", "lte0"):
        steering.set_default(name)
        assert host.seen_tcp(version) == host.address(name, version)
        assert host.seen_udp(version) == host.address(name, version)
    steering.set_default(None)
    assert host.seen_tcp(version) == host.address("wlan0", version)


@pytest.mark.parametrize("default", ["wlan0", "lte0", None])
@steered()
async def test_a_lease_for_another_address_leaves_no_gap(host, steering, default):
    """Routes that named the old address refused all that was new until the daemon had followed."""
    steering.set_default(default)
    for name in ("wlan0", "lte0"):
        old = host.address(name, 4)
        new = old.removesuffix("2") + "9"
        host.client.ip("address", "add", f"{new}/25", "dev", name)
        host.client.ip("address", "del", f"{old}/24", "dev", name)
        if name == (default or "wlan0"):
            assert host.seen_tcp(4) == host.seen_udp(4) == new


@both
@steered(default="lte0")
async def test_a_living_tcp_flow_stays_on_its_network_and_unbroken(host, steering, version):
    living = host.connect(version)
    steering.set_default("wlan0")
    before = _sent_packets(host, "wlan0")
    for _ in range(20):
        living.sendall(b"x" * 1000)
        assert living.recv(1000)
    # Neighbour discovery may add a packet or two, the flow's would be forty.
    assert _sent_packets(host, "wlan0") - before < 10
    assert host.seen_tcp(version) == host.address("wlan0", version)


@both
@steered(default="wlan0")
async def test_a_destination_has_its_own_network(host, steering, version):
    other = {4: "198.51.100.7", 6: "2001:db8:100::7"}[version]
    steering.set_destination(other, None, "lte0")
    assert host.seen_tcp(version, to=other) == host.address("lte0", version)
    assert host.seen_tcp(version) == host.address("wlan0", version)
    steering.set_destination(other, None, None)
    assert host.seen_tcp(version, to=other) == host.address("wlan0", version)
    everybody = "0.0.0.0/0" if version == 4 else "::/0"
    steering.set_destination(everybody, 8000, "lte0", protocol="tcp")
    assert host.seen_tcp(version) == host.address("lte0", version)
    assert host.seen_udp(version) == host.address("wlan0", version)


@steered()
async def test_each_networks_resolver_is_asked_through_that_network(host, steering):
    for default in ("wlan0", "lte0"):
        steering.set_default(default)
        assert host.seen_tcp(4, to="198.51.100.3") == host.address("wlan0", 4)
        assert host.seen_tcp(4, to="198.51.100.4") == host.address("lte0", 4)


@both
def test_a_network_that_names_a_ruled_host_its_resolver_does_not_draw_its_connections(
    host, version
):
    """The network's DHCP server names its resolvers, and named a bank's web server among them."""
    server = ip_address({4: "198.51.100.1", 6: "2001:db8:100::1"}[version])
    mine = host.address("lte0", version)

    async def body():
        async with Steering(host.directory) as steering:
            await steering.networks_changed(
                [
                    replace(each, resolvers=(server,)) if each.name == "wlan0" else each
                    for each in host.networks()
                ]
            )
            steering.set_default("lte0")
            assert host.seen_tcp(version) == host.address("wlan0", version)
            for place in ((str(server), None), (str(server), 8000)):
                steering.set_ruled({place: "lte0"})
                assert host.seen_tcp(version) == mine
                steering.set_ruled({place: ""})
                with pytest.raises(OSError, match=r"unreachable|refused"):
                    host.seen_tcp(version)
                steering.set_ruled({place: None})

    host.run(body)


@both
def test_local_networks_and_split_routes_are_left_alone(host, version):
    lan = {4: "192.168.43.1", 6: "2001:db8:43::1"}[version]
    inside = {4: "198.51.100.9", 6: "2001:db8:100::9"}[version]
    gateway = lan

    async def body():
        length = 32 if version == 4 else 128
        host.client.ip(f"-{version}", "route", "add", f"{inside}/{length}", "via", gateway)
        async with steering_of(host, default="lte0"):
            assert host.seen_tcp(version, to=lan) == host.address("wlan0", version)
            assert host.seen_tcp(version, to=inside) == host.address("wlan0", version)
            assert host.seen_tcp(version) == host.address("lte0", version)

    host.run(body)


def test_forwarded_packets_of_containers_are_left_alone(host):
    async def body():
        host.client.ip("link", "add", "docker0", "type", "bridge")
        host.client.ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
        host.client.ip("link", "set", "docker0", "up")
        host.client.sysctl("net.ipv4.ip_forward", 1)
        async with steering_of(host, default="lte0"):
            way = host.client.ip(
                "route", "get", "198.51.100.1", "from", "172.17.0.2", "iif", "docker0"
            )
            assert "dev wlan0" in way

    host.run(body)


@steered(default="lte0")
async def test_a_full_tunnel_keeps_the_default_and_is_reported(host, steering):
    tunnel = tun(host.client, "vpn0")
    try:
        host.client.ip("addr", "add", "10.8.0.2/24", "dev", "vpn0")
        host.client.ip("link", "set", "vpn0", "up")
        host.client.ip("route", "add", "default", "dev", "vpn0", "metric", "1")
        await host.until(lambda: any("vpn0" in text for text in steering.problems))
        assert "dev vpn0" in host.client.ip("route", "get", "198.51.100.1")
        steering.set_default("wlan0")
        assert "dev vpn0" in host.client.ip("route", "get", "198.51.100.1")
        # IPv6 is not in it.
        assert host.seen_tcp(6) == host.address("wlan0", 6)
    finally:
        os.close(tunnel)
    await host.until(lambda: not any("vpn0" in text for text in steering.problems))
    assert host.seen_tcp(4) == host.address("wlan0", 4)


def test_a_full_tunnel_by_rule_keeps_the_default(host):
    async def body():
        tunnel = tun(host.client, "wg0")
        try:
            host.client.ip("link", "set", "wg0", "up")
            # As wg-quick does it.
            host.client.ip("route", "add", "default", "dev", "wg0", "table", "51820")
            host.client.ip("rule", "add", "not", "fwmark", "51820", "table", "51820")
            host.client.ip("rule", "add", "table", "main", "suppress_prefixlength", "0")
            async with steering_of(host, default="lte0") as steering:
                assert any("wg0" in text for text in steering.problems)
                assert "dev wg0" in host.client.ip("route", "get", "198.51.100.1")
                assert "dev wg0" in host.client.ip(
                    "route", "get", "198.51.100.1", "from", host.address("lte0", 4)
                )
        finally:
            os.close(tunnel)

    host.run(body)


def test_two_phones_with_one_subnet_are_told_apart(host):
    """Both phones hand out 192.168.43.0/24, as many do."""
    for namespace, last in ((host.client, 3), (host.server, 1)):
        namespace.ip("addr", "flush", "dev", "lte0")
        namespace.ip("addr", "add", f"192.168.43.{last}/24", "dev", "lte0")
    networks = host.networks()
    wlan0, lte0 = networks[0], networks[0]
    lte0 = replace(
        networks[1],
        addresses=(ip_interface("192.168.43.3/24"),),
        next_hops=wlan0.next_hops[:1],
    )

    async def body():
        async with Steering(host.directory) as steering:
            await steering.networks_changed([wlan0, lte0])
            for address, device in (("192.168.43.2", "wlan0"), ("192.168.43.3", "lte0")):
                for remote in ("198.51.100.1", "192.168.43.1"):
                    way = host.client.ip("route", "get", remote, "from", address)
                    assert f"dev {device}" in way

    host.run(body)


def test_programs_bound_to_a_local_networks_address_get_out_as_before(host):
    """An interface with an address and no default route: virtual machines', a printer's."""
    host.client.ip("link", "add", "eth1", "type", "veth", "peer", "eth1", "netns", host.server.name)
    host.server.ip("link", "set", "eth1", "up")
    host.client.ip("address", "add", "192.168.56.2/24", "dev", "eth1")
    host.client.ip("link", "set", "eth1", "up")

    def way():
        words = host.client.ip("route", "get", "198.51.100.1", "from", "192.168.56.2").split()
        return words[words.index("dev") + 1]

    async def body():
        eth1 = replace(
            host.networks()[0],
            name="eth1",
            interface="eth1",
            index=socket.if_nametoindex("eth1"),  # within the client: `host.run`
            addresses=(ip_interface("192.168.56.2/24"),),
            next_hops=(),
            resolvers=(),
            up=False,
        )
        async with Steering(host.directory) as steering:
            await steering.networks_changed([*host.networks(), eth1])
            for name in ("wlan0", "lte0"):
                steering.set_default(name)
                assert way() == name

    assert way() == "wlan0"
    host.run(body)


@both
@steered(default="lte0")
async def test_a_network_that_vanishes_takes_no_new_flows_and_its_old_ones_wait(
    host, steering, version
):
    living = host.connect(version)
    await steering.networks_changed(host.networks("lte0"))
    # What is bound to the network that is gone does not leave by another one.
    living.sendall(b"hello")
    living.settimeout(0.3)
    with pytest.raises(TimeoutError):
        living.recv(100)
    assert host.seen_tcp(version) == host.address("wlan0", version)
    with pytest.raises(SteeringError, match="not up"):
        steering.set_default("lte0")
    await steering.networks_changed(host.networks())
    living.settimeout(5)
    assert living.recv(100) == b"hello"


def test_foreign_rules_and_routes_stay(host):
    async def body():
        host.client.ip("rule", "add", "pref", "100", "to", "203.0.113.0/24", "table", "77")
        host.client.ip("route", "add", "203.0.113.0/24", "via", "192.168.44.1", "table", "77")
        before = host.state()
        async with steering_of(host, default="lte0"):
            assert "dev lte0 table 77" in host.client.ip("route", "get", "203.0.113.5")
        assert host.state() == before

    host.run(body)


def test_bad_wishes_are_refused_with_what_would_be_right(host):
    async def body():
        async with steering_of(host) as steering:
            with pytest.raises(SteeringError, match=r"192\.0\.2\.0/24"):
                steering.set_destination("nonsense", None, "lte0")
            with pytest.raises(SteeringError, match="no network"):
                steering.set_destination("192.0.2.0/24", None, "usb7")
            with pytest.raises(SteeringError, match="port"):
                steering.set_destination("192.0.2.0/24", 70000, "lte0")
            with pytest.raises(SteeringError, match="not there"):
                steering.set_default("usb7")
        with pytest.raises(SteeringError, match="closed"):
            steering.set_default("lte0")

    host.run(body)


def _sent_packets(host, interface):
    words = host.client.ip("-s", "link", "show", interface).split("TX:")[1].split()
    return int(words[words.index("bytes") + 7])


def test_nothing_leads_round_a_user_s_rule(host):
    """A hint about a network around it, one about a port, and `cedos exec` did; so did a lost link."""
    server = {4: "198.51.100.1", 6: "2001:db8:100::1"}

    def reached(version, mark=0):
        with host.client.entered():
            program = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET)
        with program:
            program.settimeout(5)
            program.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, struct.pack("=I", mark))
            try:
                program.connect((server[version], 8000))
            except OSError:
                return "refused"
            return str(program.getsockname()[0])

    async def body():
        async with steering_of(host, default="lte0") as steering:
            for version, around in ((4, "198.51.100.0/24"), (6, "2001:db8:100::/64")):
                everywhere = "0.0.0.0/0" if version == 4 else "::/0"
                for place in (around, everywhere, server[version]):
                    steering.set_destination(place, 8000, "lte0")
            steering.set_mark(0xCE000007, "lte0")
            for version in (4, 6):
                assert reached(version) == host.address("lte0", version)
            rules = {(f"{each}", None): "wlan0" for each in server.values()}
            steering.set_ruled(rules)
            for version in (4, 6):
                for mark in (0, 0xCE000007):
                    assert reached(version, mark) == host.address("wlan0", version)
                # What is known of the same place ends; the rule stays.
                steering.set_destination(server[version], 8000, None)
                assert reached(version) == host.address("wlan0", version)
            # Before anybody has said so, and after the network is no more.
            host.client.ip("link", "set", "wlan0", "down")
            for networks in (None, host.networks("wlan0"), host.networks()[1:]):
                if networks is not None:
                    await steering.networks_changed(networks)
                for version in (4, 6):
                    for mark in (0, 0xCE000007):
                        assert reached(version, mark) == "refused"
            steering.set_ruled(dict.fromkeys(rules))
            for version in (4, 6):
                assert reached(version) == host.address("lte0", version)

    before = host.state()
    host.run(body)
    host.client.ip("link", "set", "wlan0", "up")
    assert [line for line in host.state().splitlines() if "32" in line and "lookup 73" in line] == [
        line for line in before.splitlines() if "32" in line and "lookup 73" in line
    ]


def test_a_neighbour_that_announces_thousands_of_routers_holds_nothing_up(host):
    """10,000 took 260 MB, more than the unit has, and each look 0.7 s of the event loop."""
    count = 4_000
    lines = [
        *(f"route add default via fe80::{n:x} dev wlan0 metric 99 proto ra" for n in range(count)),
        *(f"route add 2001:db8:{n:x}::/64 dev wlan0 proto kernel" for n in range(0x200, 0x400)),
    ]
    file = host.directory / "announced"
    file.write_text("\n".join(lines))
    host.client.run("ip", "-6", "-force", "-batch", str(file), check=False)
    host.client.ip("-6", "route", "add", "default", "via", "fe80::1", "dev", "lte0", "proto", "ra")
    with host.client.entered():
        kernel = LinuxKernel()
    routes = [each for each in kernel.routes() if each.version == 6]
    kernel.close()
    assert len(routes) < 80
    assert {each.metric for each in routes if each.protocol == 9} >= {99, 1024}

    async def body():
        tables = KernelTables()
        try:
            read = await tables.read()
        finally:
            tables.close()
        assert sum(map(len, read.routes.values())) < 80
        assert len(read.routes) == 2
        async with steering_of(host, default="lte0"):
            assert host.seen_tcp(6) == host.address("lte0", 6)

    host.run(body)
