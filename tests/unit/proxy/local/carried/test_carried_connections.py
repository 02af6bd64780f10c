"""Whose bytes went over which network, and what is told of it."""

import gc
import weakref
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.api.carried import MOST_TOLD
from cedos.model import Bulk, Label
from cedos.proxy.local.carried import carried_connections
from cedos.proxy.local.carried.carried_connections import CarriedConnections
from cedos.session.sockets.path_report import PathReport


@dataclass
class Stream:
    received_bytes: int = 0
    sent_bytes: int = 0
    gone: bool = False
    lossy: bool = False
    server: str = "example.org"
    port: int = 443


@dataclass(eq=False)
class Session:
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)

    def paths(self) -> list[PathReport]:
        return [PathReport("wlan0", "192.0.2.1", None, None, 0, stalled=False)]

    def received_by_network(self) -> dict[str, int]:
        return dict(self.down)

    def sent_by_network(self) -> dict[str, int]:
        return dict(self.up)


class Case:
    """One session, whose connections begin as they are asked for."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.session = Session()
        self.decisions: dict[Bulk, int] = {}
        self.names: dict[str, str] = {}
        self.carried = CarriedConnections(lambda: self.now_s, self.names.get)

    def begin(self, host: str = "example.org", session: Session | None = None) -> Stream:
        stream = Stream(server=host)
        self.carried.began(session or self.session, stream, self._decided)
        return stream

    def _decided(self, label: Label) -> int | None:
        return self.decisions.get(label.bulk)


@pytest.fixture
def case() -> Case:
    return Case()


def test_bytes_are_spread_as_the_session_was_in_that_second(case: Case) -> None:
    large, small = case.begin(), case.begin("api.example")
    case.session.down = {"wlan0": 1_000}
    large.received_bytes = 900
    case.carried.look()
    case.session.down = {"wlan0": 1_300, "lte0": 900}
    case.session.up = {"lte0": 50}
    large.received_bytes += 800
    small.received_bytes, small.sent_bytes = 400, 40
    case.carried.look()
    first, second = case.carried.news()
    assert first.bytes_by_network == {"wlan0": 900 + 200, "lte0": 600}
    assert second.bytes_by_network == {"wlan0": 100, "lte0": 300 + 40}
    assert (second.bytes_down, second.bytes_up) == (400, 40)


def test_what_was_not_carried_yet_waits_for_its_network(case: Case) -> None:
    stream = case.begin()
    stream.sent_bytes = 5_000
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {}
    case.session.up = {"lte0": 5_100}
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {"lte0": 5_000}


def test_what_a_session_carried_before_is_not_its_next_connections(case: Case) -> None:
    """After a walk: a gigabyte over Wi-Fi, a rest, and then something over the phone."""
    first = case.begin()
    case.session.down = {"wlan0": 10**9}
    first.received_bytes, first.gone = 10**9, True
    case.carried.look()
    case.carried.told(case.carried.news())
    case.carried.look()
    case.session.down = {"wlan0": 10**9 + 500}  # keep-alives
    alone = case.begin("lone.example")
    case.session.down = {"wlan0": 10**9 + 500, "lte0": 5_100_000}
    alone.received_bytes = 5_000_000
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {"lte0": 5_000_000}


def test_what_was_handed_in_goes_where_it_goes_later(case: Case) -> None:
    stream = case.begin()
    stream.sent_bytes = 2_000_000
    case.session.up = {"wlan0": 300}
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {"wlan0": 300}
    case.session.up = {"wlan0": 300, "lte0": 2_000_500}
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {"wlan0": 300, "lte0": 1_999_700}


def test_a_stream_that_has_ended_is_let_go(case: Case) -> None:
    stream = case.begin()
    held = weakref.ref(stream)
    stream.gone = True
    case.carried.look()
    del stream
    gc.collect()
    assert held() is None
    assert case.carried.news()[0].ended


def test_a_server_gets_its_name_when_the_first_words_have_it(case: Case) -> None:
    stream = case.begin("192.0.2.7")
    case.carried.look()
    case.carried.told(case.carried.news())
    stream.server, stream.sent_bytes = "shop.example", 300
    case.carried.look()
    assert case.carried.news()[0].server == "shop.example"


def test_an_address_without_words_has_the_name_that_was_looked_up(case: Case) -> None:
    """Of ssh, say."""
    case.names["192.0.2.22"] = "git.example"
    case.begin("192.0.2.22")
    case.begin("192.0.2.23")
    case.names["192.0.2.22"] = "other.example"  # what is looked up later is not meant
    case.carried.look()
    assert [each.server for each in case.carried.news()] == ["git.example", "192.0.2.23"]


def test_sessions_are_counted_apart(case: Case) -> None:
    other = Session()
    mine, theirs = case.begin(), case.begin(session=other)
    case.session.down, other.down = {"wlan0": 10}, {"lte0": 10}
    mine.received_bytes = theirs.received_bytes = 8
    case.carried.look()
    assert [each.bytes_by_network for each in case.carried.news()] == [{"wlan0": 8}, {"lte0": 8}]
    assert case.carried.addresses == {"192.0.2.1"}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**7),
            st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 10**7)),
        ),
        max_size=8,
    )
)
def test_no_byte_is_lost_or_counted_twice(seconds: list[tuple[int, dict[str, int]]]) -> None:
    case = Case()
    stream = case.begin()
    for moved, carried in [*seconds, (0, {"a": 1})]:
        stream.received_bytes += moved
        for network, size in carried.items():
            case.session.down[network] = case.session.down.get(network, 0) + size
        case.carried.look()
    assert sum(case.carried.news()[0].bytes_by_network.values()) == stream.received_bytes


def test_a_decision_is_that_of_its_kind_of_data_while_it_lived(case: Case) -> None:
    stream = case.begin()
    case.decisions = {Bulk.SMALL: 3, Bulk.LARGE: 4}
    case.carried.look()
    assert case.carried.news()[0].decision == 3
    stream.received_bytes = 100_000
    case.carried.look()
    case.decisions = {}
    case.carried.look()
    assert case.carried.news()[0].decision == 4, "none counts now, that was the last"
    stream.gone = True
    case.carried.look()
    case.decisions = {Bulk.LARGE: 9}
    case.carried.look()
    assert case.carried.news()[0].decision == 4


def test_what_has_ended_is_forgotten_once_it_was_told(case: Case) -> None:
    stream, stays = case.begin(), case.begin("stays.example")
    case.carried.told(case.carried.news())
    assert not case.carried.changed
    stream.gone = True
    case.carried.look()
    assert case.carried.changed
    news = case.carried.news()
    assert [each.ended for each in news] == [True, False]
    case.carried.told(news)
    assert not case.carried.changed
    assert [each.server for each in case.carried.news()] == ["stays.example"]
    stays.gone = True
    case.carried.look()
    case.carried.forget_ended()
    assert len(case.carried) == 0
    case.carried.look()
    assert case.carried.addresses == set()


def test_of_more_than_fit_those_that_changed_go_first_and_others_in_turn(case: Case) -> None:
    streams = [case.begin(f"{number}.example") for number in range(MOST_TOLD + 10)]
    first = case.carried.news()
    assert len(first) == MOST_TOLD
    case.carried.told(first)
    streams[3].received_bytes = 7
    case.carried.look()
    servers = [each.server for each in case.carried.news()]
    late = [f"{MOST_TOLD + number}.example" for number in range(10)]
    assert sorted(servers[:11]) == sorted(["3.example", *late])
    assert servers[11:14] == ["0.example", "1.example", "2.example"]
    assert len(servers) == 11 + 16, "a daemon that is new hears of all of them in the end"


def test_of_endlessly_many_only_so_many_are_kept(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carried_connections, "_MOST", 3)
    for _ in range(5):
        case.begin()
    assert len(case.carried) == 3
