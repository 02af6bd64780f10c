"""The alarm for what must begin, on a clock that a test moves and a host that a test lets sleep."""

import errno
from typing import cast

import pytest

from cedos.daemon.deadlines.d_lock import DLock, SleepInhibitor
from cedos.daemon.deadlines.wake_alarm import WakeAlarm
from cedos.errors import HostError
from cedos.host.monitor.providers.battery import Battery, BatteryReader
from cedos.selector.deadlines.transfer_table import Wake

pytestmark = pytest.mark.anyio

NOW = 1_700_000_000.0


class Lock:
    """An inhibitor lock."""

    def __init__(self) -> None:
        self.held = False

    async def hold(self, wanted: bool) -> None:
        self.held = wanted

    def release(self) -> None:
        self.held = False


class Laptop:
    """Clock, sleep, battery, and what the privileged part was told."""

    def __init__(self) -> None:
        self.unix_s, self.slept_s = NOW, 0.0
        self.battery: Battery | None = None
        self.answered = True
        self.told: list[float] = []
        self.error: Exception | None = None
        self.idle, self.lid = Lock(), Lock()
        self.alarm = WakeAlarm(
            self.set_alarm,
            cast(BatteryReader, self),
            40,
            unix=lambda: self.unix_s,
            asleep=lambda: self.slept_s,
        )
        self.lock = DLock(
            cast(SleepInhibitor, self.idle), cast(SleepInhibitor, self.lid), self.alarm
        )

    def set_alarm(self, at_unix_s: float) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(at_unix_s)

    async def read(self) -> Battery | None:
        return self.battery

    def sleeps(self, until_unix_s: float) -> None:
        self.slept_s += until_unix_s - self.unix_s
        self.unix_s = until_unix_s

    async def waits_until(
        self, at_unix_s: float | None, moving: int = 0, *, here: bool = True
    ) -> None:
        now = at_unix_s is not None and at_unix_s <= self.unix_s and here
        wake = Wake(at_unix_s, "song", now) if at_unix_s is not None else None
        await self.lock.update(moving, wake)


@pytest.fixture
def laptop() -> Laptop:
    return Laptop()


async def test_it_is_set_follows_and_is_taken_away(laptop: Laptop) -> None:
    await laptop.waits_until(NOW + 3600)
    await laptop.waits_until(NOW + 3601)  # plans move by a second or so
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.set_for == Wake(NOW + 3600, "song")
    await laptop.waits_until(NOW + 1800)
    await laptop.waits_until(None)
    await laptop.waits_until(None)
    assert laptop.told == [NOW + 3600, NOW + 1800, 0.0]
    await laptop.waits_until(NOW + 1)
    assert laptop.told[-1] == NOW + 15, "what is too near for a host to fall asleep before"
    laptop.lock.release()
    assert laptop.told[-1] == 0.0


async def test_woken_it_stays_awake_with_its_lid_closed_until_all_is_carried(
    laptop: Laptop,
) -> None:
    await laptop.waits_until(NOW + 3600)
    assert not laptop.lid.held
    laptop.sleeps(NOW + 3600)
    await laptop.waits_until(None)
    assert laptop.lid.held, "a minute to find a network"
    assert not laptop.idle.held
    laptop.unix_s += 70
    await laptop.waits_until(laptop.unix_s)
    assert laptop.lid.held, "it hopes for Wi-Fi still, and is to see it come"
    assert laptop.idle.held
    laptop.unix_s += 300
    await laptop.waits_until(laptop.unix_s, moving=1)
    assert laptop.lid.held
    assert laptop.told[-1] == laptop.unix_s + 120, "should a person send it to sleep meanwhile"
    await laptop.waits_until(None)
    assert not laptop.lid.held
    assert not laptop.idle.held
    # From now on it is a person's again.
    await laptop.waits_until(NOW + 9000, moving=1)
    assert not laptop.lid.held


async def test_where_nothing_moves_it_may_sleep_after_a_minute(laptop: Laptop) -> None:
    await laptop.waits_until(NOW + 3600)
    laptop.sleeps(NOW + 3600)
    await laptop.waits_until(None)
    assert laptop.lid.held
    laptop.unix_s += 61
    await laptop.waits_until(None)
    assert not laptop.lid.held


async def test_it_is_woken_ever_more_seldom_while_no_network_is_here(laptop: Laptop) -> None:
    await laptop.waits_until(NOW + 3600)
    after_s = []
    for _ in range(4):
        laptop.sleeps(laptop.told[-1])
        for _ in range(2):
            await laptop.waits_until(NOW, here=False)
            assert not laptop.idle.held
            laptop.unix_s += 61
        after_s.append(round(laptop.told[-1] - laptop.unix_s + 61))
    assert after_s == [120, 240, 480, 960]
    await laptop.waits_until(NOW)  # the phone is here
    assert laptop.idle.held
    laptop.sleeps(laptop.told[-1])
    await laptop.waits_until(NOW, here=False)
    assert round(laptop.told[-1] - laptop.unix_s) == 120


async def test_a_person_who_woke_it_closes_its_lid_as_ever(laptop: Laptop) -> None:
    await laptop.waits_until(NOW + 3600)
    laptop.sleeps(NOW + 1200)
    await laptop.waits_until(NOW + 3600, moving=1)
    assert laptop.idle.held
    assert not laptop.lid.held


async def test_it_spares_a_battery(laptop: Laptop) -> None:
    laptop.battery = Battery(0.4, True, None, None)
    await laptop.waits_until(NOW + 3600)
    assert laptop.told == []
    assert "on battery, at 40%" in laptop.lock.problem
    laptop.battery = Battery(0.4, False, None, None)  # plugged in
    laptop.unix_s += 61
    await laptop.waits_until(NOW + 3600)
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.problem == ""
    laptop.battery = Battery(0.2, True, None, None)
    laptop.sleeps(NOW + 3600)
    await laptop.waits_until(NOW + 3720, moving=1)
    assert not laptop.lid.held, "it ran low in its sleep"
    assert laptop.told[-1] == 0.0
    laptop.answered = False
    laptop.unix_s += 61
    await laptop.waits_until(NOW + 9000)
    assert "UPower" in laptop.lock.problem
    await laptop.waits_until(None)
    assert laptop.lock.problem == "", "nobody is to be woken"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EPERM, "no"), "CAP_WAKE_ALARM is missing"),
        (OSError(errno.ENODEV, "no clock of this host can wake it"), "no clock of this host"),
        (HostError("the privileged part has ended"), "has ended"),
    ],
)
async def test_what_cannot_be_had_is_said_and_tried_again_each_minute(
    laptop: Laptop, error: Exception, words: str
) -> None:
    laptop.error = error
    await laptop.waits_until(NOW + 3600)
    assert words in laptop.lock.problem
    assert laptop.lock.set_for is None
    laptop.error = None
    await laptop.waits_until(NOW + 3600)
    assert laptop.told == []
    laptop.unix_s += 61
    await laptop.waits_until(NOW + 3600)
    assert laptop.told == [NOW + 3600]
    assert laptop.lock.problem == ""


async def test_without_an_alarm_only_falling_asleep_is_inhibited(laptop: Laptop) -> None:
    lock = DLock(cast(SleepInhibitor, laptop.idle), cast(SleepInhibitor, laptop.lid), None)
    await lock.update(1, None)
    assert (lock.wakes, lock.set_for, lock.problem) == (False, None, "")
    assert laptop.idle.held
    assert not laptop.lid.held
    lock.release()
    assert not laptop.idle.held
