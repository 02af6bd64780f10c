"""Reports of proxies about connections through a gateway: what is shown, and what is written, once."""

from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.api.messages import CarriedReport
from cedos.daemon import told_connections
from cedos.daemon.told_connections import ToldConnections
from cedos.errors import ConfigError
from cedos.model import CarriedConnection, Network, NetworkKind, Strategy, StrategyKind
from cedos.storage.history import History

PHONE = Network(name="phone", interface="usb0", index=4, kind=NetworkKind.CELLULAR, metered=True)
BOTH = Strategy(StrategyKind.MPTCP, ("wlan0", "phone"))
USER = 1000
EPOCH = 1.7e9


def news(number, down=0, /, **more):
    usual = {"server": "github.com", "port": 443, "age_s": 1.0}
    by = {"bytes_by_network": {"wlan0": down}} if down else {}
    if more.pop("ended", False):
        more["ended_unix_s"] = 1.0
    return CarriedConnection(number=number, bytes_down=down, **usual | by | more)


def report(*connections, program=1, gateway="gw.example"):
    return CarriedReport(
        program=f"{program:032x}",
        gateway=gateway,
        addresses=("198.51.100.7",),
        connections=connections,
    )


class Told:
    """With a history, networks that come and go, and a clock."""

    def __init__(self, path):
        self.history = History(path, max_waiting=10_000)
        self.networks = [PHONE]
        self.connections = self.begun()

    def begun(self):
        return ToldConnections(
            lambda: self.networks, {5: SimpleNamespace(choice=BOTH)}.get, self.history
        )

    def say(self, now_s, *connections, **more):
        self.connections.on_report(report(*connections, **more), USER, now_s, EPOCH + now_s)

    def check(self, now_s):
        self.connections.check(now_s, EPOCH + now_s)

    def servers(self, now_s):
        return [each.server for each in self.connections.largest(100, now_s)[0]]

    @property
    def written(self):
        """The oldest first."""
        return self.history.carried_connections(100_000)[::-1]


@pytest.fixture
def told(tmp_path):
    return Told(tmp_path / "history.sqlite")


def test_the_newest_word_is_shown(told):
    told.say(10.0, news(1, 100, bytes_up=7, age_s=3.0, decision=5), news(2, server="b.example"))
    told.say(11.0, news(1, 300, bytes_by_network={"usb0": 120, "wlan0": 180, "odd": 0}))
    shown, others = told.connections.largest(100, 12.0)
    assert others == 0
    assert [each.server for each in shown] == ["github.com", "b.example"], "the oldest first"
    first = shown[0]
    assert (first.gateway, first.port, first.age_s) == ("gw.example", 443, 5.0)
    assert (first.bytes_down, first.bytes_up) == (300, 7)
    assert first.bytes_by_network == {"phone": 120, "wlan0": 180}
    assert (first.decision, first.strategy) == (5, BOTH)
    assert shown[1].strategy is None


def test_a_gateway_that_lets_nobody_in_is_a_problem(told):
    """A changed key was told in the proxy's log alone."""
    changed = msgspec.structs.replace(report(), problem="the server has another key")
    told.connections.on_report(changed, USER, 1.0, EPOCH)
    (problem,) = told.connections.problems(2.0)
    assert problem.startswith("gateway gw.example: the server has another key.")
    assert told.connections.problems(100.0) == []
    told.say(3.0)
    assert told.connections.problems(3.0) == []


def test_a_program_that_is_not_heard_shows_nothing_though_it_counts(told):
    told.say(0.0, news(1, 100))
    assert told.servers(5.0) == ["github.com"]
    assert told.servers(5.1) == []
    told.check(59.0)
    assert told.written == []
    assert [each.bytes_down for each in told.connections.unwritten(EPOCH)] == [100]
    told.say(59.5)
    assert told.servers(60.0) == ["github.com"], "one word of its program is enough"


def test_an_end_told_twice_or_followed_by_a_late_word_is_one_end(told):
    for each in (news(1, 100, ended=True), news(1, 100, ended=True), news(1, 90)):
        told.say(10.0, each)
    assert [each.bytes_down for each in told.written] == [100]
    assert told.servers(10.0) == []


