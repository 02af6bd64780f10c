"""When a connection that may wait takes the cellular network."""

from cedos.session.protocol.buffer_manager import BufferManager, BufferSituation
from cedos.session.protocol.metered_policy import MeteredPolicy, Situation


def situation(**changes: object) -> Situation:
    known = {
        "received_bytes": 0,
        "unmetered_bps": None,
        "unmetered_up": False,
        "metered_bps": 8e6,
        "buffer": BufferSituation(0),
    }
    return Situation(**{**known, **changes})


def test_nothing_to_decide() -> None:
    policy = MeteredPolicy()
    assert not policy.active
    assert policy.metered_allowed(situation(), 0.0)
    policy.deadline_at_s = 100.0  # without a size it says nothing about when to begin
    assert policy.metered_allowed(situation(), 0.0)


def test_as_late_as_possible() -> None:
    """10 MB at 1 MB/s: 10 s, half more for its changes, 1 s to switch: from 16 s before the end."""
    policy = MeteredPolicy()
    policy.deadline_at_s, policy.expected_bytes = 100.0, 10_000_000
    assert not policy.metered_allowed(situation(), 83.9)
    assert policy.metered_allowed(situation(), 84.1)
    assert not policy.metered_allowed(situation(received_bytes=5_000_000), 84.1)
    assert not policy.metered_allowed(situation(received_bytes=10_000_000), 99.9)


def test_an_unknown_rate_is_thought_slow() -> None:
    policy = MeteredPolicy()
    policy.deadline_at_s, policy.expected_bytes = 100.0, 1_000_000
    assert policy.metered_allowed(situation(metered_bps=None), 88.0)
    assert not policy.metered_allowed(situation(metered_bps=None), 86.0)


def test_wifi_that_is_quick_enough_is_enough() -> None:
    policy = MeteredPolicy()
    policy.deadline_at_s, policy.expected_bytes = 100.0, 10_000_000
    quick = situation(unmetered_up=True, unmetered_bps=40e6)
    assert not policy.metered_allowed(quick, 95.0)
    slow = situation(unmetered_up=True, unmetered_bps=1e6)
    assert policy.metered_allowed(slow, 95.0)
    gone = situation(unmetered_up=False, unmetered_bps=40e6)
    assert policy.metered_allowed(gone, 95.0)


def test_what_is_played_follows_its_buffer_whatever_the_deadline_says() -> None:
    policy = MeteredPolicy()
    policy.choose(1.0, 10_000_000, BufferManager(low_bytes=1000))
    assert policy.active
    assert policy.metered_allowed(situation(buffer=BufferSituation(1000)), 0.0)
    assert not policy.metered_allowed(situation(buffer=BufferSituation(1001)), 0.0)
