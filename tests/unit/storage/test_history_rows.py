from ipaddress import ip_address
from math import inf, isinf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import (
    Bulk,
    Context,
    Decision,
    Direction,
    Evaluation,
    FlowKey,
    FlowRecord,
    Indicator,
    Label,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Subflow,
    Transfer,
    Urgency,
)
from cedos.storage.history_rows import decision_of, decision_row, flow_of, flow_row, matcher

numbers = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1, max_size=8)
addresses = st.ip_addresses()
ports = st.integers(0, 65535)
keys = st.builds(FlowKey, addresses, ports, addresses, ports, st.sampled_from(["tcp", "udp"]))
sizes = st.builds(SizeEstimate, st.integers(0), st.integers(0), st.integers(0), names)
strategies = st.builds(
    Strategy, st.sampled_from(StrategyKind), st.lists(names, max_size=3).map(tuple)
)
labels = st.builds(Label, st.sampled_from(Urgency), st.sampled_from(Bulk))
transfers = st.builds(
    Transfer,
    sizes.filter(lambda size: size.median_bytes < 2**63),
    st.sampled_from(Direction),
    labels,
    st.none() | numbers,
    st.none() | keys,
    st.none() | names,
)
contexts = st.builds(
    Context,
    numbers,
    st.dictionaries(
        names,
        st.dictionaries(
            names, st.builds(Indicator, numbers, numbers, st.booleans(), st.booleans()), max_size=3
        ),
        max_size=2,
    ),
)
evaluations = st.builds(
    Evaluation, strategies, numbers, numbers, numbers, numbers, numbers, numbers | st.just(inf)
)
decisions = st.builds(
    Decision,
    st.integers(1, 2**40),
    numbers,
    transfers,
    contexts,
    st.lists(evaluations, max_size=4).map(tuple),
    strategies,
    names,
    names,
)
optional = st.none() | numbers
subflows = st.builds(
    Subflow,
    keys,
    st.none() | names,
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    optional,
    optional,
    optional,
    st.integers(0, 1000),
)
flows = st.builds(
    FlowRecord,
    st.lists(subflows, max_size=3).map(tuple),
    st.none() | st.integers(0, 2**32 - 1),
    optional,
    numbers,
    st.none() | names,
    st.none() | st.integers(1, 2**40),
    st.none() | sizes,
    st.lists(st.tuples(numbers, strategies), max_size=2).map(tuple),
)


@given(decisions)
def test_a_decision_comes_back_as_it_was(decision: Decision) -> None:
    assert decision_of(decision_row(decision)) == decision


@given(flows)
def test_a_flow_comes_back_as_it_was(flow: FlowRecord) -> None:
    assert flow_of(flow_row(flow)) == flow


def test_what_json_cannot_say_survives() -> None:
    decision = Decision(
        1,
        0.0,
        Transfer(SizeEstimate(1, 1, 1, "hint")),
        Context(0.0, {"wlan0": {"rtt_s": Indicator(nan, 0.0)}}),
        (Evaluation(Strategy(StrategyKind.SINGLE, ("wlan0",)), 1.0, 1.0, 1.0, 1.0, 0.0, inf),),
        Strategy(StrategyKind.SINGLE, ("wlan0",)),
        "max_s",
        "why",
    )
    back = decision_of(decision_row(decision))
    assert isinf(back.evaluations[0].cost)
    assert isnan(back.context.networks["wlan0"]["rtt_s"].value)


@pytest.mark.parametrize(
    ("wanted", "remote", "port", "server_name", "expected"),
    [
        ("example", "198.51.100.1", 443, "www.Example.org", True),
        ("EXAMPLE.org:443", "198.51.100.1", 443, "www.example.org", True),
        ("example.org:80", "198.51.100.1", 443, "www.example.org", False),
        ("198.51.100.1", "198.51.100.1", 443, None, True),
        ("198.51.100.1:443", "198.51.100.1", 443, None, True),
        ("198.51.100.1:80", "198.51.100.1", 443, None, False),
        ("443", "198.51.100.1", 443, None, True),
        (":443", "198.51.100.1", 443, None, True),
        ("80", "198.51.100.1", 443, None, False),
        ("2001:db8::1", "2001:db8::1", 443, None, True),
        ("[2001:db8::1]:443", "2001:db8::1", 443, None, True),
        ("[2001:db8::1]:80", "2001:db8::1", 443, None, False),
        ("[2001:db8::1]", "2001:db8::1", 443, None, True),
        ("example", None, None, None, False),
        ("", None, None, None, True),
    ],
)
def test_a_flow_is_found_by_name_address_and_port(
    wanted: str, remote: str | None, port: int | None, server_name: str | None, expected: bool
) -> None:
    assert matcher(wanted)(remote, port, server_name) is expected


@given(st.text(max_size=30))
def test_no_search_text_raises(wanted: str) -> None:
    assert matcher(wanted)("198.51.100.1", 443, "example.org") in {True, False}


def test_a_row_names_the_flow_of_its_first_path() -> None:
    key = FlowKey(ip_address("192.168.43.2"), 40000, ip_address("198.51.100.1"), 443)
    flow = FlowRecord((Subflow(key, "wlan0", 10, 1), Subflow(key, "lte0", 5, 2)), 7, None, 1.0)
    assert flow_row(flow)[1:8] == ("198.51.100.1", 443, None, None, 7, 15, 3)
