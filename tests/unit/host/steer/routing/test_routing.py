"""Rules and routes: the plan, and changes that never leave a gap."""

import errno
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.steer_kernel import MemoryKernel

from cedos.controller.commands import NOWHERE
from cedos.controller.events import HostDefault
from cedos.host.steer.routing_plan import (
    FIRST_PREFERENCE,
    LAST_PREFERENCE,
    REFUSING_TABLE,
    Destination,
    Preference,
    plan,
    table_of,
)
from cedos.host.steer.routing_rules import Routing
from cedos.kernel.policy_routing import LOOPBACK_INDEX, SeenRule
from cedos.model import FlowKey, Translator

both = pytest.mark.parametrize("version", [4, 6])
OWN = {("wlan0", 4): "192.168.43.2", ("lte0", 4): "192.168.44.2"}
OWN |= {("wlan0", 6): "2001:db8:43::2", ("lte0", 6): "2001:db8:44::2"}


@pytest.fixture
def routing(world):
    made = Routing(world.kernel)
    made.networks_changed([world.wlan0, world.lte0])
    return made


@both
def test_without_a_wish_the_hosts_own_default_holds(world, routing, version):
    assert world.carrier(version) == "wlan0"


@both
def test_the_default_is_what_was_chosen(world, routing, version):
    routing.set_default("lte0")
    assert world.carrier(version) == "lte0"
    routing.set_default("wlan0")
    assert world.carrier(version) == "wlan0"
    routing.set_default(None)
    assert not any("32190" in str(rule) for rule in world.kernel.own)


@both
def test_what_is_bound_stays_on_its_network(world, routing, version):
    for default in ("lte0", "wlan0"):
        routing.set_default(default)
        for name in ("wlan0", "lte0"):
            assert world.carrier(version, local=OWN[name, version]) == name
            assert world.carrier(version, interface=name) == name


@both
def test_what_is_bound_to_a_network_that_is_down_goes_nowhere(world, routing, version):
    routing.set_default("lte0")
    routing.networks_changed([world.wlan0, world.down(world.lte0)])
    assert world.carrier(version, local=OWN["lte0", version]) is None
    assert world.carrier(version) == "wlan0"


@both
@pytest.mark.parametrize("length", [1, 24, 32])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("ruled", ["wlan0", "lte0"])
def test_a_network_that_gives_the_address_of_another_draws_nothing_ruled(
    world, routing, version, length, first, ruled
):
    """The kernel looks again by a socket's address: Wi-Fi's DHCP led what is ruled over Wi-Fi, or not."""
    address = OWN["lte0", version]
    given = (ip_interface(f"{address}/{length}"),)
    networks = [replace(world.wlan0, addresses=given), world.lte0]
    if first:
        routing.networks_changed(networks[:1])
    routing.networks_changed(networks)
    remote = "198.51.100.7" if version == 4 else "2001:db8:7::7"
    routing.set_destination(Destination(ip_network(remote), ruled=True), ruled)
    assert world.carrier(version, remote=remote) == ruled
    assert world.carrier(version, remote=remote, local=address) == ruled
    # Or once the other one has lost it.
    routing.networks_changed(
        [replace(world.wlan0, addresses=()), replace(world.lte0, addresses=())]
    )
    routing.networks_changed([networks[0], replace(world.lte0, addresses=())])
    if ruled == "lte0":
        assert world.carrier(version, remote=remote, local=address) is None
    # It may give the address again at once. In IPv6 a rule is for what the network has alone.
    routing.networks_changed([world.wlan0, world.lte0])
    left = None if (version, ruled) == (6, "wlan0") else ruled
    assert world.carrier(version, remote=remote, local=address) == left
    # What is not ruled keeps to one network.
    assert world.carrier(version, local=address) in ("wlan0", "lte0")


def test_forwarded_packets_keep_the_hosts_own_default(world, routing):
    routing.set_default("lte0")
    routing.set_destination(Destination(ip_network("198.51.100.0/24")), "lte0")
    assert world.carrier(4, local="172.17.0.2", forwarded=True) == "wlan0"


