"""Limits of strangers and of known hosts."""

import asyncio
import os
import time
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.clock import run_jumping
from kit.waiting import until

from cedos import session
from cedos.errors import SessionError
from cedos.limits import TokenBucket
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.limits import (
    HalfOpen,
    HandshakeLimits,
    HostCounts,
    HostLedger,
    network_of,
)
from cedos.session.protocol.handshake.messages import MessageKind, frame
from cedos.session.protocol.handshake.outcome import FailureKind


def test_ten_thousand_half_open_handshakes_do_not_keep_an_honest_host_out(make_hosts):
    hosts = make_hosts()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    idle = []
    for number in range(10_000):
        channel = hosts.acceptor.channel(f"198.51.100.{number % 100}", hosts.now)
        # Each sends the beginning of a hello, the most that may be kept of it.
        channel.receive(frame(MessageKind.SET_UP, bytes(319))[:-1], hosts.now)
        idle.append(channel)
        if number % 1000 == 999:
            client, server = hosts.connected()
            assert server.receive(b"".join(client.send([b"served"])), hosts.now) == [b"served"]
            hosts.book.flows.clear()
        pushed_out = hosts.acceptor.overdue(hosts.now)
        idle = [each for each in idle if each not in pushed_out] if pushed_out else idle
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(hosts.acceptor) <= 1024
    assert len(idle) == len(hosts.acceptor)
    assert used < 4e6
    hosts.now += 11
    assert len(hosts.acceptor.overdue(hosts.now)) == len(idle)
    assert len(hosts.acceptor) == 0
    assert all(channel.failure.kind is FailureKind.TIMED_OUT for channel in idle)


def test_one_address_cannot_crowd_out_others(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(half_open_per_address=5))
    other = hosts.acceptor.channel("192.0.2.8", hosts.now)
    got = [hosts.acceptor.channel("192.0.2.9", hosts.now) for _ in range(7)]
    assert hosts.acceptor.overdue(hosts.now) == got[:2]
    assert len(hosts.acceptor) == 6
    got[2].abandon()
    hosts.acceptor.channel("192.0.2.9", hosts.now)
    assert hosts.acceptor.overdue(hosts.now) == []
    assert other.failure is None


def test_one_holder_of_ipv6_addresses_cannot_crowd_out_others():
    """Count a /64 as one address: its holder pushed out all others by a handshake from each of 2^64."""
    half_open = HalfOpen(HandshakeLimits(half_open=20, half_open_per_address=5))
    half_open.add("other", "2001:db8:1::1", 0.0)
    pushed = {half_open.add(f"{n}", f"2001:db8:2::{n:x}", 1.0) for n in range(100)}
    assert "other" not in pushed
    assert len(half_open) == 6


def test_an_address_that_is_shared_with_a_flood_still_gets_in(make_hosts):
    """As behind a carrier's NAT: refusing its newest would keep the honest host out."""
    hosts = make_hosts(limits=HandshakeLimits(half_open_per_address=5))
    for _ in range(50):
        hosts.acceptor.channel("192.0.2.1", hosts.now)
        hosts.acceptor.overdue(hosts.now)
    client, server = hosts.connected()  # from there, too
    assert server.receive(b"".join(client.send([b"served"])), hosts.now) == [b"served"]


def test_a_hello_that_drips_has_ten_seconds(hosts):
    hello = hosts.set_up().outgoing()[0]
    server = hosts.accept()
    for number, byte in enumerate(hello):
        server.receive(bytes([byte]), hosts.now)
        hosts.now += 1
        assert (server in hosts.acceptor.overdue(hosts.now)) == (number == 9)
        if number == 9:
            break
    assert server.failure.kind is FailureKind.TIMED_OUT
    assert server.receive(hello[10:], hosts.now) == []
    assert server.outgoing() == []


def test_what_is_over_leaves_nothing_behind(hosts):
    hosts.connected()
    garbled, broken = hosts.accept(), hosts.accept()
    garbled.receive(b"GET / HTTP/1.1\r\n\r\n", hosts.now)
    assert garbled.failure.kind is FailureKind.GARBLED
    broken.abandon()
    assert len(hosts.acceptor) == 0
    assert hosts.acceptor.next_expiry() is None
    hosts.accept()
    assert hosts.acceptor.next_expiry() == hosts.now + 10


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "done", "late"]), st.integers(0, 3), st.integers(0, 30)),
        max_size=60,
    )
)
def test_the_half_open_ones_against_a_model(steps):
    limits = HandshakeLimits(half_open=6, half_open_per_address=3, handshake_s=10)
    half_open = HalfOpen(limits)
    model = {}
    now = 0.0
    for number, (what, where, which) in enumerate(steps):
        now += 1
        address = f"a{where}"
        if what == "add":
            theirs = [each for each, (where, _) in model.items() if where == address]
            expected = min(theirs) if len(theirs) >= 3 else min(model) if len(model) >= 6 else None
            assert half_open.add(number, address, now) == expected
            if expected is not None:
                del model[expected]
            model[number] = (address, now + 10)
        elif what == "done":
            half_open.remove(which)
            model.pop(which, None)
        else:
            late = [each for each, (_, at) in model.items() if at <= now]
            assert half_open.overdue(now) == late
            for each in late:
                del model[each]
        assert len(half_open) == len(model)
        assert half_open.next_expiry() == min((at for _, at in model.values()), default=None)


