"""The alarm for what must begin, on a clock that a test moves and a host that a test lets sleep."""

import pytest
from kit.controller import Script

from cedos.controller.commands import KeepAwake, SetAlarm
from cedos.controller.deadlines import DLock
from cedos.controller.events import BatteryRead, ClockRead, TransferReported
from cedos.controller.outbox import Outbox
from cedos.model import Direction
from cedos.selector.deadlines.transfer_table import KEPT_S, TableTransfer, Wake

NOW = 1_700_000_000.0


class Laptop:
    """Clock, sleep, battery, and what the host is to do.

    Attributes:
        told: the alarms.
        idle, lid: the locks that are held.
        error: why the host refuses the alarm; `locked`: whether it refuses locks.
    """

    def __init__(self, above_percent=40):
        self.unix_s = NOW
        self.told = []
        self.error = ""
        self.locked = False
        self.asked = 0
        self.idle = self.lid = False
        self.outbox = Outbox()
        self.lock = DLock(self.outbox, above_percent)
        self.lock.on_battery(BatteryRead(True))

    def sleeps(self, until_unix_s):
        slept_s, self.unix_s = until_unix_s - self.unix_s, until_unix_s
        self.lock.on_slept(slept_s, self.unix_s)

    def battery(self, level, *, discharging):
        self.lock.on_battery(BatteryRead(True, level, discharging))

    def waits_until(self, at_unix_s, moving=0, *, here=True):
        now = at_unix_s is not None and at_unix_s <= self.unix_s and here
        wake = Wake(at_unix_s, "song", now) if at_unix_s is not None else None
        self.lock.update(moving, wake, self.unix_s, self.unix_s)
        for command in self.outbox.take():
            match command:
                case SetAlarm() if self.error:
                    self.lock.on_alarm_failed(self.error, self.unix_s)
                case SetAlarm(at_s):
                    self.told.append(at_s)
                case KeepAwake(idle, lid):
                    self.asked += 1
                    if self.locked and (idle or lid):
                        self.lock.on_awake_failed(self.unix_s)
                    else:
                        self.idle, self.lid = idle, lid


@pytest.fixture
def laptop():
    return Laptop()


def test_it_is_set_follows_and_is_taken_away(laptop):
    laptop.waits_until(NOW + 3600)
    laptop.waits_until(NOW + 3601)  # plans move by a second or so
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.set_for == Wake(NOW + 3600, "song")
    laptop.waits_until(NOW + 1800)
    laptop.waits_until(None)
    laptop.waits_until(None)
    assert laptop.told == [NOW + 3600, NOW + 1800, 0.0]
    laptop.waits_until(NOW + 1)
    assert laptop.told[-1] == NOW + 15, "what is too near for a host to fall asleep before"


def test_woken_it_stays_awake_with_its_lid_closed_until_all_is_carried(laptop):
    laptop.waits_until(NOW + 3600)
    assert not laptop.lid
    laptop.sleeps(NOW + 3600)
    laptop.waits_until(None)
    assert laptop.lid, "a minute to find a network"
    assert not laptop.idle
    laptop.unix_s += 70
    laptop.waits_until(laptop.unix_s)
    assert laptop.lid, "it hopes for Wi-Fi still, and is to see it come"
    assert laptop.idle
    laptop.unix_s += 300
    laptop.waits_until(laptop.unix_s, moving=1)
    assert laptop.lid
    assert laptop.told[-1] == laptop.unix_s + 120, "should a person send it to sleep meanwhile"
    laptop.waits_until(None)
    assert not laptop.lid
    assert not laptop.idle
    # From now on it is a person's again.
    laptop.waits_until(NOW + 9000, moving=1)
    assert not laptop.lid


def test_where_nothing_moves_it_may_sleep_after_a_minute(laptop):
    laptop.waits_until(NOW + 3600)
    laptop.sleeps(NOW + 3600)
    laptop.waits_until(None)
    assert laptop.lid
    laptop.unix_s += 61
    laptop.waits_until(None)
    assert not laptop.lid


def test_it_is_woken_ever_more_seldom_while_no_network_is_here(laptop):
    laptop.waits_until(NOW + 3600)
    after_s = []
    for _ in range(4):
        laptop.sleeps(laptop.told[-1])
        for _ in range(2):
            laptop.waits_until(NOW, here=False)
            assert not laptop.idle
            laptop.unix_s += 61
        after_s.append(round(laptop.told[-1] - laptop.unix_s + 61))
    assert after_s == [120, 240, 480, 960]
    laptop.waits_until(NOW)  # the phone is here
    assert laptop.idle
    laptop.sleeps(laptop.told[-1])
    laptop.waits_until(NOW, here=False)
    assert round(laptop.told[-1] - laptop.unix_s) == 120


def test_it_spares_a_battery(laptop):
    laptop.battery(0.4, discharging=True)
    laptop.waits_until(NOW + 3600)
    assert laptop.told == []
    assert "on battery, at 40%" in laptop.lock.problem
    laptop.battery(0.4, discharging=False)  # plugged in
    laptop.waits_until(NOW + 3600)
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.problem == ""
    laptop.sleeps(NOW + 3600)
    laptop.battery(0.2, discharging=True)
    laptop.waits_until(NOW + 3720, moving=1)
    assert not laptop.lid, "it ran low in its sleep"
    assert laptop.told[-1] == 0.0
    laptop.lock.on_battery(BatteryRead(False))
    laptop.waits_until(NOW + 9000)
    assert "UPower" in laptop.lock.problem
    laptop.waits_until(None)
    assert laptop.lock.problem == "", "no transfer needs a waking"


def test_an_alarm_that_the_host_refuses_is_said_and_tried_again_each_minute(laptop):
    laptop.error = "CAP_WAKE_ALARM is missing"
    laptop.waits_until(NOW + 3600)
    assert laptop.error in laptop.lock.problem
    assert laptop.lock.set_for is None
    laptop.error = ""
    laptop.waits_until(NOW + 3600)
    assert laptop.told == []
    laptop.unix_s += 61
    laptop.waits_until(NOW + 3600)
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.problem == ""


def test_a_lock_that_the_host_refuses_is_asked_for_again_later(laptop):
    laptop.locked = True
    for _ in range(3):
        laptop.waits_until(None, moving=1)
    assert laptop.asked == 1
    laptop.locked = False
    laptop.unix_s += 31
    laptop.waits_until(None, moving=1)
    assert laptop.idle
    # A lock that was taken before another was refused is given back at once.
    laptop.lock.on_awake_failed(laptop.unix_s)
    laptop.waits_until(None)
    assert not laptop.idle


def test_without_an_alarm_only_falling_asleep_is_inhibited():
    laptop = Laptop(above_percent=None)
    laptop.waits_until(NOW + 10, moving=1)
    assert (laptop.lock.wakes, laptop.lock.set_for, laptop.lock.problem) == (False, None, "")
    assert (laptop.idle, laptop.lid, laptop.told) == (True, False, [])


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
