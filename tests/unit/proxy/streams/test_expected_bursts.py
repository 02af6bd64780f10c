"""What a server is expected to send, by what it sent before."""

import pytest

from cedos.model import Direction
from cedos.profiler.sizes import SizeHistory
from cedos.proxy.streams.expected_sizes import ExpectedBursts

UP, DOWN = Direction.UP, Direction.DOWN
MB = 1_000_000


class Program:
    """Asks one server again and again over one connection, and hears what is expected."""

    def __init__(self, history: SizeHistory, server: str = "films.example") -> None:
        self.bursts = ExpectedBursts(history)
        self.now_s, self.server = 50.0, server
        self.heard: list[tuple[Direction, int]] = []

    def moves(self, way: Direction, size: int) -> None:
        if way is UP and self.bursts.begins(self.now_s):
            self.bursts.begin(self.server, 443)
        self.heard += self.bursts.moves(way, size, self.now_s)
        self.now_s += 0.05

    def asks(self, *parts: int, pause_s: float = 5.0) -> list[tuple[Direction, int]]:
        """A request of 500 bytes, and an answer in parts; what was expected meanwhile."""
        self.now_s += pause_s
        self.heard = []
        self.moves(UP, 500)
        for part in parts:
            self.moves(DOWN, part)
        return self.heard


@pytest.fixture
def history() -> SizeHistory:
    return SizeHistory()


def test_the_fourth_film_is_expected_as_soon_as_it_is_asked_for(history: SizeHistory) -> None:
    program = Program(history)
    for _ in range(3):
        assert program.asks(6 * MB, 6 * MB) == []
    assert program.asks(6 * MB, 6 * MB) == [(DOWN, 12 * MB)]


def test_a_long_answer_takes_its_time_and_is_one_burst(history: SizeHistory) -> None:
    program = Program(history)
    program.moves(UP, 500)
    program.now_s += 4.0
    program.moves(DOWN, MB)
    program.moves(UP, 50)  # a window update, say
    program.moves(DOWN, MB)
    program.bursts.ended()
    assert history.larger("films.example", 443, DOWN, 0) == [2.0 * MB]


def test_what_becomes_larger_than_most_is_taken_for_one_of_the_large_ones(
    history: SizeHistory,
) -> None:
    for size in (5_000, 5_000, 5_000, 5_000, 8 * MB, 9 * MB, 10 * MB):
        history.learn("films.example", 443, DOWN, size)
    program = Program(history)
    assert program.asks(3_000) == [(DOWN, 5_000)]
    assert program.asks(3_000, 60_000) == [(DOWN, 5_000), (DOWN, 9 * MB - 63_000)]
    # (It goes on beyond the middle one: fewer than three are known that were so large.)
    assert program.asks(9_500_000)[-1] == (DOWN, 5_000)


def test_a_domain_stands_for_a_server_that_nobody_knows(history: SizeHistory) -> None:
    for number in range(3):
        program = Program(history, f"r{number}.films.example")
        program.asks(2 * MB)
        program.bursts.ended()
    assert (DOWN, 2 * MB) in Program(history, "r9.films.example").asks(10)
    assert Program(history, "r9.pictures.example").asks(10) == []


def test_uploads_are_expected_too_and_breaks_teach_nothing(history: SizeHistory) -> None:
    for _ in range(3):
        program = Program(history)
        program.moves(UP, 4 * MB)
        program.bursts.ended()
    program = Program(history)
    program.moves(UP, 100)
    assert (UP, 4 * MB - 100) in program.heard
    program.bursts.broke()
    program.bursts.ended()
    assert len(history.larger("films.example", 443, UP, 0)) == 3
    program.moves(DOWN, 70)  # late bytes of a stream that is over ask nobody
    assert program.heard[-1] != (DOWN, 70)


def test_an_address_has_no_domain(history: SizeHistory) -> None:
    program = Program(history, "192.0.2.7")
    program.asks(2 * MB)
    program.bursts.ended()
    assert len(history) == 1
