"""A hard budget on a real daemon: where it is spent, programs are stopped; kill -9 and restore."""

import signal
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress

import pytest
from kit.waiting import wait_until

from cedos.budget_kinds import Resource
from cedos.host.steer.undo import restore
from cedos.model import Budget, Every

PORT = 8000
CONTROLLED = ("qdisc show dev lte0", "filter show dev lte0 egress")


def _pour(listening):
    """Sends to whomever comes for as long as they take it."""
    with suppress(OSError):
        while True:
            one, _ = listening.accept()
            threading.Thread(target=_pour_to, args=(one,), daemon=True).start()


def _pour_to(one):
    with suppress(OSError), one:
        while True:
            one.sendall(bytes(1 << 16))


class Host:
    """A laptop with Wi-Fi and a metered network, cedos on it, and a server behind both."""

    def __init__(self, tethered, install):
        self.laptop, self.phones = tethered.laptop, tethered.phones
        self.cedos = install(self.laptop)
        self._far = tethered.metered
        self.sockets = []
        with self.phones.entered():
            self.sockets.append(socket.create_server(("", PORT), backlog=50))
        threading.Thread(target=_pour, args=(self.sockets[0],), daemon=True).start()

    def connect(self):
        """Some program's connection over the metered network."""
        with self.laptop.entered():
            connecting = socket.socket()
        self.sockets.append(connecting)
        connecting.settimeout(5)
        connecting.connect((self._far, PORT))
        return connecting

    def read(self, connection, most):
        got = 0
        while got < most and (data := connection.recv(min(1 << 16, most - got))):
            got += len(data)
        return got

    def refused(self):
        began_s = time.monotonic()
        with pytest.raises(ConnectionRefusedError):
            self.connect()
        return time.monotonic() - began_s < 0.5

    def set(self, supply, *, hard=True, name="data", networks=()):
        until = "2099-12-01T00:00:00"
        return self.cedos.client.set_budget(
            Budget(
                name, Resource.DATA, supply, until, networks=networks, every=Every.MONTH, hard=hard
            )
        )

    def restore(self):
        with self.laptop.entered():
            return restore(self.cedos.folder / "state").done

    def state(self):
        shown = ("rule", "-6 rule", "route show table all", "-6 route show table all")
        found = [self.laptop.ip(*words.split()) for words in shown]
        found += [self.laptop.run(f"{name}-save").stdout for name in ("iptables", "ip6tables")]
        found += [self.laptop.run("sysctl", "-a", "-r", "^net.(mptcp|ipv4.tcp)").stdout]
        found += [self.laptop.run("tc", *words.split()).stdout for words in CONTROLLED]
        # A link that went down and up has its routes in another order, and the kernel notices its carrier
        # up to a second later: until then it has no multicast, and its routes are marked.
        lines = [line.replace(" linkdown", "") for part in found for line in part.splitlines()]
        return sorted(line for line in lines if not line.startswith(("#", "multicast ff00::/8")))


@pytest.fixture
def host(tethered, install):
    made = Host(tethered, install)
    yield made
    for one in made.sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


def _sends(where, to, over):
    """Sends datagrams over the metered network without end, whatever refuses them."""
    with where.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.bind(("192.168.44.2", 0))
        while not over.wait(0.001):
            with suppress(OSError):
                sending.sendto(bytes(1000), (to, PORT))


@pytest.mark.parametrize("others", [(), ("wlan0",)])
def test_nothing_gets_through_while_a_daemon_follows_a_killed_one(host, others):
    """The daemon took the walls down before it put them up again: 2 to 6 MB went through.

    So it did later, where another spent budget named other networks: it barred these alone at first.
    """
    with host.phones.entered():
        coming = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    host.sockets.append(coming)
    coming.bind(("", PORT))
    coming.setblocking(False)
    over = threading.Event()
    sending = threading.Thread(target=_sends, args=(host.laptop, "192.168.44.1", over), daemon=True)
    try:
        with host.cedos.up() as process:
            sending.start()
            wait_until(lambda: _came(coming))
            host.set(1.0)
            if others:
                host.set(1.0, name="others", networks=others)
                host.laptop.run("ping", "-c1", "-I", "wlan0", "192.168.43.1")
                wait_until(lambda: all(each.barred for each in host.cedos.client.budgets()))
                host.set(1.0)  # what was used is kept
            wait_until(lambda: _quiet(coming))
            process.send_signal(signal.SIGKILL)
            process.wait()
        with host.cedos.up():
            assert all(each.barred for each in host.cedos.client.budgets())
            assert not _came(coming), len(coming.recv(1 << 20))
            host.set(9e14)
            wait_until(lambda: _came(coming))
    finally:
        over.set()


def _came(coming):
    with suppress(BlockingIOError):
        return bool(coming.recv(2000))
    return False


