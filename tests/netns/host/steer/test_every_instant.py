"""Kill a process before each of its changes of the host: what `restore` leaves is as before."""

import os
import random
import re
import signal
import subprocess

import pytest
from kit.steered import steering_of

from cedos.host.steer.steering import restore
from cedos.kernel import bpf, netlink, sysctl

# With 1: every change, for half an hour.
EVERY = os.environ.get("CEDOS_EVERY_INSTANT")
SOME = 5
# What is asked of links, and of their traffic control (rtnetlink).
OF_THE_WALL = re.compile(r"ask\w* \(+(16|36|37|44|45),")


class Instants:
    """Counts the changes of a process to its host, and ends it before change number `last`."""

    def __init__(self, last):
        self.last, self.trail = last, []

    def change(self, what):
        self.trail.append(what)
        if len(self.trail) == self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def count(self, place, *names):
        for name in names:
            setattr(place, name, self._counted(name, getattr(place, name)))

    def _counted(self, name, real):
        def counted(*arguments, **named):
            # A request without flags only asks.
            if name != "ask" or [*arguments[3:4], 4] != [0]:
                self.change(f"{name} {arguments[1:2]!r:.9}")
            return real(*arguments, **named)

        return counted

    def begin(self):
        self.count(netlink.Requester, *(each for each in vars(netlink.Requester) if "ask" in each))
        self.count(os, "write", "fsync", "unlink", "rename", "mkdir")
        self.count(sysctl, "write")
        self.count(bpf, "link")
        self.count(subprocess, "run")
        self.count(subprocess.Popen, "communicate")  # (its child lives on)


async def a_wall(host):
    async with steering_of(host, filter_flows=False) as steering:
        await steering.barring.bar(["lte0"])
        await steering.barring.bar([])


async def a_day(host):
    async with steering_of(host, default="lte0", rescue=True, tcp=True) as steering:
        steering.set_destination("198.51.100.7", 443, "wlan0", protocol="tcp")
        steering.set_ruled({("198.51.100.0/24", None): "wlan0"})
        steering.set_mark(0xCED, "lte0")
        steering.paths_measured({"wlan0": (20e6, 0.02), "lte0": (10e6, 0.06)})
        await steering.hold_answers(True)
        await steering.barring.bar(["lte0"])
        await steering.networks_changed(host.networks("wlan0"))
        await steering.networks_changed(host.networks())
        await steering.barring.bar([])
        await steering.hold_answers(False)
        await steering.barring.bar(["lte0", "wlan0"])


def changes(host, body, last=0):
    """Run the body in a process that ends before its change number `last`; return their names."""
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            instants = Instants(last)
            instants.begin()
            host.run(lambda: body(host))
        finally:
            instants.last = -1
            os.write(tells, "\n".join(instants.trail).encode())
            os._exit(0)
    os.close(tells)
    with os.fdopen(told) as file:
        trail = file.read().splitlines()
    os.waitpid(child, 0)
    return trail


@pytest.mark.timeout(0 if EVERY else 120)
@pytest.mark.parametrize(("body", "some"), [(a_wall, None), (a_day, SOME)])
def test_a_kill_before_any_change_leaves_the_host_as_it_was(host, body, some):
    """A killed daemon left `clsact` at an interface, or its queue longer by one packet."""
    before = host.state()
    trail = changes(host, body)
    assert host.state() == before
    instants = range(1, len(trail) + 1)
    if not EVERY:
        wall = [each for each in instants if OF_THE_WALL.match(trail[each - 1])]
        assert len(wall) >= 4
        instants = random.Random(5).sample(instants, some) if some else wall
    for last in instants:
        changes(host, body, last)
        with host.client.entered():
            undone = restore(host.directory)
        after = host.state()
        assert (after, undone.left) == (before, ()), (last, trail[max(last - 3, 0) : last])
