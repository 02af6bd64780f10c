"""The lock against sleep, on a clock that a test moves."""

from kit.controller import Script

from cedos.controller.commands import KeepAwake
from cedos.controller.deadlines import DLock
from cedos.controller.events import ClockRead, TransferReported
from cedos.controller.outbox import Outbox
from cedos.model import Direction
from cedos.selector.deadlines.transfer_table import KEPT_S, TableTransfer

NOW = 1_700_000_000.0


def test_a_lock_that_the_host_refuses_is_asked_for_again_later():
    outbox = Outbox()
    lock = DLock(outbox)
    lock.update(True, 0.0)
    assert list(outbox.take()) == [KeepAwake(True)]
    lock.on_refused(0.0)
    lock.update(True, 29.0)
    assert not list(outbox.take())
    lock.update(True, 31.0)
    lock.update(True, 32.0)
    assert list(outbox.take()) == [KeepAwake(True)]
    # One that may be held all the same is given back at once.
    lock.on_refused(32.0)
    lock.update(False, 33.0)
    assert list(outbox.take()) == [KeepAwake(False)]


def test_nothing_is_kept_of_a_transfer_that_the_table_has_forgotten():
    script = Script()
    script.tell(ClockRead(NOW))
    transfers = script.controller.transfers
    for number in range(3):
        about = f"film-{number}", 1000, "film", "files.example", Direction.DOWN, 10**6, 0
        late = TableTransfer(*about, NOW - KEPT_S)
        script.tell(TransferReported(late, script.now_s))
    assert len(transfers._told) == 3
    script.wait(script.now_s + 60.0)
    assert not transfers.table.rows(script.now_s)
    assert not transfers._told
