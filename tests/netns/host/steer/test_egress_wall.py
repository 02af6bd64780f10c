"""The second wall on a real kernel: what it stops by itself, and that nothing of it is left."""

import asyncio
import json
import socket
import struct
import sys
import time
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import pytest
from kit.steered import steering_of

from cedos.errors import HostError
from cedos.host.steer.kernel import iptables
from cedos.host.steer.kernel.egress_wall import EgressWall
from cedos.host.steer.kernel.rule_filter import element, later_parts, own_address
from cedos.host.steer.rule_wall import RuleWall
from cedos.host.steer.undo import restore

SERVER = {4: "198.51.100.1", 6: "2001:db8:100::1"}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
TCP_PORT, UDP_PORT = 8000, 8001
MPTCP = 262
NEAR = {4: "192.168.44.1", 6: "2001:db8:44::1"}
"""What only lte0 leads to, without a daemon, too."""
FOREIGN = ("filter add dev lte0 egress prio 9 protocol ip bpf da bytecode", "1,6 0 0 0")


@contextmanager
def wall(host):
    with host.client.entered():
        made = EgressWall()
    try:
        yield made
    finally:
        made.close()


def controlled(host, words, *more):
    return host.client.run("tc", *words.split(), *more).stdout


def answered(host, version, **where):
    try:
        host.seen_tcp(version, **where)
    except OSError:
        return False
    return True


def test_nothing_of_a_program_leaves_and_the_interface_is_as_before_afterwards(host):
    before = host.state()
    with wall(host) as made:
        living = host.connect(4, to=NEAR[4])
        assert made.put_up(["lte0", "gone0"])
        assert not made.put_up(["lte0"])
        living.settimeout(0.5)
        living.sendall(b"anything")
        with pytest.raises(TimeoutError):
            living.recv(1)
        for version in (4, 6):
            with host.client.entered():
                asking = socket.socket(
                    socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM
                )
            with asking:
                asking.settimeout(0.3)
                asking.sendto(b"who", (NEAR[version], 8001))
                with pytest.raises(TimeoutError):
                    asking.recv(1)
            assert answered(host, version)  # over the other network
        # A neighbour is still found, and one that is there is still told when it is reset.
        host.client.ip("neigh", "flush", "dev", "lte0")
        found = host.client.run("arping", "-c1", "-w2", "-I", "lte0", "192.168.44.1", check=False)
        assert found.returncode in (0, 127)  # 127: there is no arping here
        assert made.remove([])
        assert not made.remove([])
    assert host.state() == before


def test_interfaces_that_have_gone_cost_nothing(host, monkeypatch):
    """Read them at once: the daemon asked for each, and its event loop stood still for 10 s and more."""
    with wall(host) as made:
        made.put_up(["lte0"])
        asked, ask, dump = [], made._requester.ask, made._requester.dump
        monkeypatch.setattr(made._requester, "ask", lambda *of: asked.append(of) or ask(*of))
        monkeypatch.setattr(made._requester, "dump", lambda *of: asked.append(of) or dump(*of))
        assert not made.put_up(["lte0", *(f"gone{number}" for number in range(100))])
        assert len(asked) < 4
        made.remove([])


def test_filters_of_others_stay(host):
    controlled(host, "qdisc add dev lte0 clsact")
    controlled(host, *FOREIGN)
    before = host.state()
    with wall(host) as made:
        assert made.put_up(["lte0"])
        assert made.remove([])
        assert host.state() == before
        # One that comes while the wall stands stays, too, and keeps what it stands on.
        controlled(host, "qdisc del dev lte0 clsact")
        assert made.put_up(["lte0"])
        controlled(host, *FOREIGN)
        assert made.remove([])
    shown = controlled(host, "filter show dev lte0 egress")
    assert "pref 9 " in shown
    assert "pref 7300 " not in shown


def test_what_a_killed_daemon_has_made_is_taken_down_though_its_filter_was_flushed(host):
    before = host.state()
    with wall(host) as killed:
        assert killed.put_up(["lte0"])
    with wall(host) as made:
        assert not made.put_up(["lte0"])
        controlled(host, "filter del dev lte0 egress")
        assert made.put_up(["lte0"])
        assert made.remove([])
    assert host.state() == before