@pytest.mark.parametrize(
    ("version", "lengths"),
    [(4, (32, 31)), (4, (24, 23, 25)), (6, (128, 127, 126, 125, 124)), (4, range(17, 33))],
)
@pytest.mark.parametrize("backwards", [False, True])
def test_of_nested_prefixes_the_closest_is_asked_first(world, routing, version, lengths, backwards):
    """/32 and /31 had one preference: the kernel took the older rule, whatever `explain` said."""
    start = "198.0.0.0" if version == 4 else "2001:db8::"
    for length in sorted(lengths, reverse=backwards):
        routing.set_destination(Destination(ip_network(f"{start}/{length}")), "lte0")
    preferences = {
        rule.destination.prefixlen: rule.preference
        for rule in world.kernel.own
        if rule.destination is not None and 32130 <= rule.preference < 32190
    }
    asked = sorted(preferences, key=lambda length: preferences[length])
    assert asked == sorted(lengths, reverse=True)
    assert len(set(preferences.values())) == len(lengths)


def test_hints_of_many_lengths_leave_rules_their_order(world, routing):
    """Add a member's 32 hints: the older rule held for an address that has a rule of its own."""
    for length in range(1, 33):
        hint = Destination(ip_network(f"198.51.100.7/{length}", strict=False))
        routing.set_destination(hint, "wlan0")
    routing.set_destination(Destination(ip_network("198.51.100.0/24"), ruled=True), "lte0")
    routing.set_destination(Destination(ip_network("198.51.100.7"), ruled=True), "wlan0")
    assert world.carrier(4, remote="198.51.100.7") == "wlan0"
    assert world.carrier(4, remote="198.51.100.8") == "lte0"


@pytest.mark.parametrize("prefix", ["198.51.100.0/24", "2001:db8:7::/48"])
def test_a_destination_may_lead_nowhere(world, routing, prefix):
    network = ip_network(prefix)
    remote, other = str(network[7]), str(network.supernet(new_prefix=8)[1])
    routing.set_default("wlan0")
    routing.set_destination(Destination(network), NOWHERE)
    assert world.carrier(network.version, remote=remote) is None
    assert world.carrier(network.version, remote=other) == "wlan0"
    routing.set_destination(Destination(network), None)
    assert world.carrier(network.version, remote=remote) == "wlan0"


def test_a_network_without_ipv6_is_not_bypassed_by_the_other_ones(world, routing):
    only4 = replace(
        world.wlan0, addresses=world.wlan0.addresses[:1], next_hops=world.wlan0.next_hops[:1]
    )
    routing.networks_changed([only4, world.lte0])
    routing.set_default("wlan0")
    assert (world.carrier(4), world.carrier(6)) == ("wlan0", None)
    routing.set_default("lte0")
    assert (world.carrier(4), world.carrier(6)) == ("lte0", "lte0")
    # Without IPv6 anywhere there is nothing to hold back.
    only4_too = replace(
        world.lte0, addresses=world.lte0.addresses[:1], next_hops=world.lte0.next_hops[:1]
    )
    routing.networks_changed([only4, only4_too])
    assert not [rule for rule in world.kernel.own if rule.version == 6]


def _without_ipv4(network):
    return replace(network, addresses=network.addresses[1:], next_hops=network.next_hops[1:])


def test_what_the_default_lacks_goes_over_the_other_that_is_named(world, routing):
    routing.networks_changed([_without_ipv4(world.wlan0), _without_ipv6(world.lte0)])
    routing.set_default("wlan0", {4: "lte0"})
    assert (world.carrier(4), world.carrier(6)) == ("lte0", "wlan0")
    routing.networks_changed([world.wlan0, world.lte0])
    assert (world.carrier(4), world.carrier(6)) == ("wlan0", "wlan0")
    routing.networks_changed([_without_ipv4(world.wlan0), _without_ipv6(world.lte0)])
    routing.set_default("wlan0")
    assert world.carrier(4) is None