def test_a_silent_program_is_written_as_of_its_last_word(told):
    told.say(10.0, news(1, 100), news(2, 1), news(3))
    told.check(69.9)
    assert told.written == []
    told.check(70.0)
    assert [each.ended_unix_s for each in told.written] == [EPOCH + 10.0] * 2
    told.check(80.0)
    assert len(told.written) == 2


def test_numbers_are_each_programs_own(told):
    told.say(0.0, news(1, 10))
    told.say(0.0, news(1, 20, server="b.example"), program=2, gateway="other.example")
    told.connections.on_report(report(news(1, 30, server="c.example")), USER + 1, 0.0, EPOCH)
    shown = told.connections.largest(9, 0.0)[0]
    assert {(each.server, each.gateway, each.bytes_down) for each in shown} == {
        ("github.com", "gw.example", 10),
        ("b.example", "other.example", 20),
        ("c.example", "gw.example", 30),
    }


def test_programs_are_bounded(told):
    for program in range(96):
        told.say(0.0, news(1), program=program)
    told.say(1.0, news(1, 5), program=3)
    with pytest.raises(ConfigError, match="96 of one user"):
        told.say(1.0, news(1), program=96)
    for program in range(32):
        told.connections.on_report(report(news(1), program=program), USER + 1, 1.0, EPOCH)
    with pytest.raises(ConfigError, match="more than 128 programs"):
        told.connections.on_report(report(news(1)), USER + 2, 1.0, EPOCH)
    told.check(60.0)
    told.say(60.0, news(1, 7), program=96)
    assert [each.bytes_down for each in told.connections.unwritten(EPOCH)] == [5, 7]


def test_a_gateway_is_where_addresses_say(told):
    """Else a server's own row could be taken for a gateway's."""
    claimed = msgspec.structs.replace(report(news(1, 5)), addresses=("bank.example", "2001:db8::7"))
    told.connections.on_report(claimed, USER, 0.0, EPOCH)
    assert told.connections.unwritten(EPOCH)[0].addresses == ("2001:db8::7",)


def test_connections_of_all_programs_are_bounded_together(told, monkeypatch):
    monkeypatch.setattr(told_connections, "_MOST_CONNECTIONS", 3)
    told.say(0.0, news(1, 1), news(2, 2), program=1)
    told.say(1.0, news(1, 3), news(2, 4), program=2)
    assert sum(map(len, (each.connections for each in told.connections._programs.values()))) == 3
    assert [each.bytes_down for each in told.written] == [3]


async def test_a_name_that_many_others_end_with_is_found(told):
    told.say(0.0, news(1, 1, server="x.com", decision=3, ended=True))
    netflix = [news(2 + each, 1, server="netflix.com", ended=True) for each in range(120)]
    told.say(1.0, *netflix)
    found = await told.begun().find("x.com", EPOCH)
    assert found.decision == 3


def test_connections_are_bounded_and_the_quietest_go_to_the_history(told, monkeypatch):
    monkeypatch.setattr(told_connections, "_MOST_CONNECTIONS", 3)
    told.say(0.0, *(news(each, each) for each in (1, 2, 3)))
    told.say(1.0, news(1, 10), news(3, 30))
    told.say(2.0, news(4, 4), news(2, 2))
    assert [each.bytes_down for each in told.written] == [2]
    assert sorted(each.bytes_down for each in told.connections.largest(9, 2.0)[0]) == [4, 10, 30]
    told.say(3.0, news(2, 2))
    assert [each.bytes_down for each in told.written] == [2], "it was the quietest again"
    told.say(4.0, news(2, 9))
    assert [each.bytes_down for each in told.written] == [2, 10]
    assert sorted(each.bytes_down for each in told.connections.largest(9, 4.0)[0]) == [4, 9, 30]


def test_interfaces_of_a_connection_are_bounded(told):
    for each in range(100):
        told.say(0.0, news(1, 1, bytes_by_network={f"x{each}": 1}))
    told.say(0.0, news(1, 1, bytes_by_network={"x0": 7}))
    by = told.connections.largest(1, 0.0)[0][0].bytes_by_network
    assert len(by) == 16
    assert by["x0"] == 7