def test_a_qdisc_for_what_comes_in_is_told_and_gets_no_filter_of_ours(host):
    """On `ingress` the kernel put the filter at what comes in, where nothing took it down again."""
    controlled(host, "qdisc add dev lte0 ingress")
    before = host.state()
    with wall(host) as made:
        for act in (made.put_up, made.put_up):
            with pytest.raises(HostError, match="lte0 has the qdisc `ingress`"):
                act(["lte0", "wlan0"])
            assert host.state() != before
            assert "pref 7300 " not in controlled(host, "filter show dev lte0 ingress")
            assert "pref 7300 " in controlled(host, "filter show dev wlan0 egress")
        assert answered(host, 4, to=NEAR[4])
        assert made.remove([])
        assert host.state() == before
        # It comes in the place of what the wall stands on.
        controlled(host, "qdisc del dev lte0 ingress")
        assert made.put_up(["lte0"])
        controlled(host, "qdisc del dev lte0 clsact")
        controlled(host, "qdisc add dev lte0 ingress")
        with pytest.raises(HostError, match="ingress"):
            made.put_up(["lte0"])
        made.remove([])
    assert host.state() == before


FULL_QUEUE = """
import socket
held = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(20)]
for one in held:
    one.setblocking(False)
    try:
        for _ in range(100):
            one.sendto(bytes(1400), ("192.168.44.1", 9))
    except BlockingIOError:
        pass
"""


@pytest.mark.parametrize("others", [True, False])
def test_what_waits_in_the_queue_does_not_leave(host, others):
    """Behind another program's `clsact` 14.7 MB went out in the 12 s after the wall was up."""
    controlled(host, "qdisc add dev lte0 root tbf rate 1mbit burst 10kb limit 10mb")
    if others:
        controlled(host, "qdisc add dev lte0 clsact")
        controlled(host, *FOREIGN)
    before = host.state()

    def length():
        return json.loads(host.client.ip("-j", "link", "show", "lte0"))[0]["txqlen"]

    def waiting():
        shown = json.loads(host.client.run("tc", "-j", "-s", "qdisc", "show", "dev", "lte0").stdout)
        return next(each["backlog"] for each in shown if each["kind"] == "tbf")

    before_length = length()
    with wall(host) as made:
        host.client.run(sys.executable, "-c", FULL_QUEUE)
        assert waiting() > 500_000
        assert made.put_up(["lte0"])
        assert waiting() == 0
        made.remove([])
    assert length() == before_length
    assert host.state() == before


def test_a_packet_filter_that_nobody_puts_back_opens_nothing(host):
    """As after `kill -9`: the first wall is flushed for good."""

    async def body():
        async with steering_of(host) as steering:
            await steering.barring.bar(["lte0"])
            await steering._end_repairs()
            with host.client.entered():
                assert iptables.remove()
            for version in (4, 6):
                assert not answered(host, version, bind=host.address("lte0", version), limit_s=1)
            await asyncio.sleep(0)

    before = host.state()
    host.run(body)
    assert host.state() == before
    with host.client.entered():
        assert not restore(host.directory).done


def elements(forbidden):
    return {element(ip_network(prefix), port): each for (prefix, port), each in forbidden.items()}


def datagram_comes(host, version, to, interface="lte0", **how):
    """Return whether a bound socket's datagram brings an answer."""
    with host.client.entered():
        asking = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
    with asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        for option in how.get("options", ()):
            asking.setsockopt(*option)
        asking.settimeout(0.5)
        asking.sendto(how.get("data", b"who"), (to, UDP_PORT))
        try:
            return bool(asking.recv(100))
        except TimeoutError:
            return False


def answers_come_anywhere(host):
    for name in ("all", "wlan0", "lte0"):
        host.client.sysctl(f"net.ipv4.conf.{name}.rp_filter", 0)


def sent_packets(host):
    (shown,) = json.loads(host.client.ip("-j", "-s", "link", "show", "lte0"))
    return shown["stats64"]["tx"]["packets"]