def test_what_is_bound_to_an_address_waits_while_its_network_has_lost_that_version(world, routing):
    routing.networks_changed([world.wlan0, world.lte0])
    routing.set_default("wlan0")
    wlan0 = replace(world.wlan0, next_hops=world.wlan0.next_hops[1:])
    routing.networks_changed([wlan0, world.lte0])
    routing.set_default("wlan0", {4: "lte0"})
    assert (world.carrier(4), world.carrier(6)) == ("lte0", "wlan0")
    assert world.carrier(4, local=OWN["wlan0", 4]) is None
    assert world.carrier(6, local=OWN["wlan0", 6]) == "wlan0"
    routing.networks_changed([world.wlan0, world.lte0])
    assert world.carrier(4, local=OWN["wlan0", 4]) == "wlan0"


def test_ipv6_over_a_dearer_network_is_for_tcp_alone(world, routing):
    routing.networks_changed([_without_ipv6(world.wlan0), world.lte0])
    routing.set_default("wlan0", {6: "lte0"})
    six = [r for r in world.kernel.own if r.version == 6 and r.preference in (32190, 32191)]
    assert [(r.preference, r.table, r.protocol) for r in six] == [
        (32190, table_of(world.lte0), "tcp"),
        (32191, REFUSING_TABLE, None),
    ]
    # Where it costs no more, or the default is dear, too, all of it goes there.
    for wlan0, lte0 in (
        (world.wlan0, replace(world.lte0, metered=False)),
        (replace(world.wlan0, metered=True), world.lte0),
    ):
        routing.networks_changed([_without_ipv6(wlan0), lte0])
        routing.set_default("wlan0", {6: "lte0"})
        assert world.carrier(6) == "lte0"


@pytest.mark.parametrize("metric", [1, 2048])
def test_ipv4_goes_into_the_translator_of_the_default(world, routing, metric):
    world.kernel.add_link(9, "clat", "tun")
    world.kernel.add_main_route("0.0.0.0/0", 9, metric=metric)
    translator = Translator("clat", 9, (ip_interface("192.0.0.1/32"),))
    wlan0 = replace(_without_ipv4(world.wlan0), translator=translator)
    routing.networks_changed([wlan0, world.lte0])
    routing.set_default("wlan0")
    assert routing.foreign.defaults == {}
    assert (world.carrier(4), world.carrier(6)) == ("clat", "wlan0")
    routing.set_default("lte0")
    assert (world.carrier(4), world.carrier(6)) == ("lte0", "lte0")
    # What lives stays where it is.
    assert world.carrier(4, local="192.0.0.1") == "clat"
    # No route that a network announces draws what comes out of it.
    (rule,) = [each for each in world.kernel.own if each.arrival == "clat"]
    assert (rule.version, rule.table) == (6, table_of(world.wlan0))
    assert rule.preference < Preference.SPECIFIC


def _without_ipv6(network):
    return replace(network, addresses=network.addresses[:1], next_hops=network.next_hops[:1])


def test_what_ipv6_refuses_is_found_with_loopbacks_address_and_only_that(world, routing):
    routing.networks_changed([_without_ipv6(world.wlan0), world.lte0])
    routing.set_default("wlan0")
    for text in ("2001:db8:7::/48", "198.51.100.0/24"):
        routing.set_destination(Destination(ip_network(text)), NOWHERE)
    for remote in ("2001:db8:7::1", "2001:db8:8::1"):
        way = world.kernel.way(ip_address(remote))
        assert way == world.kernel.way(ip_address(remote), ip_address("::1"))
        assert (way.index, str(way.source)) == (LOOPBACK_INDEX, "::1")
        assert world.carrier(6, remote=remote, local=OWN["lte0", 6]) == "lte0"
        assert world.carrier(6, remote=remote, interface="lte0") == "lte0"
    assert world.kernel.way(ip_address("198.51.100.1")) is None
    (route,) = [r for r in world.kernel.all_routes if r.source and r.destination.version == 6]
    assert (route.table, str(route.destination)) == (REFUSING_TABLE, "::/0")
    refusing = {rule for rule in world.kernel.own if rule.table == REFUSING_TABLE}
    assert {(rule.version, rule.local) for rule in refusing} == {(6, True)}
    unreachable = [rule for rule in world.kernel.own if rule.table is None]
    assert all(rule.version == 4 or rule.source for rule in unreachable)