def test_the_largest_report_that_is_accepted_can_be_read_again(told):
    """A member of the group reported it, and no user could read the status any more, root neither."""
    most = {"usb0": 10**15, "phone": 10**15}
    told.say(0.0, news(1, 10**15, age_s=1e9, bytes_by_network=most))
    shown, _ = told.connections.largest(1, 5.0)
    read = msgspec.json.decode(msgspec.json.encode(shown), type=list[CarriedConnection])
    assert read == shown


def test_what_is_remembered_of_those_that_are_over_is_bounded(told, monkeypatch):
    monkeypatch.setattr(told_connections, "_REMEMBERED", 10)
    for each in range(100):
        told.say(0.0, news(each, 1, ended=True))
    assert len(told.connections._over) == 10


def test_a_crowd_that_falls_silent_has_room_in_the_history(tmp_path):
    told = Told(tmp_path / "history.sqlite")
    told.history = History(tmp_path / "other.sqlite")
    told.connections = told.begun()
    for each in range(0, 2000, 200):
        told.say(0.0, *(news(number, 1) for number in range(each, each + 200)))
    for second in range(60, 70):
        told.check(float(second))
        told.history.flush()
    assert told.history.dropped == 0
    assert len(told.written) == 2000
    told.history.close()


async def test_a_connection_is_found_by_its_server(told):
    told.say(0.0, news(1, server="www.Example.org", decision=3), news(2, server="2001:db8::1"))
    told.say(0.0, news(3, server="198.51.100.1", port=22, decision=4))
    for wanted, decision in (
        ("example.org", 3),
        ("www.example.org:443", 3),
        ("EXAMPLE.org:443", 3),
        ("198.51.100.1", 4),
        ("198.51.100.1:22", 4),
        ("2001:db8::1", None),
        ("[2001:db8::1]:443", None),
    ):
        found = await told.connections.find(wanted, EPOCH)
        assert found is not None, wanted
        assert (found.decision, found.gateway, found.ended_unix_s) == (
            decision,
            "gw.example",
            EPOCH,
        )
    for wanted in ("xample.org", "example.org:80", "100.1", "1", "443", "www", ""):
        assert await told.connections.find(wanted, EPOCH) is None, wanted


async def test_what_lives_is_found_before_what_is_over(told):
    async def number(connections):
        found = await connections.find("github.com", EPOCH + 100.0)
        return found.decision if found else None

    told.say(0.0, news(1, 7, decision=1), news(2, 7, decision=2, ended=True))
    assert await number(told.connections) == 1
    told.say(1.0, news(1, 7, decision=1, ended=True))
    assert await number(told.connections) == 1, "the last that ended"
    assert await number(told.begun()) == 1, "of the history"
    without = ToldConnections(list, lambda _number: None, None)
    assert await number(without) is None
    told.say(2.0, news(3, 7, server="notgithub.com", decision=9, ended=True))
    assert await number(told.begun()) == 1, "a part of a name is not enough"


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.integers(0, 100),
            st.booleans(),
            st.sampled_from([0.5, 10.0, 61.0]),
        ),
        max_size=30,
    )
)
def test_nothing_is_written_twice_or_lost(tmp_path_factory, said):
    told = Told(tmp_path_factory.mktemp("told") / "history.sqlite")
    most = Counter()
    over = set()
    now_s = 0.0
    for number, down, ends, pause_s in said:
        # After its end a proxy says nothing more of a connection, but its end again.
        ended = ends or number in over
        told.say(now_s, news(number, down, server=f"{number}", ended=ended))
        most[number] = max(most[number], down)
        over |= {number} if ended else set()
        now_s += pause_s
        told.check(now_s)
    told.check(now_s + 100.0)
    written = Counter()
    for record in told.written:
        written[int(record.server)] += record.bytes_by_network.get("wlan0", 0)
        assert record == msgspec.structs.replace(
            record, bytes_down=record.bytes_by_network.get("wlan0", 0)
        )
    assert +written == +most
    told.history.close()
