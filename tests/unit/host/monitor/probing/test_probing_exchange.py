"""Trains over loopback, with a server that serves: measured, paid for, limited."""

import asyncio
from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.waiting import until

from cedos.host.monitor.probing import udp_train
from cedos.host.monitor.probing.probes import ProbeServer
from cedos.host.monitor.probing.udp_train import INDICATORS

HERE = ip_address("127.0.0.1")


KEY = b"k" * 32


async def test_a_train_is_measured_and_paid_for(serving, measured):
    async with serving() as (running, server):
        outcome = await measured(server)
        assert outcome.problem == ""
        assert set(outcome.indicators) == set(INDICATORS)
        assert outcome.indicators["udp_loss"] == 0
        assert 1e6 < outcome.indicators["udp_bps"] < 1e12
        carried = 40 * 1228
        assert carried < outcome.spent.bytes_down < carried + 500
        assert 0 < outcome.spent.bytes_up < 1000
        assert running.counts["trains"] == 1


async def test_another_key_gets_no_answer_and_no_figures(serving, measured):
    async with serving() as (running, server):
        stranger = replace(server, key=b"x" * 32)
        outcome = await measured(stranger, 0.4)
        assert outcome.problem == "no answer in time (greeting)"
        assert outcome.spent.bytes_down == 0
        assert running.counts["datagrams without the key"] >= 1


class Crowded:
    """A socket whose buffer is full each second time."""

    def __init__(self, real):
        self._real, self._full = real, False

    def __getattr__(self, name):
        return getattr(self._real, name)

    def sendto(self, *datagram):
        self._full = not self._full
        if self._full:
            raise BlockingIOError
        return self._real.sendto(*datagram)


async def test_trains_that_wait_for_room_at_once_all_end(serving, measured):
    """The event loop forgot one of two waiting trains: 4 MB stayed of each twenty on a slow line."""
    async with serving() as (running, server):
        running._datagrams.socket = Crowded(running._datagrams.socket)
        outcomes = await asyncio.gather(*(measured(server) for _ in range(4)))
        assert [each.problem for each in outcomes] == [""] * 4
        await until(lambda: not running._tasks, 2)


async def test_a_server_that_is_gone(serving, measured):
    async with serving() as (_, server):
        pass
    outcome = await measured(server, timeout_s=0.4)
    assert "no answer" in outcome.problem or "refused" in outcome.problem


async def test_an_interface_that_is_gone():
    server = ProbeServer(HERE, 9, KEY)
    assert (await udp_train.run(server, interface="none0")).problem == "none0: No such device"


async def test_limits_are_told_with_their_end(serving, measured):
    async with serving(source_bps=8 * 50_000, total_bps=1e9, burst_s=2.0) as (running, server):
        assert not (await measured(server)).problem
        assert not (await measured(server)).problem
        refused = await measured(server)
        assert "this source's rate limit is used up (again in" in refused.problem
        huge = await measured(replace(server, packets=200))
        assert "larger than the server allows" in huge.problem
        assert running.counts["refused, this source's rate limit is used up"] == 1


@pytest.mark.parametrize(
    ("packets", "packet_bytes"), [(1, 1200), (201, 1200), (60_000, 64), (50, 63), (50, 1453)]
)
async def test_absurd_trains_are_refused(packets, packet_bytes, serving, measured):
    async with serving() as (_, server):
        absurd = replace(server, packets=packets, packet_bytes=packet_bytes)
        assert "larger than the server allows" in (await measured(absurd)).problem


async def test_a_clock_that_is_set_meanwhile_spoils_the_train(monkeypatch, serving, measured):
    monkeypatch.setattr(udp_train.Datagrams, "clock_moved_s", 0.5)
    async with serving() as (_, server):
        assert (await measured(server)).problem == "the host's clock was set during the train"
