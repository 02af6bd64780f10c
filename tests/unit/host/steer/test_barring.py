"""Barred networks on a kernel in memory: what is asked of it, in which order, and what is undone."""

import errno
from dataclasses import replace

import pytest

from cedos.errors import SteeringError
from cedos.host.steer.journal import FILE_NAME, Journal
from cedos.host.steer.journal_records import OWN_SOURCES
from cedos.host.steer.steering import Steering
from cedos.kernel import own_file

KEEPS = "net.mptcp.close_timeout"


async def test_the_way_back_is_on_the_disk_before_anything_is_barred(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel, filter_flows=False) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        told = []
        bar = world.kernel.bar
        world.kernel.bar = lambda names: (
            told.append((tmp_path / FILE_NAME).read_text()),
            bar(names),
        )
        await steering.barring.bar(["lte0"])
        assert world.kernel.barred == ("lte0",)
        assert "packet-filter" in told[0]
        assert world.kernel.sysctls[KEEPS] == "1"
    assert world.kernel.barred == ()
    assert world.kernel.sysctls[KEEPS] == "60"


async def test_a_disk_that_takes_nothing_any_more_opens_no_barred_network(
    world, tmp_path, monkeypatch
):
    """The daemon could not write that it bars, and barred nothing: 2.8 MB of a budget of 0.3 MB."""

    def refuse(*_):
        raise SteeringError("Read-only file system")

    async with Steering(tmp_path, kernel=world.kernel, filter_flows=False) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        monkeypatch.setattr(Journal, "append", refuse)
        await steering.barring.bar(["lte0"])
        assert world.kernel.barred == ("lte0",)
        await steering.hold_answers(True)
        await steering.barring.bar([])
        assert world.kernel.barred == ()
    assert world.kernel.sysctls[KEEPS] == "60"


async def test_a_disk_that_is_full_from_the_start_opens_no_barred_network(
    world, tmp_path, monkeypatch
):
    """The daemon could not start, and the user who filled the disk was under no budget and no rule."""
    Journal(tmp_path).close()

    def refuse(path):
        raise OSError(errno.EEXIST if path.exists() else errno.ENOSPC, "refused")

    monkeypatch.setattr(own_file, "create", refuse)
    before = dict(world.kernel.sysctls)
    async with Steering(tmp_path, kernel=world.kernel, rescue=True, tcp=True) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        await steering.barring.bar(["lte0"])
        assert world.kernel.barred == ("lte0",)
        assert world.kernel.own
        # What bears no mark of ours could not be undone after a crash.
        assert before == {
            key: "0" if value == OWN_SOURCES else value
            for key, value in world.kernel.sysctls.items()
        }
        assert "takes nothing" in " ".join(steering.problems)
    assert world.kernel.barred == ()
    assert not world.kernel.own


async def test_what_is_lifted_is_as_before(world, steering):
    before = dict(world.kernel.sysctls)
    await steering.barring.bar([])  # nothing to do
    assert not any("bar" in line for line in world.kernel.log)
    for _ in range(2):
        await steering.barring.bar(["lte0"])
        await steering.barring.bar([])
        assert world.kernel.barred == ()
        assert world.kernel.sysctls == before


async def test_an_odd_name_of_an_interface_opens_no_other_one(world, steering):
    """Once a name that the packet filter does not accept made it refuse all of them."""
    odd = replace(world.wlan0, interface='w"0;é')
    await steering.networks_changed([odd, world.lte0])
    for _ in range(2):
        with pytest.raises(SteeringError, match="no interface called"):
            await steering.barring.bar(["wlan0", "lte0"])
        assert world.kernel.barred == ("lte0",)
    await steering.barring.bar(["lte0"])
    await steering.barring.bar([])
    assert world.kernel.barred == ()


async def test_what_somebody_else_set_meanwhile_stays(world, steering):
    await steering.barring.bar(["lte0"])
    world.kernel.sysctls[KEEPS] = "30"
    await steering.barring.bar([])
    assert world.kernel.sysctls[KEEPS] == "30"