def opens(host, version, to, interface="lte0"):
    with host.client.entered():
        connecting = socket.socket(FAMILY[version], socket.SOCK_STREAM)
    with connecting:
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        connecting.settimeout(0.5)
        return connecting.connect_ex((to, TCP_PORT)) == 0


def test_programs_begin_nothing_where_a_rule_forbids_an_interface(host):
    """Sockets that are bound to an interface pass all routing by."""
    answers_come_anywhere(host)
    before = host.state()
    index = host.networks()[1].index
    four, six = (f"{SERVER[version]}/{length}" for version, length in ((4, 32), (6, 128)))
    with wall(host) as made:
        living = host.connect(4, to=NEAR[4])
        made.forbid(index, {})
        assert host.state() == before
        made.forbid(index, elements({(four, None): True, (six, None): True}))
        for version in (4, 6):
            assert not opens(host, version, SERVER[version])
            assert not datagram_comes(host, version, SERVER[version])
            assert opens(host, version, SERVER[version], "wlan0")
            assert datagram_comes(host, version, SERVER[version], "wlan0")
            assert opens(host, version, NEAR[version])
        # The longest prefix counts; a rule for a port before one for all.
        address = own_address(ip_address(host.address("lte0", 4)))
        made.forbid(index, {address: True})
        made.forbid(index, elements({("0.0.0.0/0", None): True, (four, None): False}))
        assert opens(host, 4, SERVER[4])
        assert not opens(host, 4, NEAR[4])
        living.sendall(b"anything")  # what lives goes on
        assert living.recv(8) == b"anything"
        made.forbid(index, elements({(four, None): True, ("0.0.0.0/0", TCP_PORT): False}))
        assert opens(host, 4, SERVER[4])
        assert not datagram_comes(host, 4, SERVER[4])
        # Taken out by another program.
        assert not made.put_back_rules()
        controlled(host, "qdisc del dev lte0 clsact")
        assert datagram_comes(host, 4, SERVER[4])
        assert made.put_back_rules()
        assert not datagram_comes(host, 4, SERVER[4])
        gone = dict.fromkeys([*elements({(four, None): 1, (six, None): 1, ("0.0.0.0/0", None): 1})])
        made.forbid(index, gone)
        made.forbid(index, {element(ip_network("0.0.0.0/0"), TCP_PORT): None, address: None})
        assert opens(host, 4, SERVER[4])
        assert host.state() == before


def test_no_packet_hides_its_destination_or_its_port(host):
    answers_come_anywhere(host)
    index = host.networks()[1].index
    with wall(host) as made:
        made.forbid(index, elements({(f"{SERVER[4]}/32", UDP_PORT): True, ("::/0", None): True}))
        assert not datagram_comes(host, 4, SERVER[4], data=b"who" + bytes(8000))
        assert not datagram_comes(host, 6, SERVER[6], data=b"who" + bytes(8000))
        # A large datagram that waits for its router's hardware address leaves part by part.
        before = sent_packets(host)
        made.forbid(index, {later_parts(ip_network(f"{SERVER[4]}/32")): True})
        host.client.ip("neigh", "flush", "dev", "lte0")
        assert not datagram_comes(host, 4, SERVER[4], data=b"who" + bytes(8000))
        assert sent_packets(host) - before <= 2, "more than the question for that address left"
        made.forbid(index, {later_parts(ip_network(f"{SERVER[4]}/32")): None})
        # Source route by the router; routing header.
        route = bytes([1, 131, 7, 4]) + socket.inet_aton(SERVER[4])
        for options, passes in ([], True), ([(socket.IPPROTO_IP, socket.IP_OPTIONS, route)], False):
            before = sent_packets(host)
            datagram_comes(host, 4, NEAR[4], options=options)
            assert (sent_packets(host) > before) is passes
        made.forbid(index, dict.fromkeys(elements({(f"{SERVER[4]}/32", UDP_PORT): True})))
        made.forbid(index, elements({("::/0", None): None, ("2001:db8:100::9/128", None): True}))
        assert datagram_comes(host, 6, SERVER[6], data=b"who" + bytes(8000))


