"""Pings against everything else that comes back."""

from cedos.monitor.liveness.pings import PingWitness


def lose(witness: PingWitness, count: int, from_s: float) -> None:
    for number in range(count):
        witness.observe_ping(False, from_s + number)


def test_pings_alone_decide_where_nothing_else_was_heard() -> None:
    witness = PingWitness(3)
    assert not witness.deaf
    assert witness.loss is None
    lose(witness, 2, 0.0)
    assert not witness.deaf
    lose(witness, 1, 2.0)
    assert witness.deaf
    assert witness.loss is not None
    assert witness.loss.value == 1.0
    witness.observe_ping(True, 3.0)
    assert not witness.deaf
    assert not witness.dropped


def test_pings_that_were_never_answered_say_nothing_once_something_else_was() -> None:
    witness = PingWitness(3)
    witness.observe_answer(0.0)
    lose(witness, 20, 10.0)
    assert not witness.deaf
    assert witness.loss is None
    # Nothing was answered meanwhile: that they are dropped for ever is not known.
    assert not witness.dropped


def test_pings_that_are_lost_while_others_are_answered_are_not_asked_any_more() -> None:
    witness = PingWitness(3)
    for at_s in range(5):
        assert not witness.dropped
        witness.observe_answer(at_s)
        witness.observe_ping(False, at_s + 0.5)
    assert witness.dropped
    witness.moved()
    assert not witness.dropped


def test_one_that_answered_pings_before_is_deaf_when_all_is_silent() -> None:
    witness = PingWitness(3)
    witness.observe_ping(True, 0.0)
    lose(witness, 3, 1.0)
    assert witness.deaf
    witness.observe_answer(3.5)
    assert not witness.deaf
    assert witness.loss is None
    lose(witness, 3, 4.0)
    assert witness.deaf
    assert not witness.dropped


def test_after_sleep_the_pings_count_anew() -> None:
    witness = PingWitness(2)
    lose(witness, 2, 0.0)
    witness.slept(100.0)
    assert not witness.deaf
    assert witness.loss is None


def test_what_answered_one_ping_does_not_drop_them() -> None:
    witness = PingWitness(3)
    lose(witness, 5, 0.0)
    witness.observe_answer(5.0)
    assert witness.never_answered
    witness.observe_ping(True, 10.0)
    lose(witness, 5, 11.0)
    assert not witness.never_answered
    witness.moved()
    assert witness.never_answered
