"""What a path's kernel may hold unsent: less, the sooner something else may have to go before it."""

from cedos.session.io.path import UNSENT_BYTES, unsent_limit_bytes
from cedos.session.protocol.schedulers.interface import PathFacts, PathState

RATE_BPS = 16e6


def states(*facts: PathFacts) -> list[PathState]:
    return [PathState(number, each, 0.0) for number, each in enumerate(facts)]


def test_the_only_path_and_one_of_unknown_rate_hold_what_the_kernel_takes() -> None:
    assert unsent_limit_bytes(RATE_BPS, states(PathFacts())) == UNSENT_BYTES
    assert unsent_limit_bytes(None, states(PathFacts(), PathFacts())) == UNSENT_BYTES


def test_while_another_path_pauses_hardly_anything_stands_before_what_lies_there() -> None:
    both_speak = unsent_limit_bytes(RATE_BPS, states(PathFacts(), PathFacts()))
    one_pauses = unsent_limit_bytes(RATE_BPS, states(PathFacts(), PathFacts(pauses=True)))
    assert both_speak == RATE_BPS / 8 * 0.1
    assert one_pauses <= RATE_BPS / 8 * 0.03


def test_once_it_is_silent_what_lay_there_goes_first_and_the_others_hold_as_much_as_ever() -> None:
    facts = PathFacts(stalled_at_s=1.0)
    assert unsent_limit_bytes(RATE_BPS, states(PathFacts(), facts)) == RATE_BPS / 8 * 0.1


def test_a_slow_path_holds_a_record_and_its_successor() -> None:
    assert unsent_limit_bytes(1e5, states(PathFacts(), PathFacts(pauses=True))) == 1 << 15
