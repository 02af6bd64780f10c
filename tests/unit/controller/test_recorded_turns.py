"""The decisions on turns of transfers with deadlines that are recorded."""

from dataclasses import replace

from kit.controller import LTE, WLAN, Script

from cedos.controller.commands import TurnsChanged
from cedos.controller.events import ClockRead, TransferReported
from cedos.model import Direction
from cedos.selector.deadlines.transfer_table import TableTransfer


def waiting(number: int) -> TransferReported:
    """A program tells of a transfer that can wait for an hour."""
    key = f"{number:032x}"
    return TransferReported(
        TableTransfer(key, 0, "song", "there", Direction.DOWN, 1_000_000, 0, 3600.0), 9.0
    )


def recorded(script: Script, *numbers: int, at_s: float) -> int:
    """These programs tell of their transfers; the number of decisions that are recorded."""
    script.tell(*map(waiting, numbers), at_s=at_s)
    woken = script.given(TurnsChanged)
    assert len(woken) == len(numbers), "each program is woken"
    return sum(len(each.keys) for each in woken)


def test_of_many_turns_that_change_at_once_few_are_recorded() -> None:
    """A decision on each held the daemon past its watchdog."""
    script = Script()
    script.networks(replace(WLAN, up=False), LTE, at_s=9.0)
    script.tell(ClockRead(9.0))
    assert recorded(script, *range(20), at_s=9.0) == 16
    assert recorded(script, *range(20, 30), at_s=12.0) == 6, "two more for each second"
