"""Flows while they live: what is known of each, and of networks by them."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given, strategies
from hypothesis import strategies as st
from kit.controller import LTE, SERVER, WLAN

from cedos.controller.events import FlowClosed, FlowOpened, SizeLearned
from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.flows.reading_pace import ReadingPace
from cedos.model import (
    CompetingTransfer,
    Context,
    Decision,
    Direction,
    FlowKey,
    FlowSample,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)

FIRST = FlowKey(ip_address("10.0.0.2"), 4000, SERVER, 80)
SECOND = FlowKey(ip_address("10.1.0.2"), 4001, SERVER, 80)
TOKEN = 77


def sample(key, down=0, up=0, **changes):
    given = {"token": None, "idle_down_s": 0.01, "unacknowledged": 0} | changes
    given = {"at_s": 0.0, "state": 1} | given
    return FlowSample(
        key, rtt_s=0.02, rtt_min_s=0.02, delivery_rate_bps=1e6,
        bytes_down=down, bytes_up=up, retransmits=0, **given,
    )  # fmt: skip


def size(key, count, source="content-length"):
    return SizeLearned(key, Direction.DOWN, SizeEstimate(count, count, count, source))


def decision(choice, at_s):
    transfer = Transfer(SizeEstimate(3000, 3000, 3000, "default"))
    return Decision(1, 100.0 + at_s, transfer, Context(at_s, {}), (), choice, "max-s", "")


@pytest.fixture
def flows():
    flows = LivingFlows()
    flows.networks_changed([WLAN, LTE])
    return flows


def test_nothing_is_said_of_a_flow_whose_program_may_be_pausing(flows):
    flow = flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    flows.on_size(size(FIRST, 1_000_000, "history"))
    flows.on_samples([sample(FIRST, 100_000)], 2.0)
    flows.on_samples([sample(FIRST, 100_000, idle_down_s=0.9)], 3.0)
    assert flow.rate_bps is None


def test_an_upload_without_acknowledgements_is_stalled(flows):
    flow = flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    flows.on_size(SizeLearned(FIRST, Direction.UP, SizeEstimate(9, 10**6, 10**7, "history")))
    for tenths in range(5):
        acked = {"unacknowledged": 10, "idle_down_s": 9.0, "idle_ack_s": 0.02}
        flows.on_samples([sample(FIRST, 0, 20_000 * tenths, **acked)], 2.0 + 0.2 * tenths)
    assert flow.rate_bps == pytest.approx(0.8e6)
    flows.on_samples([sample(FIRST, 0, 80_000, **(acked | {"idle_ack_s": 0.5}))], 3.3)
    assert flow.rate_bps == 0.0


@pytest.mark.parametrize(
    "last", [sample(FIRST, 1_995_000), sample(FIRST, 600_000, idle_down_s=3.0)]
)
def test_what_is_nearly_over_or_pauses_shares_nothing(last, flows):
    flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    flows.on_size(size(FIRST, 2_000_000))
    flows.on_samples([last], 2.0)
    assert flows.competing(2.0) == {}


def test_a_flow_is_alone_where_nothing_else_was_or_is_carried(flows):
    flow = flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    nothing = Context(1.0, {})
    own = Context(1.0, {}, competing={"wlan0": {Direction.DOWN: (CompetingTransfer(FIRST, 9),)}})
    other = Context(1.0, {}, competing={"wlan0": {Direction.UP: (CompetingTransfer(SECOND, 9),)}})
    assert flow.alone_on("wlan0", own)
    assert not flow.alone_on("wlan0", other)
    assert flow.alone_on("lte0", other)
    flow.began_in(other)
    assert not flow.alone_on("wlan0", nothing)


def test_whether_a_flow_tried_fewer_networks_and_came_back(flows):
    flow = flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    both = Strategy(StrategyKind.MPTCP, ("wlan0", "lte0"))
    alone = Strategy(StrategyKind.SINGLE, ("wlan0",))
    for at_s, choice in ((2.0, both), (4.0, alone)):
        flow.on_decision(decision(choice, at_s))
        assert not flow.tried_since(0.0)
    flow.on_decision(decision(both, 7.0))
    assert flow.tried_since(6.0)
    assert not flow.tried_since(7.0)


def named(key, name="a.example"):
    return replace(size(key, 3000, "default"), server_name=name)


def test_an_early_name_is_not_given_to_a_later_connection_of_the_same_ports(flows):
    flows.on_early_size(named(FIRST), 1.0)
    assert flows.on_open(FlowOpened(FIRST, 9.0, 108.0)).server_name is None
    flows.on_early_size(named(SECOND), 9.0)
    flows.on_close(FlowClosed(SECOND, 109.0, 0, 0, at_s=9.1))
    assert flows.on_open(FlowOpened(SECOND, 9.2, 108.2)).server_name is None


@given(
    strategies.lists(
        strategies.tuples(strategies.booleans(), strategies.integers(0, 5)), max_size=40
    )
)
def test_the_order_of_openings_and_first_packets_does_not_matter(events):
    flows, opened, named_by_packet = LivingFlows(), set[int](), set[int]()
    for at, (opens, number) in enumerate(events):
        key = replace(FIRST, local_port=5000 + number)
        if opens:
            flows.on_open(FlowOpened(key, 1.0 + at / 1000, 100.0))
            opened.add(number)
        else:
            event = named(key, f"{number}.example")
            if flows.on_size(event) is None:
                flows.on_early_size(event, 1.0 + at / 1000)
            named_by_packet.add(number)
    for number in opened:
        flow = flows.find(replace(FIRST, local_port=5000 + number))
        expected = f"{number}.example" if number in named_by_packet else None
        assert flow.server_name == expected


def test_of_many_early_names_the_last_ones_are_kept(flows):
    keys = [replace(FIRST, local_port=port) for port in range(1000, 3000)]
    for key in keys:
        flows.on_early_size(named(key), 1.0)
    found = [flows.on_open(FlowOpened(key, 1.0, 100.0)).server_name for key in keys]
    assert found[-1] == "a.example"
    assert 0 < sum(name is not None for name in found) < 500


def seen_of(flow, now_s):
    """Return what the controller reads of a flow."""
    return (
        *(flow.rate_bps, flow.stalled_s, flow.transfers, flow.under_way, flow.rests, flow.unread),
        *(flow.read_slowly, flow.competes(now_s), flow.pace.sets(now_s)),
    )


ACTS = strategies.tuples(
    strategies.sampled_from(
        ["rests", "long", "receives", "sends", "asks", "fills", "hears", "size", "named", "joins"]
    ),
    strategies.integers(1, 8),
)


@given(strategies.lists(ACTS, max_size=20))
def test_a_flow_that_is_still_is_as_if_each_look_had_been_taken(acts):
    """The same looks are taken by flows that may be still, and by flows that never are."""
    both = LivingFlows(), LivingFlows()
    now_s, heard_at_s, down, up, joined = 10.0, 10.0, 0, 0, False
    for flows in both:
        flows.networks_changed([WLAN, LTE])
        flows.on_open(FlowOpened(FIRST, now_s, 100.0))
    for act in [act for act, times in acts for _ in range(times)]:
        now_s += 40.0 if act == "long" else 0.25
        state = {"unread": act == "fills", "unacknowledged": int(act == "sends")}
        if act in ("receives", "sends", "asks", "fills", "hears"):
            heard_at_s = now_s
        down += 60_000 * (act in ("receives", "fills"))
        up += 60_000 * (act == "sends") + 400 * (act == "asks")
        joined |= act == "joins"
        idle_s = now_s - heard_at_s
        looks = [sample(FIRST, down, up, token=TOKEN, **state, idle_down_s=idle_s, at_s=now_s)]
        if joined:
            looks.append(sample(SECOND, token=TOKEN, idle_down_s=idle_s, at_s=now_s))
        for flows, may_be_still in zip(both, (True, False), strict=True):
            if act in ("size", "named"):
                known = (200_000, "content-length") if act == "size" else (3_000, "default")
                flows.on_size(size(FIRST, *known))
            flows.on_samples(looks, now_s)
            for flow in flows:
                flow.still &= may_be_still
                if not may_be_still:
                    flow._still_at_s = None
        one, other = (flows.find(FIRST) for flows in both)
        assert seen_of(one, now_s) == seen_of(other, now_s)
        assert one.still or one._carried_at == other._carried_at


def test_a_flow_at_rest_is_left_out_until_something_comes(flows):
    flows.on_open(FlowOpened(FIRST, 1.0, 100.0))
    seen = []
    for look, down in enumerate([1000] * 8 + [9000]):
        rest_s = 0.25 * (look + 1) if down == 1000 else 0.0
        seen.append(
            len(flows.on_samples([sample(FIRST, down, idle_down_s=rest_s)], 2.0 + look / 4))
        )
    assert seen == [1, 1, 1, 1, 1, 0, 0, 0, 1]


def test_between_two_looks_at_a_full_socket_as_much_was_read_as_came():
    pace = ReadingPace()
    pace.observe(0.0, 5_000_000, unread=False)
    pace.observe(0.2, 6_000_000, unread=True)
    assert not pace.sets(0.2), "one look may be the moment at which a gap was filled"
    pace.observe(0.4, 6_050_000, unread=True)
    assert pace.sets(0.4)
    assert pace.rate_bps(0.4) is None, "it is not known yet"
    pace.observe(1.2, 6_250_000, unread=True)
    assert pace.rate_bps(1.2) == 2_000_000


def test_a_program_that_pauses_reads_nothing():
    pace = ReadingPace()
    for tenth in range(30):
        pace.observe(tenth / 10, 1_000_000, unread=True)
    assert pace.sets(2.9)
    assert pace.rate_bps(2.9) == 0.0


def test_one_that_stops_for_a_moment_now_and_then_is_no_slow_reader():
    """Else its network's rate would be its pace, and no other network ever helped."""
    pace = ReadingPace()
    for fifth in range(200):
        pace.observe(fifth / 5, 50_000 * fifth, unread=fifth % 10 == 0)
        assert fifth < 20 or not pace.sets(fifth / 5)


def test_bursts_and_pauses_are_one_pace():
    """A limited rate: a megabyte at once, and then nothing for two seconds."""
    pace = ReadingPace()
    for fifth in range(100):
        pace.observe(fifth / 5, 1_000_000 * (fifth // 10), unread=fifth % 10 != 0)
    rate_bps = pace.rate_bps(19.8)
    assert 3.5e6 < rate_bps < 4.5e6


def test_who_reads_at_once_again_leaves_the_pace_to_the_network():
    pace = ReadingPace()
    for second in range(8):
        pace.observe(float(second), 100_000 * second, unread=True)
    for second in range(8, 12):
        pace.observe(float(second), 1_000_000 * second, unread=False)
    assert pace.sets(12.0)
    assert not pace.sets(12.1)
    pace.observe(13.0, 13_000_000, unread=True)
    assert not pace.sets(13.0), "what was before counts no more"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 50), st.booleans()), max_size=50))
def test_whatever_is_seen_the_pace_is_sane(looks):
    pace = ReadingPace()
    for at_s, carried, unread in sorted(looks):
        pace.observe(at_s, carried, unread=unread)
        rate_bps = pace.rate_bps(at_s)
        assert rate_bps is None or rate_bps >= 0