def test_dhcp_passes_but_no_program_by_its_ports(host):
    answers_come_anywhere(host)
    index = host.networks()[1].index
    with wall(host) as made:
        made.forbid(index, elements({("0.0.0.0/0", None): True}))
        for source, to, passes in ((68, 67, True), (0, 67, False), (68, 53, False)):
            with host.client.entered():
                asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            with asking:
                asking.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lte0")
                asking.bind(("", source))
                before = sent_packets(host)
                asking.sendto(b"who", (NEAR[4], to))
                assert (sent_packets(host) > before) is passes


def sends(host, version, to, protocol=0, data=b"who", ports=(0, UDP_PORT)):
    """Return whether a bound socket's datagram leaves over lte0."""
    with host.client.entered():
        sending = socket.socket(FAMILY[version], socket.SOCK_DGRAM, protocol)
    with sending:
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lte0")
        sending.bind(("", ports[0]))
        before = sent_packets(host)
        with suppress(OSError):  # the kernel may tell a ping's socket
            sending.sendto(data, (to, ports[1]))
        return sent_packets(host) > before


@contextmanager
def ruled(host, *prefixes):
    """Put up what `cedos rule add --host PREFIX --never lte0` forbids."""
    with wall(host) as made:
        kernel = SimpleNamespace(forbid=lambda index, each: made.forbid(index, dict(each)))
        rules = RuleWall(kernel)
        rules.follow(host.networks())
        rules.forbid({(prefix, None): ["lte0"] for prefix in prefixes})
        yield rules
        rules.close()


def test_pings_and_groups_pass_no_rule(host):
    """2.9 MB of pings (which any user may send) went past a rule."""
    host.client.sysctl("net.ipv4.ping_group_range", "0 0")
    echo = {4: (socket.IPPROTO_ICMP, b"\x08"), 6: (socket.IPPROTO_ICMPV6, b"\x80")}
    pings = [
        (version, SERVER[version], protocol, kind + bytes(7 + more))
        for version, (protocol, kind) in echo.items()
        for more in (0, 2000)
    ]
    assert all(sends(host, *ping) for ping in pings)
    index = host.networks()[1].index
    with ruled(host, f"{SERVER[4]}/32", f"{SERVER[6]}/128"):
        assert not any(sends(host, *ping) for ping in pings)
        assert sends(host, 4, NEAR[4], *pings[0][2:])
    with ruled(host, "0.0.0.0/0", "::/0"):
        assert not any(sends(host, *ping) for ping in pings)
        assert sends(host, 4, NEAR[4], *pings[0][2:])
        for group, passes in (
            ("224.0.0.251", True),
            ("239.255.255.250", True),
            ("233.1.2.3", False),
            ("224.0.1.1", False),
            ("ff02::fb", True),
            ("ff05::fb", False),
            ("ff0e::fb", False),
        ):
            assert sends(host, 6 if ":" in group else 4, group) is passes, group
        # What the kernel says for itself: neighbours, memberships (IGMP, MLD), errors.
        host.client.ip("neigh", "flush", "dev", "lte0")
        assert not host.client.run("ping", "-c1", "-W2", "192.168.44.1", check=False).returncode
        for version in (4, 6):
            before = sent_packets(host)
            with host.client.entered():
                member = socket.socket(FAMILY[version], socket.SOCK_DGRAM)
            with member:
                if version == 4:
                    wanted = socket.inet_aton("233.1.2.3") + socket.inet_aton(
                        host.address("lte0", 4)
                    )
                    member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, wanted)
                else:
                    wanted = socket.inet_pton(socket.AF_INET6, "ff0e::77") + struct.pack(
                        "=I", index
                    )
                    member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, wanted)
                ends = time.monotonic() + 5
                while sent_packets(host) == before and time.monotonic() < ends:
                    time.sleep(0.05)
            assert sent_packets(host) > before


def bind_to(connection, interface):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())


