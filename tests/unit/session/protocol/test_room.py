"""Replay memory, limited for all sessions together: one writer leaves some to others; none starves."""

from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol.room import ReplayMemory
from cedos.session.protocol.sender import Sender

LIMIT = 8 << 20


def senders(count, memory):
    return [Sender(memory, LIMIT, number) for number in range(count)]


def fill(sender):
    while sender.write(bytes(16_384)):
        pass


def test_the_first_leave_something_to_hundreds_more():
    memory = ReplayMemory(LIMIT)
    many = senders(100, memory)
    for each in many:
        fill(each)
    assert memory.used_bytes <= LIMIT
    assert all(each.replay.held_bytes >= memory.quantum_bytes for each in many[:40])
    assert len([each for each in many if each.replay.held_bytes]) == memory.holders


def test_what_the_first_took_too_much_goes_to_the_others():
    memory = ReplayMemory(LIMIT)
    many = senders(50, memory)
    for each in many:
        fill(each)
    for _ in range(400):  # each gives back the same, and writes again
        for each in many:
            each.replay.give(min(each.replay.held_bytes, 8_192))
            fill(each)
    held = [each.replay.held_bytes for each in many]
    assert min(held) > max(held) / 2


def test_a_whole_message_need_not_wait_until_nobody_sends_any_more():
    memory = ReplayMemory(LIMIT)
    many = senders(60, memory)
    for each in many[:50]:
        fill(each)
    late, whole = many[50], LIMIT // 16
    assert not late.replay.take(whole, 0)
    for each in many[:50]:  # the others go on with less, and never hold nothing
        each.replay.give(each.replay.held_bytes - memory.quantum_bytes)
    assert memory.used_bytes > 0
    assert late.replay._owner in memory.woken()
    assert late.replay.take(whole, 0)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(1, 400_000)), max_size=60), st.randoms())
def test_whoever_was_refused_is_told_once_all_is_free(steps, draw):
    memory = ReplayMemory(1 << 20)
    many = [Sender(memory, 1 << 20, number) for number in range(20)]
    empty_handed = set()
    for number, size in steps:
        sender = many[number]
        if draw.random() < 0.5:
            if not sender.write(bytes(size)) and not sender.replay.held_bytes:
                empty_handed.add(number)
        else:
            sender.replay.give(min(size, sender.replay.held_bytes))
        empty_handed -= set(memory.woken())
    for sender in many:
        sender.replay.give(sender.replay.held_bytes)
    assert empty_handed <= set(memory.woken())
    assert (memory.used_bytes, memory.holders) == (0, 0)
