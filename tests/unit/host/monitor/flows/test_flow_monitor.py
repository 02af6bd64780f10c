"""Flows without a kernel: what opens, what closes, and what lost events cost."""

import asyncio
import errno
from dataclasses import replace
from ipaddress import ip_address

from kit.waiting import until

from cedos.controller.events import FlowClosed, FlowOpened
from cedos.host.monitor import flow_monitor
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.kernel.conntrack import Tracked, Tuple
from cedos.kernel.sock_diag import MOST, MOST_OF_USER
from cedos.model import FlowKey, FlowSample

OWN, PEER = ip_address("10.0.1.2"), ip_address("198.51.100.1")
KEY = FlowKey(OWN, 5000, PEER, 443)
SOCKET = FlowSample(KEY, 0.0, 1, 77, 0.03, 0.02, 1e6, 1_000, 200, 1, 0.0, 0, 0.1)


def is_own(address):
    return address == OWN


def tracked(key=KEY, *, ended=False, counts=None):
    there = Tuple(key.local, key.local_port, key.remote, key.remote_port)
    back = Tuple(key.remote, key.remote_port, key.local, key.local_port)
    up, down = counts or (None, None)
    return Tracked(ended, key.protocol, there, back, up, down)


class PlayedSource:
    def __init__(self):
        self.there = []
        self.listed = []
        self.marks = {}
        self.blind = ""
        self.closed = False

    def start(self, tracked, destroyed, overflow):
        self.track, self.destroy, self.overflow = tracked, destroyed, overflow

    async def sockets(self):
        return list(self.there)

    async def mark(self, key):
        if key not in self.marks:
            raise FileNotFoundError(2, "no such socket")
        return self.marks[key]

    async def entries(self):
        return list(self.listed)

    async def blindness(self, timeout_s):
        return self.blind

    def close(self):
        self.closed = True


async def take(flows, count):
    async with asyncio.timeout(5):
        events = flows.events()
        return [await anext(events) for _ in range(count)]


async def quiet(flows):
    events = flows.events()
    try:
        await asyncio.wait_for(anext(events), 0.02)
    except TimeoutError:
        return True
    return False


async def test_a_flow_opens_once_and_closes_with_its_figures():
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked())
        source.track(tracked())
        source.destroy(SOCKET)
        opened, closed = await take(flows, 2)
        assert isinstance(opened, FlowOpened)
        assert isinstance(closed, FlowClosed)
        assert (opened.key, opened.incoming, closed.key) == (KEY, False, KEY)
        assert (closed.bytes_down, closed.bytes_up, closed.retransmits) == (1_000, 200, 1)
        assert (closed.rtt_s, closed.rtt_min_s, closed.delivery_rate_bps) == (0.03, 0.02, 1e6)
        assert closed.started_unix_s == opened.at_unix_s
        assert closed.exact
        assert await quiet(flows)
    assert source.closed


async def test_an_opening_is_told_with_whose_it_is(monkeypatch):
    monkeypatch.setattr(flow_monitor, "is_own", lambda key: key == KEY)
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked())
        source.track(tracked(replace(KEY, local_port=5001)))
        assert [each.own for each in await take(flows, 2)] == [True, False]


async def test_flows_of_others_are_none_of_ours():
    source = PlayedSource()
    container = FlowKey(ip_address("172.17.0.2"), 1, PEER, 443)
    loop = FlowKey(ip_address("127.0.0.1"), 1, ip_address("127.0.0.1"), 2)
    async with FlowMonitor(is_own, source=source) as flows:
        for key in (container, loop):
            source.track(tracked(key))
            source.destroy(replace(SOCKET, key=key))
        source.there = [replace(SOCKET, key=container), SOCKET]
        assert [sample.key for sample in await flows.snapshot()] == [KEY]
        assert await quiet(flows)


async def test_a_flow_may_end_after_its_network_lost_the_address():
    source = PlayedSource()
    own = {OWN}
    udp = replace(KEY, protocol="udp")
    async with FlowMonitor(lambda address: address in own, source=source) as flows:
        source.track(tracked())
        source.track(tracked(udp))
        own.clear()
        source.destroy(SOCKET)
        source.track(tracked(udp, ended=True, counts=(128, 328)))
        events = await take(flows, 4)
        assert [(type(e), e.key.protocol) for e in events] == [
            (FlowOpened, "tcp"),
            (FlowOpened, "udp"),
            (FlowClosed, "tcp"),
            (FlowClosed, "udp"),
        ]


async def test_after_an_overflow_a_comparison_makes_it_good():
    source = PlayedSource()
    gone, kept = replace(KEY, local_port=1), replace(KEY, local_port=2)
    fresh, udp = replace(KEY, local_port=3), replace(KEY, local_port=4, protocol="udp")
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked(gone))
        source.track(tracked(kept))
        source.there = [replace(SOCKET, key=gone), replace(SOCKET, key=kept)]
        await flows.snapshot()
        source.there = [replace(SOCKET, key=kept), replace(SOCKET, key=fresh)]
        source.listed = [tracked(kept), tracked(udp)]
        source.overflow()
        events = await take(flows, 5)
        assert flows.overflows == 1
        assert {(type(e), e.key) for e in events[2:]} == {
            (FlowOpened, fresh),
            (FlowOpened, udp),
            (FlowClosed, gone),
        }
        (closed,) = [e for e in events if isinstance(e, FlowClosed)]
        assert (closed.bytes_down, closed.exact) == (1_000, False)
        assert await quiet(flows)


