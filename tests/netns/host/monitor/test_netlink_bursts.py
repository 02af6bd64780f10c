"""Bursts of netlink events, more than one reading takes and more than the kernel's buffer holds."""

import asyncio
import socket
import struct

import pytest
from kit.waiting import counting_turns

from cedos.kernel import netlink, policy_routing, rtnetlink
from cedos.kernel.netlink import (
    AsyncRequester,
    NetlinkListener,
    Requester,
    attributes,
    messages,
)

ROUTES, MANY = 1000, 20_000
_ROUTE, _IPV4_ROUTES, _NEWROUTE, _DST, _HEADER_BYTES = 0, 7, 24, 1, 12


class Heard:
    """The notifications of a listener, in order: the routes' numbers, and `lost`."""

    def __init__(self):
        self.all = []

    def datagram(self, data):
        for each in messages(data):
            destination = attributes(each.payload, _HEADER_BYTES).get(_DST)
            if each.type == _NEWROUTE and destination and destination[0] == 100:
                self.all.append(struct.unpack("!I", destination)[0] - (100 << 24))

    def lost(self):
        self.all.append("lost")


@pytest.fixture
def host(make_namespace):
    namespace = make_namespace("burst")
    namespace.ip("link", "add", "wlan0", "type", "veth", "peer", "name", "far0")
    namespace.ip("link", "set", "far0", "up")
    namespace.ip("link", "set", "wlan0", "up")
    return namespace


def add_routes(host, file, first, count):
    numbers = range(first, first + count)
    addresses = (socket.inet_ntoa(struct.pack("!I", (100 << 24) + n)) for n in numbers)
    file.write_text("".join(f"route add {each} dev wlan0\n" for each in addresses))
    host.ip("-batch", str(file))


def heard_in(host, scenario, **options):
    """The scenario runs while a listener is there that nobody but the scenario wakes."""
    heard = Heard()

    async def live():
        listener = NetlinkListener(_ROUTE, [_IPV4_ROUTES], heard.datagram, heard.lost, **options)
        heard.listener = listener
        scenario(heard)
        listener.close()

    with host.entered():
        asyncio.run(live())
    return heard


def drain(heard):
    return bool(heard.listener.drain())


def test_a_burst_is_read_to_its_end_at_once(host, tmp_path, monkeypatch):
    """At 64 datagrams a beat, 1000 flows that begin together were known a third of a second late."""
    monkeypatch.setattr(netlink, "_MOST_S", 60.0)

    def scenario(heard):
        add_routes(host, tmp_path / "routes", 0, ROUTES)
        assert drain(heard)
        assert heard.all == list(range(ROUTES))
        assert not drain(heard)

    heard_in(host, scenario)


def test_a_flood_is_left_alone_after_a_while(host, tmp_path, monkeypatch):
    monkeypatch.setattr(netlink, "_MOST_S", 0.0)

    def scenario(heard):
        add_routes(host, tmp_path / "routes", 0, ROUTES)
        assert drain(heard)
        assert 0 < len(heard.all) < ROUTES / 2
        while drain(heard):
            pass
        assert heard.all == list(range(ROUTES))

    heard_in(host, scenario)


def test_a_loss_is_told_after_what_came_before_it(host, tmp_path):
    """A reader that reads the tables again after a loss must get no older events afterwards."""

    def scenario(heard):
        add_routes(host, tmp_path / "routes", 0, ROUTES)
        while drain(heard):
            pass
        kept = heard.all.index("lost")
        assert 0 < kept < ROUTES
        assert heard.all == [*range(kept), "lost"]
        add_routes(host, tmp_path / "more", ROUTES, 3)
        while drain(heard):
            pass
        assert heard.all[kept + 1 :] == [ROUTES, ROUTES + 1, ROUTES + 2]

    heard_in(host, scenario, receive_buffer_bytes=100_000)


async def test_what_has_to_wait_for_others_waits_and_is_not_lost(host, tmp_path, monkeypatch):
    """Ends of flows wait until the openings before them have been told."""
    monkeypatch.setattr(netlink, "_MOST_S", 60.0)
    heard = Heard()
    asked = []

    def before():
        asked.append(len(asked) >= 2)
        return asked[-1]

    with host.entered():
        listener = NetlinkListener(
            _ROUTE, [_IPV4_ROUTES], heard.datagram, heard.lost, interval_s=0.01, before=before
        )
        add_routes(host, tmp_path / "routes", 0, 10)
        async with asyncio.timeout(20):
            while len(heard.all) < 10:
                await asyncio.sleep(0.01)
        listener.close()
    assert heard.all == list(range(10))
    assert asked == [False, False, True]


def test_a_dump_of_many_routes_leaves_the_event_loop_its_turns(host, tmp_path):
    """The kernel has the next part ready at once: the daemon stood still for 40 s, its timeout too."""
    add_routes(host, tmp_path / "routes", 0, MANY)
    request = policy_routing.routes_request(4)

    async def live():
        asking = AsyncRequester(_ROUTE)
        async with counting_turns() as turns:
            routes = await asking.dump(rtnetlink.RTM_GETROUTE, request)
            assert len(routes) >= MANY
            assert turns() > 20
        with pytest.raises(TimeoutError):
            await asking.dump(rtnetlink.RTM_GETROUTE, request, 0.001)
        # The dump that was given up is in the way of no other one.
        assert len(await asking.dump(rtnetlink.RTM_GETROUTE, request)) == len(routes)
        asking.close()

    with host.entered():
        asyncio.run(live())


def test_a_dump_that_takes_too_long_is_given_up_and_in_no_others_way(host, tmp_path):
    add_routes(host, tmp_path / "routes", 0, MANY)
    request = policy_routing.routes_request(4)
    with host.entered():
        asking = Requester(_ROUTE)
        port = asking.port
        with pytest.raises(TimeoutError):
            asking.dump(rtnetlink.RTM_GETROUTE, request, within_s=0.0)
        assert len(asking.dump(rtnetlink.RTM_GETROUTE, request)) >= MANY
        assert asking.port == port
        asking.close()