@pytest.mark.parametrize("refusal", [errno.EACCES, errno.EINVAL])
def test_where_loopback_has_no_ipv6_rules_are_unreachable_until_it_has(world, refusal):
    kernel = Watched()
    kernel.all_routes, kernel.all_links = world.kernel.all_routes, world.kernel.all_links
    routing = Routing(kernel)

    def without():
        if " src ::1" in kernel.what:
            raise OSError(refusal, "IPv6 is disabled on nexthop device")

    kernel.look = without
    routing.networks_changed([_without_ipv6(world.wlan0), world.lte0])
    for name in ("wlan0", "lte0", "wlan0"):
        routing.set_default(name)
    routing.set_destination(Destination(ip_network("2001:db8:7::/48")), NOWHERE)

    def tables():
        return [r.table for r in kernel.own if r.version == 6 and r.preference in (32155, 32191)]

    assert tables() == [None, None]
    assert not any(rule.table == REFUSING_TABLE for rule in kernel.own)
    kernel.look = lambda: None
    routing.reconcile()
    assert tables() == [REFUSING_TABLE, REFUSING_TABLE]
    assert kernel.way(ip_address("2001:db8:8::1")).index == LOOPBACK_INDEX


def test_resolvers_belong_to_their_network_unless_two_share_them(world, routing):
    shared, own = ip_address("9.9.9.9"), ip_address("198.51.100.53")
    local = ip_address("127.0.0.53")
    routing.networks_changed(
        [
            replace(world.wlan0, resolvers=(shared, local)),
            replace(world.lte0, resolvers=(own, shared)),
        ]
    )
    routing.set_default("wlan0")
    assert world.carrier(4, remote=str(own)) == "lte0"
    assert world.carrier(4, remote=str(shared)) == "wlan0"
    assert not [rule for rule in world.kernel.own if "127." in str(rule)]


def test_a_modem_without_a_gateway_has_a_route_to_its_link(world):
    modem = replace(world.lte0, next_hops=())
    routes = plan([world.wlan0, modem], "lte0").routes
    assert [r.gateway for r in routes if r.index == modem.index] == [None, None]


def test_a_hosts_own_metrics_are_taken_along(world, routing):
    mtu = bytes.fromhex("0800020078050000")
    world.kernel.all_routes = [
        replace(r, metrics=mtu) if (r.index, r.destination.prefixlen) == (4, 0) else r
        for r in world.kernel.all_routes
        if r.table == 254
    ]
    routing.reconcile()
    ours = [r for r in world.kernel.all_routes if r.protocol == 206]
    assert {r.index: r.metrics for r in ours} == {LOOPBACK_INDEX: b"", 3: b"", 4: mtu}


def test_the_hosts_own_default_stays_and_what_is_bound_to_an_address_goes_on(world, routing):
    routing.set_default("lte0")
    world.kernel.add_link(9, "br0", "bridge")
    world.kernel.add_main_route("0.0.0.0/0", 9, metric=1)
    routing.reconcile()
    assert routing.foreign.defaults == {4: HostDefault("br0", vpn=False, what="bridge")}
    assert (world.carrier(4), world.carrier(6)) == ("br0", "lte0")
    assert world.carrier(4, local=OWN["lte0", 4]) == "lte0"
    assert world.carrier(4, interface="lte0") == "lte0"
    routing.set_destination(Destination(ip_network("198.51.100.7/32")), "wlan0")
    routing.set_default("wlan0")
    assert (world.carrier(4), world.carrier(6)) == ("br0", "wlan0")
    world.kernel.all_routes = [r for r in world.kernel.all_routes if r.index != 9]
    routing.reconcile()
    assert world.carrier(4) == "wlan0"


def test_when_nothing_is_new_nothing_is_done(world, routing):
    routing.set_default("lte0")
    done = len(world.kernel.log)
    routing.reconcile()
    routing.networks_changed([world.wlan0, world.lte0])
    routing.set_default("lte0")
    assert len(world.kernel.log) == done


def test_changing_the_default_takes_a_few_changes_only(world, routing):
    routing.set_default("lte0")
    done = len(world.kernel.log)
    routing.set_default("wlan0")
    assert len(world.kernel.log) - done == 4  # one more and one less for each IP version