def test_all_hosts_together_have_a_limit_too():
    ledger = HostLedger(HandshakeLimits(flows=3))
    for host in (b"a", b"b", b"c"):
        assert ledger.may_open(host)
        ledger.open_flow(host)
    assert not ledger.may_open(b"d")
    ledger.close_flow(b"a")
    assert ledger.may_open(b"d")


def test_a_hosts_flows():
    ledger = HostLedger(HandshakeLimits(flows_per_host=2))
    one, other = b"one", b"other"
    assert ledger.may_open(one)
    assert not ledger.may_open(one, kept=2)
    ledger.open_flow(one)
    ledger.open_flow(one)
    assert not ledger.may_open(one)
    ledger.open_flow(one)
    assert ledger.may_open(other)
    ledger.open_flow(other)
    ledger.close_flow(one)
    assert not ledger.may_open(one)
    ledger.close_flow(one)
    assert ledger.may_open(one)
    ledger.close_flow(one)
    ledger.close_flow(other)
    assert not ledger._flows


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=40))
def test_counts_by_host_are_never_too_small_and_leave_nothing(added):
    counts, truth = HostCounts(), Counter[int]()
    for host, by in added:
        counts.add(b"host %d" % host, by)
        truth[host] += by
    for host in range(31):
        assert counts.of(b"host %d" % host) >= truth[host]
    for host, by in added:
        counts.add(b"host %d" % host, -by)
    assert not any(counts.of(b"host %d" % host) for host in range(31))


def test_counts_by_host_stay_near_among_many_hosts():
    counts = HostCounts()
    for number in range(100_000):
        counts.add(number.to_bytes(4, "big"))
    counts.add(b"busy", 10_000)
    assert 10_000 <= counts.of(b"busy") < 10_010
    wrong = sum(counts.of(number.to_bytes(4, "big")) > 10 for number in range(0, 100_000, 10))
    assert wrong == 0


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.5, 20), st.integers(1, 10))
def test_a_rate_is_kept(gaps, per_s, burst):
    rate = TokenBucket(per_s, burst, 0.0)
    now, taken = 0.0, 0
    for gap in gaps:
        now += gap
        if rate.take(now):
            taken += 1
        else:
            assert 0 < rate.wait_s <= 1 / per_s
            assert rate.take(now + rate.wait_s + 1e-9)
            taken += 1
            now += rate.wait_s + 1e-9
    assert taken <= burst + now * per_s + 1e-6


def test_many_hosts_are_not_remembered_for_ever(monkeypatch):
    monkeypatch.setattr("cedos.session.protocol.handshake.limits._HOSTS_REMEMBERED", 3)
    ledger = HostLedger(HandshakeLimits(resumption_burst=1, resumptions_per_s=0.1))
    assert ledger.resume(b"a", 0.0) == 0
    assert ledger.resume(b"a", 0.0) == pytest.approx(10)
    for host in (b"b", b"c", b"d"):
        assert ledger.resume(host, 0.0) == 0
    assert len(ledger._rates) == 3


def serving(scenario, hosts, idle=None, allow=lambda _key: True):
    async def run():
        key = KeyPair(os.urandom(32))
        made = []

        async def connect(who):
            made.append(
                await session.connect(listener.address, server_key=key.public, key=who, timeout_s=3)
            )
            return made[-1]

        async with (
            asyncio.timeout(60),
            await session.listen(
                ("127.0.0.1", 0), key=key, hosts=hosts, idle=idle, allow=allow
            ) as listener,
        ):
            try:
                await scenario(listener, connect)
            finally:
                for each in made:
                    each.abort()
                    await each.wait_drained()

    run_jumping(run())


def leave(connection):
    """The client's networks are gone, and nobody tells the server why."""
    connection.flow.dialler.close()
    for path in list(connection.flow.paths.values()):
        path.close("gone", reset=True)


