"""An access network: queues by rule, nothing that cannot be emulated."""

import math
from typing import Any

import pytest

from cedos.model import NetworkKind
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.mahimahi import nested

SLOW, FAST = Trace.constant(6e6), Trace.constant(48e6)


def access(**changes: Any) -> Access:
    facts = {"kind": NetworkKind.WIFI, "up": SLOW, "down": FAST, "rtt_s": 0.04}
    return Access(**(facts | changes))


def test_a_queue_is_twice_rate_times_rtt_within_bounds() -> None:
    assert access().queue_down_packets == 2 * 48e6 * 0.04 / 12000
    assert access().queue_up_packets == 60
    assert access(rtt_s=10).queue_down_packets == 400


def test_queues_can_be_given_together_or_apart() -> None:
    both = access(queue_packets=7)
    assert (both.queue_up_packets, both.queue_down_packets) == (7, 7)
    apart = access(queue_packets=(3, 500))
    assert (apart.queue_up_packets, apart.queue_down_packets) == (3, 500)


def test_a_rotated_access_keeps_its_queues_though_its_part_is_slower() -> None:
    down = Trace([*range(1, 1001), 9000, 10_000])
    whole = access(down=down, up=down, rtt_s=0.2)
    part = whole.rotated(5.0, length_s=2.0)
    assert part.down.period_s == 2
    assert part.up is part.down
    assert part.down.mean_bps < whole.down.mean_bps / 10
    assert part.queue_down_packets == whole.queue_down_packets


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kind": NetworkKind.ETHERNET}, "not ethernet"),
        ({"rtt_s": -0.001}, "-0.001 s"),
        ({"rtt_s": math.nan}, "nan s"),
        ({"rtt_s": math.inf}, "inf s"),
        ({"queue_packets": 0}, "at least one packet"),
        ({"queue_packets": (10, 0)}, "at least one packet"),
        ({"loss": 1.0}, "no share"),
        ({"loss": -0.1}, "no share"),
    ],
)
def test_what_cannot_be_emulated_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        access(**changes)


def test_shells_are_nested_and_each_waits_before_it_becomes_the_next() -> None:
    line = nested([["mm-delay", "10"], ["mm-link", "up", "down", "--"]])
    assert line[:4] == ["mm-delay", "10", "sh", "-c"]
    assert "read" in line[4]
    assert line[6:10] == ["mm-link", "up", "down", "--"]
    assert line[10:12] == ["sh", "-c"]
    assert "exec" not in line[12]