def test_a_refusal_in_the_middle_leaves_a_state_that_the_next_change_repairs(world, routing):
    world.kernel.refuses = errno.ENOMEM
    with pytest.raises(OSError, match="memory"):
        routing.set_default("lte0")
    world.kernel.refuses = 0
    routing.set_default("wlan0")
    assert world.carrier(4) == "wlan0"
    routing.set_default("lte0")
    assert world.carrier(4) == "lte0"


def test_what_the_kernel_refuses_spoils_nothing_that_comes_later(world, routing):
    """A connection to port 65535 had all later changes refused: networks, rules, the default."""
    known = Destination(ip_network("198.51.100.1"), ruled=True)
    routing.set_destination(known, "lte0")
    key = FlowKey(world.wlan0.addresses[0].ip, 5000, ip_address("198.51.100.9"), 443)
    world.kernel.refuses = errno.EINVAL
    for refused in (
        lambda: routing.set_destinations({Destination(ip_network("0.0.0.0/0"), 80): "lte0"}),
        lambda: routing.set_destinations({known: "wlan0"}),
        lambda: routing.set_mark(7, "lte0"),
        lambda: routing.set_rescue(key, "lte0"),
    ):
        with pytest.raises(OSError, match="Invalid"):
            refused()
    world.kernel.refuses = 0
    assert (routing.destinations, routing.marks, routing.rescues) == ({known: "lte0"}, {}, {})
    routing.reconcile()
    assert world.carrier(4, remote="198.51.100.1") == "lte0"
    # What is wanted no more stays so.
    world.kernel.refuses = errno.EINVAL
    with pytest.raises(OSError, match="Invalid"):
        routing.set_destination(known, None)
    world.kernel.refuses = 0
    routing.reconcile()
    assert world.carrier(4, remote="198.51.100.1") == "wlan0"


def test_a_network_between_two_leases_takes_no_rule_away(world, routing):
    """Its default route counted as the host's own, and no rule held: up to 1.5 s of a lease's change."""
    place = Destination(ip_network("198.51.100.1"), ruled=True)
    routing.set_destination(place, "lte0")
    routing.set_default("wlan0")
    # The monitor has not seen its new address, or it is of the link alone.
    leased = replace(world.wlan0, up=False, addresses=())
    routing.networks_changed([leased, world.lte0])
    assert routing.foreign.defaults[4].interface == "wlan0"
    assert world.carrier(4, remote="198.51.100.1") == "lte0"
    assert world.carrier(4, remote="203.0.113.1") == "wlan0", (
        "what is under no rule goes where the host leads it"
    )
    # No other network is there: it is refused.
    routing.set_destination(place, NOWHERE)
    for there in ([leased], [replace(leased, carrier=False)], []):
        routing.networks_changed(there)
        assert world.carrier(4, remote="198.51.100.1") is None


def test_an_interface_never_seen_that_takes_the_hosts_default_takes_no_rule_away(world, routing):
    """Until the monitor tells of it, no rule held: what is ruled went over it."""
    routing.set_destinations(
        {
            Destination(ip_network("198.51.100.1"), ruled=True): "lte0",
            Destination(ip_network("198.51.100.2"), ruled=True): NOWHERE,
        }
    )
    for index, kind, there in ((8, "", "lte0"), (9, "tun", "tun0"), (9, "dummy", "tun0")):
        world.kernel.add_link(index, "usb0" if index == 8 else "tun0", kind)
        world.kernel.add_main_route("0.0.0.0/0", index, metric=1)
        routing.reconcile()
        assert 4 in routing.foreign.defaults
        assert world.carrier(4, remote="198.51.100.1") == there
        assert world.carrier(4, remote="198.51.100.2") == (None if index == 8 else there)
        assert world.carrier(4, remote="203.0.113.1") == ("usb0" if index == 8 else "tun0")
        world.kernel.all_routes = [r for r in world.kernel.all_routes if r.index not in (8, 9)]
        world.kernel.all_links = [each for each in world.kernel.all_links if each.index < 8]


