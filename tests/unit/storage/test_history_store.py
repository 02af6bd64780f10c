"""Connections through a gateway in the history, and what servers carried by it."""

import sqlite3
from ipaddress import ip_address
from math import inf, isinf, isnan, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cedos.model import (
    Bulk,
    CarriedConnection,
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
from cedos.storage.history import History
from cedos.storage.history_store import (
    carried_of,
    carried_row,
    decision_of,
    decision_row,
    flow_of,
    flow_row,
    matcher,
)
from cedos.storage.usage import bytes_by_server

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
def test_a_decision_comes_back_as_it_was(decision):
    assert decision_of(decision_row(decision)) == decision


@given(flows)
def test_a_flow_comes_back_as_it_was(flow):
    assert flow_of(flow_row(flow)) == flow


def test_what_json_cannot_say_survives():
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
def test_a_flow_is_found_by_name_address_and_port(wanted, remote, port, server_name, expected):
    assert matcher(wanted)(remote, port, server_name) is expected


GITHUB = CarriedConnection(
    ended_unix_s=10.0,
    server="github.com",
    port=443,
    gateway="gw.example.org",
    addresses=("198.51.100.7", "2001:db8::7"),
    bytes_down=70,
    bytes_up=30,
    decision=5,
    bytes_by_network={"wlan0": 60, "lte0": 40},
)


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


counts = st.integers(0, 10**15)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "history.sqlite"


@given(
    st.builds(
        CarriedConnection,
        ended_unix_s=st.floats(0, 1e10),
        server=texts,
        port=st.integers(1, 65_535),
        gateway=texts,
        addresses=st.lists(texts, max_size=3).map(tuple),
        bytes_down=counts,
        bytes_up=counts,
        decision=st.none() | st.integers(1, 2**53),
        bytes_by_network=st.dictionaries(texts, counts, max_size=3),
    )
)
def test_a_row_gives_back_what_it_was_made_from(record):
    with sqlite3.connect(":memory:") as connection:
        row = connection.execute("SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?", carried_row(record)).fetchone()
    assert carried_of(row) == record
    connection.close()


def test_they_are_found_from_memory_and_from_the_file(path):
    history = History(path)
    history.add_carried(GITHUB)
    assert history.waiting == 1
    history.flush()
    assert history.waiting == 0
    newer = replace(GITHUB, server="2001:db8::1", port=22, decision=None)
    history.add_carried(newer)
    assert history.carried_connections() == [newer, GITHUB]
    assert history.carried_connections(
        server=lambda name, port: (name, port) == ("github.com", 443)
    ) == [GITHUB]
    assert history.carried_connections(server=lambda _name, port: port == 22) == [newer]
    assert history.carried_connections(server=lambda *_: False) == []
    assert history.carried_connections(1) == [newer]
    history.close()
    again = History(path)
    assert again.carried_connections() == [newer, GITHUB]
    assert again.carried_connections(1, server=lambda name, _port: name == "github.com") == [GITHUB]
    again.close()


def test_there_are_not_more_than_are_to_be_kept(path):
    history = History(path, max_rows=10, max_waiting=20)
    for port in range(1, 31):
        history.add_carried(replace(GITHUB, port=port))
    assert history.dropped == 10
    history.flush()
    assert [each.port for each in history.carried_connections(100)] == list(range(30, 20, -1))
    history.close()


def test_what_cannot_be_written_waits(path):
    path.parent.write_text("a file where the folder should be")
    history = History(path, retry_s=0.0)
    history.add_carried(GITHUB)
    history.flush()
    assert history.carried_connections() == [GITHUB]
    path.parent.unlink()
    history.flush()
    assert history.waiting == 0
    assert history.carried_connections() == [GITHUB]
    history.close()


def test_a_file_of_the_schema_before_is_moved_aside(path):
    History(path).close()
    with sqlite3.connect(path) as older:
        older.execute("DROP TABLE carried")
        older.execute("PRAGMA user_version = 1")
    older.close()
    assert bytes_by_server(path, 0.0).servers == {}, "whoever only looks leaves it alone"
    history = History(path)
    assert history.notice is not None
    assert "has schema 1 and this cedos knows 2" in history.notice
    history.add_carried(GITHUB)
    history.flush()
    assert history.carried_connections() == [GITHUB]
    history.close()
    assert Path(f"{path}.aside-1").exists()


def test_servers_are_told_apart_by_the_gateway(path):
    history = History(path)
    key = FlowKey(ip_address("192.0.2.1"), 5000, ip_address("198.51.100.7"), 7010)
    history.add_flow(FlowRecord((Subflow(key, "wlan0", 200, 0),), None, None, 30.0, None))
    history.add_flow(FlowRecord((Subflow(key, "lte0", 7, 0),), None, None, 30.0, "github.com"))
    for ended_unix_s in (9.0, 10.0, 20.0):
        history.add_carried(replace(GITHUB, ended_unix_s=ended_unix_s))
    history.add_carried(replace(GITHUB, gateway="other.example", bytes_by_network={"lte0": 0}))
    history.close()
    first, servers, addresses = bytes_by_server(path, 10.0)
    assert first == 9.0
    assert servers == {
        ("198.51.100.7", None): {"wlan0": 200},
        ("github.com", None): {"lte0": 7},
        ("github.com", "gw.example.org"): {"wlan0": 120, "lte0": 80},
    }
    known = {"198.51.100.7", "2001:db8::7"}
    assert addresses == {"gw.example.org": known, "other.example": known}


def test_totals_beyond_what_sqlite_counts_hide_no_others(path):
    history = History(path, max_waiting=10_000)
    key = FlowKey(ip_address("192.0.2.1"), 5000, ip_address("198.51.100.1"), 443)
    history.add_flow(FlowRecord((Subflow(key, "wlan0", 5, 0),), None, None, 30.0, "a.example"))
    for _ in range(9_300):
        history.add_carried(replace(GITHUB, bytes_by_network={"lte0": 10**15}))
    history.close()
    servers = bytes_by_server(path, 0.0).servers
    assert servers["a.example", None] == {"wlan0": 5}
    assert servers["github.com", "gw.example.org"]["lte0"] > 9 * 10**18


def test_completeness_begins_where_a_table_has_forgotten(path):
    history = History(path, max_rows=5)
    history.add_flow(FlowRecord((), None, None, 1.0, None))
    for ended in range(2, 12):
        history.add_carried(replace(GITHUB, ended_unix_s=float(ended)))
    history.close()
    assert bytes_by_server(path, 0.0).first_unix_s == 7.0