def test_a_host_that_is_away_is_held_to_its_bytes_and_others_are_not():
    one, other = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))

    async def scenario(listener, connect):
        flows = []
        for who, size in ((one, 700_000), (one, 300_000), (one, 400_000), (other, 900_000)):
            near = await connect(who)
            far = await listener.accept()
            leave(near)
            await until(lambda far=far: not far.paths())
            await far.write(bytes(size))
            flows.append(far)
        largest, small, middle, foreign = flows
        await until(lambda: largest.ended)
        with pytest.raises(SessionError, match=r"its host is away and has more than 1000000 bytes"):
            await largest.read()
        await asyncio.sleep(2.2)  # two more looks: what is left is within the limit
        assert not small.ended
        assert not middle.ended
        assert not foreign.ended
        for each in (small, middle, foreign):
            each.abort()

    serving(scenario, HandshakeLimits(idle_bytes_per_host=1_000_000))


def test_who_is_there_is_not_held_to_the_bytes_of_the_absent():
    async def scenario(listener, connect):
        near = await connect(KeyPair(os.urandom(32)))
        far = await listener.accept()
        await far.write(bytes(500_000))  # no program reads it
        await asyncio.sleep(2.2)
        assert not far.ended
        assert len(await near.read_exactly(500_000)) == 500_000

    serving(scenario, HandshakeLimits(idle_bytes_per_host=1_000))


@pytest.mark.parametrize(
    ("flows", "limits", "why"),
    [
        (  # a host has sent this to each of its flows, which no program reads
            [("one", 240_000), ("one", 200_000), ("one", 190_000), ("other", 250_000)],
            HandshakeLimits(unread_bytes_per_host=500_000),
            "more than 500000 bytes that are not read",
        ),
        (
            [("one", 240_000), ("other", 200_000), ("third", 190_000)],
            HandshakeLimits(unread_bytes=500_000),
            "more than 500000 bytes of all hosts",
        ),
        (  # what goes for its own host counts no more: another's, the largest, went for it
            [("one", 201_000), ("one", 190_000), ("one", 180_000), ("other", 240_000)],
            HandshakeLimits(unread_bytes_per_host=500_000, unread_bytes=700_000),
            "its host has sent",
        ),
    ],
)
def test_of_what_is_not_read_the_largest_goes_until_the_rest_is_within_limits(flows, limits, why):
    hosts = {name: KeyPair(os.urandom(32)) for name, _ in flows}

    async def scenario(listener, connect):
        found = []
        for name, size in flows:
            near = await connect(hosts[name])
            found.append(await listener.accept())
            await near.write(bytes(size))
        await until(lambda: found[0].ended)
        assert why in str(found[0].failure)
        await asyncio.sleep(2.2)
        assert not any(each.ended for each in found[1:])

    serving(scenario, limits)


@pytest.mark.parametrize(
    ("limits", "away"),
    [
        (HandshakeLimits(unread_bytes=500_000), False),
        (HandshakeLimits(unread_bytes_per_host=350_000), False),
        (HandshakeLimits(idle_bytes_per_host=350_000), True),
        (HandshakeLimits(absent=4), True),
    ],
)
def test_where_strangers_are_let_in_an_address_is_one_host_whatever_keys_it_makes(limits, away):
    """Many keys of one address filled a limit, and it was others' sessions that ended."""

    async def scenario(listener, connect):
        accepted, first = listener._on_accepted, iter(["192.0.2.1"])
        listener._on_accepted = lambda one, _address: accepted(one, next(first, "198.51.100.7"))
        found = []
        for size in (150_000, *[100_000] * 4):
            near = await connect(KeyPair(os.urandom(32)))
            found.append(await listener.accept())
            if away:
                leave(near)
                await until(lambda far=found[-1]: not far.paths())
                await found[-1].write(bytes(size))
            else:
                await near.write(bytes(size))
        await until(lambda: any(each.ended for each in found))
        await asyncio.sleep(2.2)
        assert [each.ended for each in found].count(True) == 1
        assert not found[0].ended, "the largest session, of one who holds little"
        for each in found:
            if away:
                each.abort()

    serving(scenario, limits, allow=None)


def record_without_its_end(near):
    (path,) = near.flow.paths.values()
    sealed = b"".join(map(bytes, path.channel.send([bytes(200_000)])))
    path.connection.setblocking(True)
    path.connection.sendall(sealed[:-1])


def datagrams(near):
    for _ in range(4):
        near.send_datagram(bytes(60_000), 60.0)


@pytest.mark.parametrize("send", [record_without_its_end, datagrams])
def test_what_no_program_can_read_or_takes_counts_as_unread(send):
    """A path took 270 kB for ever, and a session a megabyte, that no limit counted."""

    async def scenario(listener, connect):
        flows = []
        for _ in range(3):
            near = await connect(KeyPair(os.urandom(32)))
            flows.append(await listener.accept())
            send(near)
        await until(lambda: any(each.ended for each in flows))
        ended = next(each for each in flows if each.ended)
        assert "more than 500000 bytes of all hosts" in str(ended.failure)

    serving(scenario, HandshakeLimits(unread_bytes=500_000))