def _quiet(coming):
    while _came(coming):
        pass
    time.sleep(0.3)
    return not _came(coming)


def test_programs_are_stopped_where_it_is_spent_and_nothing_is_left_behind(host):
    before = host.state()
    with host.cedos.up() as process:
        assert not host.set(20e6).barred
        assert host.read(host.connect(), 5_000_000) == 5_000_000
        living = host.connect()
        with pytest.raises(ConnectionResetError):
            host.read(living, 1 << 40)
        assert host.refused()
        (one,) = host.cedos.client.budgets()
        assert (one.hard, one.barred) == (True, ("lte0",))
        assert one.spent >= 0.99 * 2e7  # the last percent is kept for what is on its way
        problem = 'the hard budget "data" is used up: programs are blocked on lte0'
        wait_until(
            lambda: any(each.startswith(problem) for each in host.cedos.client.status().problems)
        )
        networks = host.cedos.client.networks()
        assert [bool(network.barred) for network in networks] == [False, True]
        # More of it: at once.
        assert not host.set(9e14).barred
        assert host.read(host.connect(), 100_000) == 100_000
        # Less, with Wi-Fi gone: there is no other way, and still nothing gets through.
        host.laptop.ip("link", "set", "wlan0", "down")
        assert host.set(1e6).barred == ("lte0",)
        assert host.refused()
        wait_until(
            lambda: "programs are blocked on lte0" in host.cedos.client.explain(None).reason, 10
        )
        host.laptop.ip("link", "set", "wlan0", "up")
        host.laptop.ip("route", "add", "default", "via", "192.168.43.1", "metric", "43")
        process.send_signal(signal.SIGKILL)
        process.wait()
    # Whoever killed it has not opened the way; `restore` has.
    assert host.refused()
    assert "deleted: the chains CEDOS_* of iptables" in host.restore()
    assert host.state() == before
    assert host.read(host.connect(), 100_000) == 100_000
    # The next one bars again from its beginning on, also with the phone alone; a soft one stops nobody.
    host.laptop.ip("link", "set", "wlan0", "down")
    before = host.state()
    with host.cedos.up() as process:
        assert host.refused()
        assert not host.set(1e6, hard=False).barred
        assert host.read(host.connect(), 100_000) == 100_000
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert "Traceback" not in log
        assert "a hard budget is used up" in log
    assert host.state() == before


def test_a_network_without_a_default_route_is_counted(host):
    """A router may name its routes otherwise, by halves say: what came by these was not counted."""
    with host.cedos.up():
        host.laptop.ip("route", "del", "default", "dev", "lte0")
        wait_until(lambda: not host.cedos.client.networks()[-1].up)
        assert not host.set(2e8).barred
        with pytest.raises(ConnectionResetError):
            host.read(host.connect(), 1 << 32)
        assert host.refused()


def test_what_an_interface_carried_counts_that_is_made_anew_each_moment(host, tethered):
    """A phone that was plugged in ten times, 0.6 s each, had two thirds of its bytes not counted."""
    with host.cedos.up():
        host.set(9e14)
        time.sleep(1.0)
        before, sent = host.cedos.client.budgets()[0].spent, 0
        for _ in range(4):
            with host.laptop.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
                sending.bind(("192.168.44.2", 0))
                until_s = time.monotonic() + 0.6
                while time.monotonic() < until_s:
                    with suppress(OSError):
                        sent += sending.sendto(bytes(1000), ("192.168.44.1", PORT))
            host.laptop.ip("link", "delete", "lte0")
            tethered.plug("lte0", 44)
            time.sleep(0.1)
        wait_until(lambda: host.cedos.client.budgets()[0].spent - before >= sent, 3)


def test_a_slow_disk_keeps_no_network_open_that_comes(host, tethered):
    """While one change of networks was written, which a user's writes slow down, none was followed."""
    with host.phones.entered():
        coming = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    host.sockets.append(coming)
    coming.bind(("", PORT))
    coming.setblocking(False)
    with host.cedos.up():
        host.connect()
        host.set(1.0)
        host.laptop.run("ping", "-c1", "-I", "lte0", host._far, check=False)
        wait_until(lambda: host.cedos.client.budgets()[0].barred)
        with closing(sqlite3.connect(host.cedos.folder / "state/usage.sqlite")) as slow:
            slow.execute("BEGIN IMMEDIATE")
            host.laptop.ip("link", "set", "wlan0", "down")
            time.sleep(0.2)
            tethered.plug("usb0", 45)
            time.sleep(1.0)
            with host.laptop.entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
                sending.bind(("192.168.45.2", 0))
                with suppress(OSError):
                    sending.sendto(b"passes", ("192.168.45.1", PORT))
            assert not _came(coming)
