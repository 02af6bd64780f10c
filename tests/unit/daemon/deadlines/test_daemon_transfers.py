"""The daemon's table: programs are told, and it survives the daemon."""

import asyncio
import time
from dataclasses import replace

import pytest
from kit.controller import LTE, WLAN, Script

from cedos.api.transfers import TransferReport
from cedos.controller.commands import KeepAwake, KeepTransfers, TurnsChanged
from cedos.controller.events import (
    BatteryRead,
    ClockRead,
    DecisionMade,
    NetworksChanged,
    TransferReported,
)
from cedos.daemon import state_file
from cedos.daemon.transfers import AT_ONCE, FILE, WHAT, Transfers
from cedos.errors import ConfigError
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.selector.objective import WeightedCost

pytestmark = pytest.mark.jumping


class Host:
    """A daemon's table whose networks a test sets; its controller is handed the time."""

    def __init__(self, folder):
        self.folder = folder
        self.decided = []  # the networks of each decision that was recorded
        self.awake = False  # whether the host is kept awake
        self.begin()

    def begin(self):
        kept = state_file.read(self.folder / FILE, WHAT)
        choices = Script().controller.config.choices
        choices = replace(choices, objective=WeightedCost(0.01, 2e-7))
        script = Script(transfers=kept, choices=choices)
        self.controller = script.controller
        self.transfers = Transfers(self.folder, self)
        self.post(ClockRead(time.time()))
        self.post(BatteryRead())
        self.networks(wifi=False)

    def networks(self, *, wifi):
        wlan = replace(WLAN, name="wifi", up=wifi)
        self.post(NetworksChanged((wlan, replace(LTE, name="phone", up=True))))

    def post(self, event):
        if isinstance(event, DecisionMade):
            self.decided.append("+".join(event.choice.networks))
        self.controller.handle(event, time.monotonic())
        self.carry_out(self.controller.commands())

    def carry_out(self, commands):
        for command in commands:
            match command:
                case TurnsChanged(keys):
                    self.transfers.on_turns(keys)
                case KeepTransfers():
                    self.transfers.keep()
                    self.transfers.file.write()
                case KeepAwake(on):
                    self.awake = on

    async def pass_s(self, seconds):
        """Time passes, and the table is planned as often as it wants."""
        known, end_s = self.controller.transfers, time.monotonic() + seconds
        while (now_s := time.monotonic()) < end_s:
            at_s = known.next_timer_s()
            await asyncio.sleep(max(min(at_s, end_s) - now_s, 0.0) + 0.001)
            if time.monotonic() >= at_s:
                now_s = time.monotonic()
                known.on_timer(self.controller.context(now_s), now_s)
                self.carry_out(self.controller.commands())


@pytest.fixture
async def host(tmp_path):
    return Host(tmp_path)


def report(number=1, **more):
    wanted = {"name": "song", "server": "there", "size_bytes": 1_000_000} | more
    wanted = {"deadline_unix_s": time.time() + 3600.0, "said_s": time.monotonic()} | wanted
    return TransferReport(key=f"{number:032x}", **wanted)


async def test_it_waits_and_is_told_by_the_names_of_interfaces(host):
    turn = await host.transfers.report(report(), 0)
    assert turn.networks == ()
    assert turn.spare == ("lte0",)
    assert turn.begin_unix_s is not None
    assert host.decided == [""]


async def test_a_waiting_program_is_told_at_once_when_wifi_comes(host):
    transfers = host.transfers
    turn = await transfers.report(report(), 0)
    waiting = asyncio.ensure_future(transfers.report(report(seen=turn.serial, wait_s=30.0), 0))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    host.networks(wifi=True)
    async with asyncio.timeout(1.0):
        assert (await waiting).networks == ("wlan0",)
    assert host.decided == ["", "wifi"], "decisions name networks, and turns interfaces"


async def test_reports_in_a_large_table_wait_for_its_plan(host, monkeypatch):
    """Report many transfers: each report had all planned anew, and 1,000 held the daemon for good."""
    plans, plan = [], TransferTable.plan

    def planned(table, *more):
        plans.append(len(table))
        return plan(table, *more)

    monkeypatch.setattr(TransferTable, "plan", planned)
    host.networks(wifi=True)
    for _ in range(3):
        for number in range(200):
            await host.transfers.report(report(number), 1000)
    assert len(plans) < 60
    urgent = report(200, deadline_unix_s=time.time() + 60.0)
    await host.transfers.report(urgent, 1000)
    await host.pass_s(1.1)
    assert (await host.transfers.list_all())[0].turn.networks == ("wlan0",)
    host.begin()
    assert len(await host.transfers.list_all()) == 201, "the next beat has the table kept"