async def gone(listener, near):
    far = await listener.accept()
    await far.write(b"never acknowledged")  # it cannot sleep
    leave(near)
    await until(lambda: not far.paths())
    return far


def test_of_those_that_are_away_few_stay_the_busy_hosts_go_first():
    busy = KeyPair(os.urandom(32))

    async def scenario(listener, connect):
        hosts = [KeyPair(os.urandom(32)), busy, busy, busy, KeyPair(os.urandom(32))]
        flows = [await gone(listener, await connect(each)) for each in hosts]
        await until(lambda: any(each.ended for each in flows))
        await asyncio.sleep(2.2)
        assert [each.ended for each in flows] == [False, True, True, False, False]
        assert "3 sessions without a network" in str(flows[1].failure)

    serving(scenario, HandshakeLimits(absent=3))


@pytest.mark.parametrize("invited", [False, True])
def test_a_peer_has_so_many_sessions_an_address_whatever_keys_it_makes(tmp_path, invited):
    """An invited client's paths, of its key from anywhere, took all of a gateway's files."""
    key = KeyPair(os.urandom(32))

    def who():
        return key if invited else KeyPair(os.urandom(32))

    async def scenario(listener, connect):
        here = [await connect(who()) for _ in range(2)]
        with pytest.raises(SessionError, match="takes no more flows"):
            await connect(who())
        # One that is away, or sleeps, takes nothing of it, and comes back only where there is room.
        far = await gone(listener, here[0])
        third = await connect(who())
        await listener.accept()
        peer = (await listener.accept()).account
        assert not listener._flows.has_room(far.flow.credentials.flow_id, peer, only=True)
        living = third.flow.credentials.flow_id
        assert not listener._flows.has_room(living, peer, only=False), "a second path"
        assert listener._flows.has_room(living, peer, only=True), "instead of the first"
        if invited:
            assert not (await connect(KeyPair(os.urandom(32)))).ended
        third.abort()
        await third.wait_drained()
        assert not (await connect(who())).ended

    limits, allow = (
        HandshakeLimits(connections_per_peer=2),
        (lambda _key: True) if invited else None,
    )
    serving(scenario, limits, tmp_path / "idle", allow)


def test_an_ipv6_network_is_one_address():
    ledger = HostLedger(HandshakeLimits(connections_per_peer=1))
    ledger.add_connection(network_of("2001:db8:1:2::3"))
    assert not ledger.has_room(network_of("2001:db8:1:2:ffff::"))
    assert ledger.has_room(network_of("2001:db8:1:3::3"))
    ledger.add_connection(network_of("::ffff:192.0.2.1"))
    assert not ledger.has_room(network_of("192.0.2.1"))
    ledger.take_connection(network_of("192.0.2.1"))
    ledger.take_connection(network_of("2001:db8:1:2::4"))
    assert not ledger._of_peer


def test_a_clock_that_is_set_ahead_ends_no_sleeping_flow(tmp_path, monkeypatch):
    """A lying time server ended the sessions of all clients that were away."""

    async def scenario(listener, connect):
        near = await connect(KeyPair(os.urandom(32)))
        far = await listener.accept()
        far.on_sleep(bytes)
        leave(near)
        await until(lambda: far.ended)  # asleep
        assert listener._flows._idle is not None
        assert len(listener._flows._idle) == 1
        now_s = time.time
        monkeypatch.setattr(time, "time", lambda: now_s() + 400 * 86_400)
        await asyncio.sleep(5.0)
        assert len(listener._flows._idle) == 1

    serving(scenario, HandshakeLimits(), tmp_path / "idle")


def test_sleeping_flows_count_and_over_a_restart(tmp_path):
    who, other = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    limits = HandshakeLimits(flows_per_host=2)

    async def first(listener, connect):
        for _ in range(2):
            near = await connect(who)
            far = await listener.accept()
            far.on_sleep(bytes)
            leave(near)
            await until(lambda far=far: far.ended)  # asleep
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        await connect(other)

    serving(first, limits, tmp_path / "idle")

    async def second(_listener, connect):
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        await connect(other)

    serving(second, limits, tmp_path / "idle")


def test_without_a_file_those_that_are_away_count_too():
    who = KeyPair(os.urandom(32))

    async def scenario(listener, connect):
        near = await connect(who)
        far = await listener.accept()
        leave(near)
        await until(lambda: not far.paths())
        with pytest.raises(SessionError, match="takes no more flows of this host"):
            await connect(who)
        far.abort()
        assert not (await connect(who)).ended

    serving(scenario, HandshakeLimits(flows_per_host=1))