class Watched(MemoryKernel):
    """Looks before every single change."""

    look = staticmethod(lambda: None)
    what = ""

    def _changed(self, what):
        self.what = what
        self.look()
        super()._changed(what)


@pytest.fixture
def watched(make_world):
    """A world whose `kernel.look` is called before every change, and its routing."""
    world = make_world(Watched())
    routing = Routing(world.kernel)
    routing.networks_changed([world.wlan0, world.lte0])
    return world, routing


@both
@pytest.mark.parametrize("lengths", [(0, 1, 2), (5, 6, 7)])
def test_what_is_refused_is_never_led_while_the_lengths_in_use_change(watched, version, lengths):
    """Add or withdraw a longer prefix: for an instant the rule around a refused one came before it."""
    world, routing = watched
    remote = ip_network("198.51.100.0" if version == 4 else "2001:db8:7::")
    of = [Destination(remote.supernet(n), ruled=True) for n in lengths]
    routing.set_destinations({of[1]: NOWHERE, of[2]: "lte0"})
    refused = str(of[1].prefix[-1])

    def look():
        assert world.carrier(version, remote=refused) is None, world.kernel.what

    world.kernel.look = look
    for name in ("wlan0", None, NOWHERE, None):
        routing.set_destination(of[0], name)


@both
def test_an_address_that_moves_to_the_allowed_network_leads_nothing_back(watched, version):
    """Routes and rules of the new network gave sockets the address while its old rule still stood."""
    world, routing = watched
    remote = "198.51.100.7" if version == 4 else "2001:db8:7::7"
    routing.set_destination(Destination(ip_network(remote), ruled=True), "wlan0")
    moved = ip_interface(OWN["lte0", version] + ("/24" if version == 4 else "/64"))

    def look():
        led = any(rule.finds_source and moved.ip in rule.source for rule in world.kernel.own)
        there = [each for each in world.kernel.all_routes if each.index == world.wlan0.index]
        given = any(route.source == moved.ip for route in there)
        if led or given:
            assert world.carrier(version, remote=remote, local=str(moved.ip)) in ("wlan0", None)

    world.kernel.look = look
    other = tuple(each for each in world.lte0.addresses if each.version != version)
    taken = replace(world.wlan0, addresses=(moved,))
    routing.networks_changed([taken, replace(world.lte0, addresses=other)])
    look()
    assert world.carrier(version, remote=remote, local=str(moved.ip)) == "wlan0"


wishes = st.lists(
    st.one_of(
        st.tuples(st.just("default"), st.sampled_from(["wlan0", "lte0", None])),
        st.tuples(st.just("destination"), st.sampled_from(["wlan0", "lte0", None])),
        st.tuples(st.just("networks"), st.sampled_from(["both", "wlan0 down", "lte0 down"])),
    ),
    max_size=8,
)


@given(wishes=wishes)
def test_at_every_instant_packets_have_a_way_and_bound_ones_their_own(make_world, wishes):
    world = make_world(Watched())
    routing = Routing(world.kernel)
    foreign = SeenRule(4, 100, 77, False, False, None)
    world.kernel.others.append(foreign)

    def look():
        for version in (4, 6):
            assert world.carrier(version) in ("wlan0", "lte0")
            for name in ("wlan0", "lte0"):
                # The host's own routes carry it wherever until our rules stand.
                if standing:
                    assert world.carrier(version, local=OWN[name, version]) in (name, None)

    world.kernel.look = look
    standing = False
    routing.networks_changed([world.wlan0, world.lte0])
    standing = True
    for kind, value in wishes:
        if kind == "default":
            routing.set_default(value)
        elif kind == "destination":
            routing.set_destination(Destination(ip_network("198.51.100.0/24")), value)
        else:
            wlan0 = world.down(world.wlan0) if value == "wlan0 down" else world.wlan0
            lte0 = world.down(world.lte0) if value == "lte0 down" else world.lte0
            routing.networks_changed([wlan0, lte0])
        assert foreign in world.kernel.others
        for rule in world.kernel.own:
            assert FIRST_PREFERENCE <= rule.preference <= LAST_PREFERENCE