def sent_bytes(host, connection):
    """Return how much leaves over lte0 while a program sends."""

    def read():
        (shown,) = json.loads(host.client.ip("-j", "-s", "link", "show", "lte0"))
        return shown["stats64"]["tx"]["bytes"]

    before = read()
    connection.sendall(bytes(6000))
    time.sleep(0.5)
    return read() - before


def goes_on(connection):
    connection.settimeout(1)
    try:
        connection.sendall(b"anything")
        return connection.recv(8) == b"anything"
    except TimeoutError:
        return False


@pytest.mark.parametrize("version", [4, 6])
def test_no_connection_is_bound_to_a_forbidden_interface_later(host, version):
    """One that began elsewhere took 1.2 MB past a rule: the kernel keeps its address."""
    answers_come_anywhere(host)
    own, mptcp = (
        host.connect(version, proto, bind=host.address("lte0", version)) for proto in (0, MPTCP)
    )
    begun = host.connect(version)
    bind_to(begun, "lte0")
    assert sent_bytes(host, begun) > 5000, "the attack works here"
    others = host.connect(version)
    with ruled(host, f"{SERVER[version]}/{32 if version == 4 else 128}"):
        bind_to(others, "lte0")
        for stray in (begun, others):
            assert sent_bytes(host, stray) < 500, "more than neighbour discovery left"
        bind_to(own, "lte0")
        for living in (own, mptcp):
            assert goes_on(living)


def test_a_connection_whose_address_is_translated_goes_on(host):
    """As one that was rescued before there was a rule."""
    answers_come_anywhere(host)
    masquerade = ("POSTROUTING", "-o", "lte0", "-j", "MASQUERADE")
    host.client.run("iptables", "-t", "nat", "-A", *masquerade)
    host.client.ip("rule", "add", "from", host.address("wlan0", 4), "table", "77", "pref", "5")
    way = ("default", "via", NEAR[4], "dev", "lte0", "table", "77")
    host.client.ip("route", "add", *way)
    rescued = host.connect(4, bind=host.address("wlan0", 4))
    with ruled(host, f"{SERVER[4]}/32"):
        before = sent_packets(host)
        assert goes_on(rescued)
        assert sent_packets(host) > before


def test_dhcpv6s_ports_pass_no_rule(host):
    """With `ip_unprivileged_port_start` lowered, 2.9 MB of any user's went past it."""
    with ruled(host, "0.0.0.0/0", "::/0"):
        for version in (4, 6):
            for ports in ((546, 547), (547, 546)):
                assert not sends(host, version, SERVER[version], ports=ports)
        assert not sends(host, 6, SERVER[6], ports=(68, 67))
        assert sends(host, 6, "ff02::1:2", ports=(546, 547))


def test_one_interface_that_can_have_no_filter_keeps_none_from_others(host):
    controlled(host, "qdisc add dev wlan0 ingress")
    wifi, lte = host.networks()
    with wall(host) as made:
        kernel = SimpleNamespace(forbid=lambda index, each: made.forbid(index, dict(each)))
        rules = RuleWall(kernel)
        rules.follow([wifi, lte])
        with pytest.raises(HostError, match="ingress"):
            rules.forbid({(f"{SERVER[4]}/32", None): [wifi.name, lte.name]})
        assert not opens(host, 4, SERVER[4])
        made.remove([])


def test_both_walls_share_what_they_stand_on_and_a_killed_daemons_goes(host):
    answers_come_anywhere(host)
    before = host.state()
    index = host.networks()[1].index
    forbidden = elements({(f"{SERVER[4]}/32", None): True})
    with wall(host) as killed:
        killed.forbid(index, forbidden)
        killed.put_up(["lte0"])
        assert killed.remove([])
        assert not opens(host, 4, SERVER[4])  # the rules stand
        killed.put_up(["lte0"])
    with wall(host) as made:
        assert not opens(host, 4, SERVER[4])
        made.forbid(index, elements({(f"{NEAR[4]}/32", None): True}))
        made.remove([])
        assert opens(host, 4, SERVER[4])
        assert not opens(host, 4, NEAR[4])
    with wall(host) as restoring:
        assert restoring.remove([])
    assert host.state() == before