async def test_tcp_is_compared_where_too_many_flows_are_tracked(monkeypatch):
    """A single failure ended all later comparisons."""
    source = PlayedSource()
    udp = replace(KEY, protocol="udp")

    async def full():
        raise OSError(errno.EMSGSIZE, "more than 65536 flows are tracked")

    monkeypatch.setattr(source, "entries", full)
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked(udp))
        source.there = [SOCKET]
        source.overflow()
        assert [each.key for each in await take(flows, 2)] == [udp, KEY]
        assert await quiet(flows)


async def test_a_deleted_entry_is_no_end_while_the_socket_lives():
    source = PlayedSource()
    source.there = [SOCKET]
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked())
        source.track(tracked(ended=True))
        await asyncio.sleep(0.2)
        source.destroy(SOCKET)
        events = await take(flows, 1)
        assert isinstance(events[0], FlowClosed)
        assert events[0].exact


async def test_a_look_before_the_event_does_not_swallow_it():
    """Sockets are looked at once a second: some are seen before their opening is told."""
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        source.there = [SOCKET]
        await flows.snapshot()
        source.track(tracked())
        source.track(tracked())
        (opened,) = await take(flows, 1)
        assert isinstance(opened, FlowOpened)
        assert opened.key == KEY
        assert await quiet(flows)


async def test_a_sockets_mark_or_none():
    source = PlayedSource()
    other = replace(KEY, local_port=5001)
    source.marks = {KEY: 0xCE000001, other: 0}
    async with FlowMonitor(is_own, source=source) as flows:
        assert await flows.mark(KEY) == 0xCE000001
        assert await flows.mark(other) is None
        assert await flows.mark(replace(KEY, local_port=5002)) is None  # it has gone


async def test_openings_that_are_not_seen_at_first_are_looked_for_again(monkeypatch):
    monkeypatch.setattr("cedos.host.monitor.flow_monitor._CHECKED_AGAIN_S", (0.01, 0.01, 0.01))
    source = PlayedSource()
    source.blind = "no tracking"
    async with FlowMonitor(is_own, source=source) as flows:
        assert flows.problem == "no tracking"
        source.blind = ""  # steering has its rules now
        await until(lambda: not flows.problem)


def from_outside(number, protocol="tcp"):
    """A packet of some stranger: 250 to a network."""
    stranger = ip_address(f"203.0.{number // 250 % 250}.{number % 250 + 1}")
    there = Tuple(stranger, 40_000, OWN, 1024 + number % 60_000)
    back = Tuple(there.destination, there.destination_port, there.source, there.source_port)
    return Tracked(False, protocol, there, back, None, None)


async def test_packets_from_outside_open_nothing_without_a_socket():
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        for number in range(20_000):
            source.track(from_outside(number))
            source.track(from_outside(number, "udp"))
        assert await quiet(flows)
        assert len(flows._callers) <= 1024
        # One of them is real, and is told with its socket, however many others there are.
        source.track(from_outside(7))
        real = FlowKey(OWN, 1031, ip_address("203.0.0.8"), 40_000)
        source.there = [replace(SOCKET, key=real)]
        (opened,) = await take(flows, 1)
        assert isinstance(opened, FlowOpened)
        assert (opened.key, opened.incoming) == (real, True)


async def test_a_visitor_whose_socket_is_over_before_anybody_looks_is_told():
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(from_outside(7))
        source.destroy(replace(SOCKET, key=FlowKey(OWN, 1031, ip_address("203.0.0.8"), 40_000)))
        opened, closed = await take(flows, 2)
        assert isinstance(opened, FlowOpened)
        assert opened.incoming
        assert isinstance(closed, FlowClosed)
        assert closed.exact


async def test_a_program_that_sends_to_everybody_fills_its_share_only():
    source = PlayedSource()
    udp = replace(KEY, protocol="udp")
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked(udp))
        assert isinstance((await take(flows, 1))[0], FlowOpened)
        for port in range(0, 20_000, 250):
            for each in range(port, port + 250):
                source.track(
                    tracked(replace(udp, local_port=each, remote=ip_address("203.0.113.9")))
                )
            await take(flows, 250)
        assert len(flows._living) < 200


