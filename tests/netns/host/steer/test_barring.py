"""Barred networks: programs are refused there at once, whatever they speak; everything else goes on."""

import json
import socket
import struct
import threading
import time

import pytest
from kit.steered import steered, steering_of

from cedos.host.steer.kernel import iptables

GUEST = {4: "10.77.0.2", 6: "2001:db8:77::2"}
ROUTER = {4: "10.77.0.1", 6: "2001:db8:77::1"}
SERVER = {4: "198.51.100.1", 6: "2001:db8:100::1"}
GATEWAY = {4: "192.168.44.1", 6: "2001:db8:44::1"}
FAR = {4: "198.51.100.9", 6: "2001:db8:100::9"}
AT_ONCE_S = 0.5
TAKEN = 4000


def refused(act, *errors):
    began_s = time.monotonic()
    with pytest.raises(errors or (ConnectionError, PermissionError)):
        act()
    assert time.monotonic() - began_s < AT_ONCE_S


def echoed(connection, line=b"still here"):
    connection.settimeout(5)
    connection.sendall(line)
    return connection.recv(100)


@steered(unchanged=True)
async def test_programs_are_refused_at_once_and_let_on_again_at_once(host, steering):
    def while_barred(version, lte):
        refused(lambda: host.connect(version, bind=lte), ConnectionRefusedError)
        refused(lambda: host.connect(version, 262, bind=lte), ConnectionRefusedError)
        with host.client.entered():
            asking = socket.socket(*family(version, socket.SOCK_DGRAM))
        with asking:
            asking.bind((lte, 0))
            refused(lambda: asking.sendto(b"who", (SERVER[version], 8001)), PermissionError)
        # The other network, and this host's own services.
        assert host.seen_tcp(version) == host.address("wlan0", version)
        assert host.seen_udp(version) == host.address("wlan0", version)
        assert echoed_on_loopback(host, version)
        # Nobody from outside gets in, and hears so.
        with host.server.entered():
            knocking = socket.socket(*family(version))
            sending = socket.socket(*family(version, socket.SOCK_DGRAM))
        with knocking, sending:
            knocking.settimeout(5)
            refused(lambda: knocking.connect((lte, TAKEN)), ConnectionRefusedError)
            sending.settimeout(5)
            sending.connect((lte, TAKEN))
            sending.send(b"unasked")
            refused(lambda: sending.recv(1), ConnectionRefusedError)

    addresses = {version: host.address("lte0", version) for version in (4, 6)}
    idle = [host.connect(version, bind=lte) for version, lte in addresses.items()]
    others = [host.connect(version) for version in addresses]
    await steering.barring.bar(["lte0"])
    for one in idle:
        refused(lambda one=one: echoed(one), ConnectionResetError)
    for version, lte in addresses.items():
        with host.client.entered():
            serving = socket.create_server((lte, TAKEN), family=family(version)[0])
            taking = socket.socket(*family(version, socket.SOCK_DGRAM))
        with serving, taking:
            taking.bind((lte, TAKEN))
            taking.setblocking(False)
            while_barred(version, lte)
            with pytest.raises(BlockingIOError):
                taking.recv(100)
    assert [echoed(one) for one in others] == [b"still here"] * 2
    await steering.barring.bar([])
    for version, lte in addresses.items():
        assert host.seen_tcp(version, bind=lte) == lte


def family(version, kind=socket.SOCK_STREAM):
    return (socket.AF_INET if version == 4 else socket.AF_INET6), kind


def echoed_on_loopback(host, version):
    with host.client.entered():
        local = "::1" if version == 6 else "127.0.0.1"
        up = socket.create_server((local, 0), family=family(version)[0])
        with up, socket.create_connection(up.getsockname()[:2], timeout=5) as one:
            accepted, _ = up.accept()
            with accepted:
                accepted.sendall(b"x")
                return one.recv(1) == b"x"


