"""Hints: what they win over, which flows they reach."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cedos.model import Bulk, Direction, Label, Urgency
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.hints import HintMatch, TransferHint
from cedos.profiler.profiler import Profiler

Hello = Callable[[str], bytes]
Web = Any
DOWN, UP = Direction.DOWN, Direction.UP


def test_hints_win_over_history_but_not_over_what_the_message_states(web: Web) -> None:
    profiler = Profiler()
    for _ in range(5):
        profiler.closed(web.tls_key, 9_000, 500)
    label = Label(Urgency.BACKGROUND, Bulk.LARGE)
    hint = TransferHint(
        HintMatch(destination=web.server),
        size_bytes=50_000_000,
        label=label,
        deadline_s=60.0,
        until_s=10.0,
    )
    number, affected = profiler.hint(hint, 1.0)
    assert affected == []
    (told,) = profiler.opened(web.tls_key, 1.0)
    assert told.size == web.exactly(50_000_000, "hint")
    assert (told.label, told.deadline_s, told.direction) == (label, 60.0, DOWN)
    talk = web.talk(profiler)
    assert talk.send(web.get)[0].size == web.exactly(50_000_000, "hint")
    (stated,) = talk.receive(web.answer(77), 77)
    assert (stated.size, stated.label) == (web.exactly(77), label)
    (late,) = profiler.opened(replace(web.tls_key, local_port=7), 10.0)
    assert (late.size.source, late.label) == ("history", None)
    assert profiler.unhint(number) is False  # it had run out


def test_a_hint_gives_the_direction_of_what_cannot_be_read(web: Web) -> None:
    profiler = Profiler()
    number, _ = profiler.hint(TransferHint(HintMatch(port=443), size_bytes=9, direction=UP), 0.0)
    profiler.hint(TransferHint(HintMatch(port=80), size_bytes=9, direction=UP), 0.0)
    assert profiler.opened(web.tls_key, 1.0)[0].direction is UP
    (asked,) = web.talk(profiler).send(web.get)
    assert (asked.direction, asked.size.source) == (DOWN, "default")
    assert profiler.unhint(number)
    assert profiler.opened(replace(web.tls_key, local_port=2), 1.0)[0].size.source == "default"


def test_a_hint_reaches_flows_under_way(web: Web, hello: Hello) -> None:
    profiler = Profiler()
    profiler.opened(web.tls_key, 1.0)
    profiler.observe(CapturedPacket(web.tls_key, True, hello("big.example"), 1, 1), 1.1)
    profiler.opened(replace(web.key, local_port=3), 1.0)
    _, affected = profiler.hint(
        TransferHint(HintMatch(server_name="*.example"), size_bytes=4_000_000), 2.0
    )
    assert [(told.key, told.size) for told in affected] == [
        (web.tls_key, web.exactly(4_000_000, "hint"))
    ]
    (beyond,) = profiler.progressed(web.tls_key, 4_000_001, 0, 3.0)
    assert beyond.size.source == "progress"


def test_a_mark_that_is_told_late_still_finds_its_hint(web: Web) -> None:
    profiler = Profiler()
    profiler.hint(TransferHint(HintMatch(mark=7), size_bytes=4_000_000), 0.0)
    assert web.talk(profiler).send(web.get)[0].size.source == "default"
    assert profiler.opened(web.key, 1.1, mark=7)[0].size == web.exactly(4_000_000, "hint")
    (early,) = profiler.opened(web.tls_key, 1.1, mark=7)
    assert early.size.source == "hint"
