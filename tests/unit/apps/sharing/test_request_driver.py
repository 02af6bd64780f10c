"""The requestor's driver: which helpers it asks the gateway about."""

from cedos.apps.sharing.request_driver import idle_beside


def test_the_gateway_is_asked_about_helpers_that_carry_nothing_beside_a_busy_one() -> None:
    assert idle_beside({b"bob": 100_000, b"cyd": 0, b"dan": 4_000}) == [b"cyd", b"dan"]
    assert idle_beside({b"bob": 100_000, b"cyd": 6_000}) == []


def test_nothing_is_asked_while_all_are_idle() -> None:
    assert idle_beside({b"bob": 5_000, b"cyd": 0}) == []
    assert idle_beside({}) == []