async def test_a_network_that_comes_back_elsewhere_is_barred_there(world, steering):
    await steering.barring.bar(["lte0"])
    await steering.networks_changed([world.wlan0])
    assert world.kernel.barred == ("lte0",)
    again = replace(world.lte0, interface="usb1", index=9)
    await steering.networks_changed([world.wlan0, again])
    assert world.kernel.barred == ("usb1",)
    assert [network.up for network in steering.barring.usable()] == [True, False]


async def test_the_kernel_is_asked_once_for_one_change_of_networks(world, steering, monkeypatch):
    """Ask once: the event loop asked the kernel for each barred interface again and again."""
    await steering.barring.bar(["lte0"])
    asked = []
    monkeypatch.setattr(world.kernel, "raise_wall", lambda names: asked.append(names) or False)
    await steering.networks_changed([world.wlan0])
    await steering.networks_changed([world.wlan0, replace(world.lte0, interface="usb1", index=9)])
    assert asked == [("lte0",), ("usb1",)]


async def test_one_that_was_never_there_is_barred_when_it_comes(world, steering):
    await steering.barring.bar(["phone"])
    assert world.kernel.barred == ()
    phone = replace(world.lte0, name="phone", interface="usb0", index=9)
    await steering.networks_changed([world.wlan0, world.lte0, phone])
    assert world.kernel.barred == ("usb0",)


async def test_a_refusal_is_told_and_can_be_tried_again(world, steering):
    world.kernel.refuses = errno.EIO
    with pytest.raises(SteeringError, match="bar lte0"):
        await steering.barring.bar(["lte0"])
    world.kernel.refuses = 0
    await steering.barring.bar(["lte0"])
    assert world.kernel.barred == ("lte0",)
    world.kernel.refuses = errno.EIO
    with pytest.raises(SteeringError, match="bar no network"):
        await steering.barring.bar([])
    world.kernel.refuses = 0
    await steering.barring.bar([])
    assert world.kernel.barred == ()


async def test_networks_are_followed_though_one_cannot_be_barred(world, steering, monkeypatch):
    await steering.barring.bar(["lte0"])

    def refuse(_):
        raise OSError(errno.EIO, "iptables does not end")

    with monkeypatch.context() as patched:
        patched.setattr(world.kernel, "bar", refuse)
        again = replace(world.lte0, interface="usb1", index=9)
        await steering.networks_changed([world.wlan0, again])
    assert world.kernel.barred == ("lte0",)
    await steering.barring.bar(["lte0"])
    assert world.kernel.barred == ("usb1",)


async def test_after_the_end_nothing_is_barred_any_more(world, steering):
    await steering.close()
    with pytest.raises(SteeringError, match="closed"):
        await steering.barring.bar(["lte0"])


async def test_a_dry_run_says_it(world, tmp_path):
    async with Steering(tmp_path, kernel=world.kernel, dry_run=True) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        await steering.barring.bar(["lte0"])
        assert "packet filter: nothing of a program's over lte0" in steering.planned
    assert world.kernel.barred == ()


async def test_the_second_wall_stands_while_a_daemon_begins(world, tmp_path):
    """Between two daemons megabytes of a program's went over the network that a budget closes."""
    world.kernel.walled = {"lte0"}  # a killed one left it
    again = True
    for _ in range(2):
        async with Steering(tmp_path, kernel=world.kernel, goes_on=lambda: again) as steering:
            await steering.networks_changed([world.wlan0, world.lte0])
            assert world.kernel.walled == {"lte0"}
            await steering.barring.bar(["lte0"])
            await steering.barring.take_down_unneeded()
            assert world.kernel.walled == {"lte0"}
        assert world.kernel.walled == {"lte0"}
    again = False
    async with Steering(tmp_path, kernel=world.kernel, goes_on=lambda: again) as steering:
        await steering.networks_changed([world.wlan0, world.lte0])
        await steering.barring.take_down_unneeded()
        assert world.kernel.walled == set()
        await steering.barring.bar(["lte0"])
    assert world.kernel.walled == set()


async def test_without_a_packet_filter_nothing_of_an_earlier_wall_stays(world, tmp_path):
    world.kernel.walled = {"lte0"}
    async with Steering(tmp_path, kernel=world.kernel, filter_flows=False):
        assert world.kernel.walled == set()