async def test_a_program_that_opens_without_end_fills_no_queue():
    """A hundred thousand events waited, and nothing else was done until all of them were told."""
    source = PlayedSource()
    async with FlowMonitor(is_own, source=source) as flows:
        for number in range(30_000):
            key = replace(KEY, local_port=number)
            source.track(tracked(key))
            if number != 29_999:
                source.destroy(replace(SOCKET, key=key))
            else:
                source.there = [replace(SOCKET, key=key)]
        events = await take(flows, 1_024)
        opened = {each.key for each in events if isinstance(each, FlowOpened)}
        closed = {each.key for each in events if isinstance(each, FlowClosed)}
        # The flow that lives on is found where it is looked for, and others open as before.
        async with asyncio.timeout(5):
            async for each in flows.events():
                assert each.key.local_port == 29_999 or each.key in opened - closed
                if each.key.local_port == 29_999:
                    break
        source.track(tracked())
        while (each := (await take(flows, 1))[0]).key != KEY:
            assert each.key in opened


async def test_of_many_flows_that_live_on_all_are_told_in_the_end():
    """A look at the sockets, or a comparison that found no room, left the rest unknown for good."""
    source = PlayedSource()
    keys = [replace(KEY, local_port=number) for number in range(2_000)]
    async with FlowMonitor(is_own, source=source) as flows:
        source.there = [replace(SOCKET, key=key) for key in keys]
        for key in keys:
            source.track(tracked(key))
        await flows.snapshot()
        await asyncio.sleep(0.1)  # the comparison finds no room either
        events = await take(flows, 2_000)
        assert {each.key for each in events if isinstance(each, FlowOpened)} == set(keys)
        assert await quiet(flows)


async def test_beyond_a_bound_only_what_a_comparison_finds_is_followed():
    """The daemon grew from 81 to 460 MB by 36,000 connections that a user opened within a second."""
    source = PlayedSource()
    keys = [replace(KEY, local_port=number) for number in range(10_000)]
    others = replace(KEY, local_port=20_000)
    async with FlowMonitor(is_own, source=source) as flows:
        # The kernel's dump has some sockets of each user (`some_of_each_user`).
        source.there = [replace(SOCKET, key=key) for key in (*keys[:MOST_OF_USER], others)]
        for key in (*keys, others):
            source.track(tracked(key))
            while len(flows._mailbox) > 1_000:
                await take(flows, 1_000)
            assert len(flows._living) <= MOST + 2_048
        living = set(flows._living)
        while others not in living or len(living) > MOST_OF_USER + 1:
            for event in await take(flows, 1):
                living ^= {event.key} if isinstance(event, FlowClosed) else set()
                living |= {event.key} if isinstance(event, FlowOpened) else set()
        assert living == set(flows._living)


async def test_what_stays_within_the_host_is_traffic_of_no_network():
    """A user's connection between two own addresses kept a dead network alive for all."""
    other, here = ip_address("10.0.2.2"), {OWN, ip_address("10.0.2.2"), ip_address("172.17.0.2")}
    within = [
        FlowKey(OWN, 5000, remote, 443, protocol)
        for remote in (other, ip_address("172.17.0.2"), ip_address("127.0.0.1"))
        for protocol in ("tcp", "udp")
    ]
    source = PlayedSource()
    async with FlowMonitor({OWN, other}.__contains__, here.__contains__, source=source) as flows:
        for key in within:
            back = FlowKey(key.remote, 443, key.local, 5000, key.protocol)
            source.track(tracked(key))
            source.track(tracked(back))
            source.there = [replace(SOCKET, key=key), replace(SOCKET, key=back)]
            assert await flows.snapshot() == []
            source.track(tracked(key, ended=True, counts=(100, 100)))
            if key.protocol == "tcp":
                source.destroy(replace(SOCKET, key=key))
        source.overflow()
        await asyncio.sleep(0.1)
        assert await quiet(flows)


async def test_a_redirected_connection_to_this_host_is_traffic_of_no_network():
    source = PlayedSource()
    answering = Tuple(OWN, 3128, OWN, 5000)
    async with FlowMonitor(is_own, source=source) as flows:
        source.track(tracked()._replace(reply=answering))
        source.there = [SOCKET]
        assert await flows.snapshot() == []
        source.destroy(SOCKET)
        assert await quiet(flows)
        source.track(tracked())  # later the same ports are a flow beyond
        assert (await take(flows, 1))[0].key == KEY


async def test_a_flow_that_began_within_the_host_stays_so_without_the_address():
    other = ip_address("10.0.2.2")
    here, key = {OWN, other}, FlowKey(OWN, 5000, other, 443)
    source = PlayedSource()
    async with FlowMonitor(is_own, here.__contains__, source=source) as flows:
        source.there = [replace(SOCKET, key=key)]
        source.track(tracked(key))
        here.discard(other)
        assert await flows.snapshot() == []
        source.destroy(replace(SOCKET, key=key))
        assert await quiet(flows)


async def test_an_address_that_is_known_late_ends_what_began_before():
    other = ip_address("10.0.2.2")
    here, key = {OWN}, FlowKey(OWN, 5000, other, 443)
    source = PlayedSource()
    async with FlowMonitor(is_own, here.__contains__, source=source) as flows:
        source.track(tracked(key))
        source.there = [replace(SOCKET, key=key)]
        here.add(other)
        assert await flows.snapshot() == []
        opened, closed = await take(flows, 2)
        assert (opened.key, closed.key) == (key, key)
        assert (closed.exact, closed.bytes_down, closed.rtt_s) == (False, 0, None)