@steered()
async def test_downloads_at_full_speed_end_at_both_ends(host, steering):
    ended = []

    def pour(listening):
        pouring, _ = listening.accept()
        with pouring:
            try:
                while True:
                    pouring.sendall(bytes(1 << 16))
            except ConnectionError as error:
                ended.append(error)

    def drink(connection):
        try:
            while connection.recv(1 << 20):
                pass
        except ConnectionError as error:
            ended.append(error)

    threads = []
    for version in (4, 6):
        with host.server.entered():
            listening = socket.create_server(("", 8002 + version), family=family(version)[0])
        host.sockets.append(listening)
        threads.append(threading.Thread(target=pour, args=(listening,)))
        lte = host.address("lte0", version)
        connection = host.connect(version, bind=lte, port=8002 + version)
        threads.append(threading.Thread(target=drink, args=(connection,)))
    for thread in threads:
        thread.start()
    await host.until(lambda: received(host) > 4_000_000)
    await steering.barring.bar(["lte0"])
    for thread in threads:
        thread.join(10)
    assert len(ended) == 4

    def quiet():
        carried = received(host)
        time.sleep(0.3)
        return received(host) - carried < 20_000

    # A busy machine delivers later what was sent before.
    await host.until(quiet)


def received(host):
    return int(host.client.run("cat", "/proc/net/dev").stdout.split("lte0:")[1].split()[0])


@steered(unchanged=True)
async def test_mptcp_moves_where_it_can_and_ends_where_it_cannot(host, steering):
    moving = host.connect(4, 262, bind=host.address("lte0", 4))
    assert echoed(moving) == b"still here"
    await host.until(lambda: any(len(c.subflows) == 2 for c in steering.connections.values()))
    await steering.barring.bar(["lte0"])
    assert echoed(moving, b"moved") == b"moved"
    (connection,) = steering.connections.values()
    assert [path.network for path in connection.subflows] == ["wlan0"]
    await steering.barring.bar([])
    # There is a spare again.
    await host.until(
        lambda: (
            {path.network for path in next(iter(steering.connections.values())).subflows}
            == {"wlan0", "lte0"}
        )
    )
    moving.close()
    await steering.networks_changed(host.networks("wlan0"))
    ending = host.connect(4, 262, bind=host.address("lte0", 4))
    assert echoed(ending) == b"still here"
    await steering.barring.bar(["lte0"])
    began_s = time.monotonic()
    with pytest.raises(OSError, match=r"not connected|reset"):
        echoed(ending)
    assert time.monotonic() - began_s < 2.5


def guest_behind(host, guest):
    """A container of which this host forwards to and fro, to a far host over lte0."""
    host.client.ip("link", "add", "guest0", "type", "veth", "peer", "eth0", "netns", guest.name)
    for namespace, link, addresses in ((host.client, "guest0", ROUTER), (guest, "eth0", GUEST)):
        namespace.ip("address", "add", f"{addresses[4]}/24", "dev", link)
        namespace.ip("address", "add", f"{addresses[6]}/64", "dev", link, "nodad")
        namespace.ip("link", "set", link, "up")
    host.client.sysctl("net.ipv4.ip_forward", 1)
    host.client.sysctl("net.ipv6.conf.all.forwarding", 1)
    for version in (4, 6):
        ip, lte = f"-{version}", host.address("lte0", version)
        guest.ip(ip, "route", "add", "default", "via", ROUTER[version])
        host.server.ip(ip, "route", "add", GUEST[version], "via", lte)
        host.client.ip(ip, "route", "add", FAR[version], "via", GATEWAY[version])