async def test_a_large_table_leaves_the_daemon_time_for_its_other_work(host, monkeypatch):
    """The daemon listed 1,000 transfers in 0.5 s, and woke those that wait, without a pause."""
    transfers, work, turn_of, post = host.transfers, [0], Transfers._turn, host.post

    def turn(self, *more):
        work[-1] += 1
        return turn_of(self, *more)

    def counted(event):
        work[-1] += isinstance(event, TransferReported)
        post(event)

    async def turns_of_the_loop(count):
        work.append(0)
        for _ in range(count):
            await asyncio.sleep(0)
            work.append(0)

    count = 4 * AT_ONCE
    told = [await transfers.report(report(number), 0) for number in range(count)]
    monkeypatch.setattr(Transfers, "_turn", turn)
    listed = asyncio.ensure_future(transfers.list_all())
    work.clear()
    await turns_of_the_loop(10)
    assert len(await listed) == sum(work) == count
    assert max(work) == AT_ONCE
    waiting = [
        asyncio.ensure_future(transfers.report(report(n, seen=each.serial, wait_s=30.0), 0))
        for n, each in enumerate(told)
    ]
    await asyncio.sleep(0.05)
    monkeypatch.setattr(host, "post", counted)
    work[:] = [0]
    decided = len(host.decided)
    transfers.on_turns([report(number).key for number in range(count)])
    await turns_of_the_loop(40)
    assert sum(work) >= count
    assert 0 < max(work) <= 2 * AT_ONCE  # a report and an answer of each
    assert len(host.decided) - decided == AT_ONCE
    for each in waiting:
        each.cancel()


async def test_the_table_survives_the_daemon(host):
    await host.transfers.report(report(), 1000)  # and is killed
    host.begin()
    (kept,) = await host.transfers.list_all()
    assert (kept.name, kept.uid, kept.running) == ("song", 1000, False)
    (host.folder / FILE).write_text('{"rows": [[1, 2], "x"], "networks": []}')
    host.begin()
    assert await host.transfers.list_all() == []


async def test_what_carried_it_before_a_kill_of_both_came_earlier(host):
    host.networks(wifi=True)
    before = host.transfers
    await before.report(report(), 1000)
    await before.report(report(done_bytes=9000, used_bytes={"wlan0": 9000}), 1000)  # never kept
    host.begin()
    after = host.transfers
    again = {"done_bytes": 10_000, "used_bytes": {"lte0": 400}}
    await after.report(report(**again), 1000)
    (listed,) = await after.list_all()
    assert (listed.bytes_by_network, listed.earlier_bytes) == ({"phone": 400}, 9600)


async def test_a_host_is_not_kept_awake_in_a_pause_and_decides_anew_after_it(host):
    transfers = host.transfers
    for _ in range(2):  # it waits for Wi-Fi before and after: no turn changes
        await transfers.report(report(), 0)
        await transfers.report(report(again_unix_s=time.time() + 40.0), 0)
    assert host.decided == ["", ""]
    await host.pass_s(1.3)
    assert not host.awake


async def test_only_its_user_ends_a_transfer(host):
    transfers = host.transfers
    await transfers.report(report(), 1000)
    await transfers.report(report(ended=True), 0)
    assert len(await transfers.list_all()) == 1
    with pytest.raises(ConfigError, match="another user"):
        await transfers.report(report(), 0)
    await transfers.report(report(ended=True), 1000)
    assert await transfers.list_all() == []


async def test_what_was_said_before_the_end_comes_too_late(host):
    """An episode that was here was listed as coming: its last words arrived after its end."""
    transfers = host.transfers
    turn = await transfers.report(report(said_s=1.0), 1000)
    waiting = asyncio.ensure_future(
        transfers.report(report(said_s=2.0, seen=turn.serial, wait_s=30.0), 1000)
    )
    await asyncio.sleep(0.05)
    await transfers.report(report(said_s=4.0, ended=True), 1000)
    await transfers.report(report(said_s=3.0), 1000)
    assert await transfers.list_all() == []
    async with asyncio.timeout(5.0):
        await waiting
    assert await transfers.list_all() == []
    await transfers.report(report(said_s=5.0), 1000)  # wanted again
    assert len(await transfers.list_all()) == 1


async def test_the_host_stays_awake_only_while_a_transfer_can_move(host):
    transfers = host.transfers
    await transfers.report(report(), 0)
    await host.pass_s(2.5)
    assert not host.awake, "it waits for Wi-Fi, which may come while the host sleeps"
    host.networks(wifi=True)
    await host.pass_s(2.5)
    assert host.awake
    await transfers.report(report(ended=True), 0)
    await host.pass_s(2.5)
    assert not host.awake


async def test_keeping_the_table_waits_for_no_disk(tmp_path):
    transfers = Host(tmp_path).transfers
    (tmp_path / FILE).unlink(missing_ok=True)
    transfers.keep()
    assert not (tmp_path / FILE).exists()
    await transfers.file.wait_written()
    assert (tmp_path / FILE).exists()