def test_what_is_forwarded_is_refused_too(host, make_namespace):
    guest = make_namespace("guest")
    guest_behind(host, guest)

    def connect(version, kind=socket.SOCK_STREAM):
        with guest.entered():
            connecting = socket.socket(*family(version, kind))
        host.sockets.append(connecting)
        connecting.settimeout(5)
        connecting.connect((FAR[version], 8000))
        return connecting

    async def body():
        async with steering_of(host) as steering:
            living = {version: connect(version) for version in (4, 6)}
            assert all(echoed(one) for one in living.values())
            await steering.barring.bar(["lte0"])
            for version, one in living.items():
                refused(lambda one=one: echoed(one), ConnectionResetError)
                refused(lambda version=version: connect(version), ConnectionRefusedError)
                asking = connect(version, socket.SOCK_DGRAM)
                asking.send(b"who")
                refused(lambda asking=asking: asking.recv(100), ConnectionRefusedError)
            await steering.barring.bar([])
            assert all(echoed(connect(version)) for version in living)

    host.run(body)


def test_a_guest_carries_nothing_out_in_resets(host, make_namespace):
    """Containers often may send raw packets; a reset passes the walls, as it ends a connection."""
    guest = make_namespace("guest")
    guest_behind(host, guest)
    with guest.entered():
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    host.sockets.append(raw)

    def left():
        shown = json.loads(host.client.run("ip", "-j", "-s", "link", "show", "lte0").stdout)
        return int(shown[0]["stats64"]["tx"]["bytes"])

    def tries(payload, count):
        before = left()
        reset = struct.pack("!HHIIBBHHH", 9, 8000, 1, 1, 5 << 4, 0x04, 0, 0, 0)
        for _ in range(count):
            raw.sendto(reset + bytes(payload), (FAR[4], 0))
        return left() - before

    async def body():
        async with steering_of(host) as steering:
            await steering.barring.bar(["lte0"])
            assert tries(1000, 500) < 6_000
            assert tries(0, 20_000) < 120_000
            await steering._end_repairs()
            with host.client.entered():
                assert iptables.remove()
            assert tries(1000, 500) < 6_000  # the second wall alone

    host.run(body)


@steered()
async def test_what_keeps_the_network_itself_goes_on(host, steering):
    def asked(version, ours, theirs):
        with host.server.entered():
            serving = socket.socket(*family(version, socket.SOCK_DGRAM))
            serving.bind(("", theirs))
        with host.client.entered():
            asking = socket.socket(*family(version, socket.SOCK_DGRAM))
            asking.bind((host.address("lte0", version), ours))
        with serving, asking:
            serving.settimeout(5)
            asking.settimeout(5)
            asking.sendto(b"an address?", (GATEWAY[version], theirs))
            _, client = serving.recvfrom(100)
            serving.sendto(b"yours", client)
            return asking.recv(100) == b"yours"

    await steering.barring.bar(["lte0"])
    for version in (4, 6):
        # Both ends look each other up anew.
        for namespace in (host.client, host.server):
            namespace.ip(f"-{version}", "neigh", "flush", "dev", "lte0")
    assert asked(4, 68, 67)
    assert asked(6, 546, 547)
    pinged = host.client.run("ping", "-c1", "-W1", "-I", "lte0", GATEWAY[4], check=False)
    assert pinged.returncode != 0


@steered()
async def test_an_interface_that_comes_back_is_barred_as_it_was(host, steering):
    lte = host.address("lte0", 4)

    def connect():
        with host.client.entered():
            bound = socket.socket()
        with bound:
            bound.settimeout(5)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lte0")
            bound.connect((SERVER[4], 8000))

    await steering.barring.bar(["lte0"])
    wlan0, before = host.networks()
    host.client.ip("link", "delete", "lte0")
    await steering.networks_changed([wlan0])
    host.plug("lte0", 44, 200)
    refused(connect, ConnectionRefusedError)  # before any service has said that it is back
    await steering.networks_changed(host.networks())
    assert host.networks()[1].index != before.index
    refused(connect, ConnectionRefusedError)
    await steering.barring.bar([])
    assert host.seen_tcp(4, bind=lte) == lte
