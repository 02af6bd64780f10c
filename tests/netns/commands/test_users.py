"""Users of this host, by their real numbers: what one may do to another, and whose network is theirs."""

import json
import os
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kit.laptop import Installed
from kit.waiting import wait_until

from cedos.commands.console.transfers import say_if_closed
from cedos.controller.decisions.hints import MOST_OF_A_USER
from cedos.controller.hint import HintRequest
from cedos.errors import CedosError

ALICE, BOB, MALLORY = 70_001, 70_002, 70_003  # the first two are of the daemon's group
GROUP, NOBODYS_GROUP = 0, 70_000


def as_user(uid, gid, act):
    """Return the result of `act` in a process of this user, or an error as text."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            told = act()
        except BaseException as error:
            told = str(error) or type(error).__name__
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        found = json.loads(answers.read())
    os.waitpid(pid, 0)
    return found


@pytest.fixture
def cedos(tethered):
    """Run the daemon in a folder that other users may read; a test's own folder is for its user alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Installed(tethered.laptop, Path(folder))


def test_quotas_are_each_users_own(cedos):
    with cedos.up() as process:
        cedos.socket.parent.chmod(0o711)
        client = cedos.client
        numbers = [client.hint(HintRequest(destination="192.0.2.1", size_bytes=1)).number]
        client.unhint(numbers[0])  # all that is needed is loaded before other users are

        def hint(count):
            asked = (
                HintRequest(destination=f"192.0.2.{n % 250 + 1}", size_bytes=10_000 + n)
                for n in range(count)
            )
            return [client.hint(each).number for each in asked]

        def unhint(number):
            client.unhint(number)
            return "done"

        (bobs,) = as_user(BOB, GROUP, lambda: hint(1))
        alices = as_user(ALICE, GROUP, lambda: hint(MOST_OF_A_USER + 6))
        assert len(alices) == MOST_OF_A_USER + 6
        # Hers pushed out her own oldest, and his stands.
        assert "there is no hint" in as_user(ALICE, GROUP, lambda: unhint(alices[5]))
        assert "of another user" in as_user(ALICE, GROUP, lambda: unhint(bobs))
        assert as_user(ALICE, GROUP, lambda: unhint(alices[6])) == "done"
        assert as_user(BOB, GROUP, lambda: unhint(bobs)) == "done"
        assert unhint(alices[7]) == "done"  # root's
        # Who is not of the group is told so, in words, and changes nothing.
        said = as_user(MALLORY, NOBODYS_GROUP, lambda: client.status().pid)
        assert "you may not open" in said
        for file in ("state", "runtime"):
            for path in (cedos.folder / file).rglob("*"):
                if path.is_file():
                    assert path.stat().st_mode & 0o077 == 0, path
        assert process.poll() is None


def test_who_opens_connections_without_end_keeps_no_other_user_out(cedos):
    with cedos.up():
        cedos.socket.parent.chmod(0o711)
        client = cedos.client
        pid = client.status().pid

        def crowd():
            kept = []
            for _ in range(400):
                one = socket.socket(socket.AF_UNIX)
                one.connect(str(cedos.socket))
                kept.append(one)
            time.sleep(1.5)
            return len(kept)

        held = []
        holding = threading.Thread(target=lambda: held.append(as_user(ALICE, GROUP, crowd)))
        holding.start()
        time.sleep(0.7)
        began_s = time.monotonic()
        assert as_user(BOB, GROUP, lambda: client.status().pid) == pid
        assert time.monotonic() - began_s < 2.0
        holding.join()
        assert held == [400]


def test_a_user_who_opens_connections_without_end_holds_up_no_other_user(tethered, cedos):
    """The daemon handled all that waited before anything else: it answered up to 40 s later."""

    def pour():
        number, until_s = 0, time.monotonic() + 20.0
        while time.monotonic() < until_s:
            number += 1
            time.sleep(0.0002)
            with socket.socket() as one:
                one.setblocking(False)
                one.connect_ex(("198.51.100.1", 1024 + number % 60_000))
        return number

    def answers():
        try:
            return bool(cedos.client.status().networks)
        except CedosError:
            return False

    tethered.phones.ip("address", "add", "198.51.100.1/32", "dev", "lo")
    with cedos.up() as process, ThreadPoolExecutor(1) as others:
        with tethered.laptop.entered():
            poured = others.submit(as_user, ALICE, GROUP, pour)
        time.sleep(6.0)
        answered = 0
        while not poured.done():
            answered += answers()
            time.sleep(0.2)
        assert poured.result() > 2_000
        assert answered >= 12
        wait_until(answers)
        cedos.ends(process)


def test_a_network_without_a_default_route_works_for_who_is_bound_to_it(tethered, install):
    """A printer's, virtual machines': by its address, by its interface, and through its own router."""
    laptop, phones = tethered.laptop, tethered.phones
    laptop.ip("link", "add", "eth1", "type", "veth", "peer", "eth1", "netns", phones.name)
    for where, end in ((laptop, 2), (phones, 1)):
        where.ip("address", "add", f"192.168.56.{end}/24", "dev", "eth1")
        where.ip("link", "set", "eth1", "up")
    phones.ip("address", "add", "10.56.0.1/32", "dev", "lo")
    laptop.ip("route", "add", "10.56.0.0/16", "via", "192.168.56.1")
    with phones.entered():
        listening = socket.create_server(("", 8056))

    def seen(to, *, device, address):
        with laptop.entered():
            one = socket.socket()
        with one:
            one.settimeout(3)
            if device:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth1")
            if address:
                one.bind(("192.168.56.2", 0))
            one.connect((to, 8056))
            peer, (host, _) = listening.accept()
            peer.close()
            return str(host)

    def all_ways():
        return {
            seen(to, device=device, address=address)
            for to in ("192.168.56.1", "10.56.0.1")
            for device, address in ((True, False), (False, True), (True, True), (False, False))
        }

    with listening:
        assert all_ways() == {"192.168.56.2"}
        with install(laptop).up():
            assert all_ways() == {"192.168.56.2"}
            laptop.ip("link", "set", "wlan0", "down")
            time.sleep(0.5)
            assert all_ways() == {"192.168.56.2"}


def test_programs_of_who_may_not_ask_the_daemon_say_so(cedos, capfd):
    said = "cedos-get: if a daemon runs, its rules and choices are not followed: you may not open "
    with cedos.up():
        cedos.socket.parent.chmod(0o711)
        say_if_closed("cedos-get", cedos.socket)
        as_user(ALICE, GROUP, lambda: say_if_closed("cedos-get", cedos.socket))
        assert said not in capfd.readouterr().err
        as_user(MALLORY, NOBODYS_GROUP, lambda: say_if_closed("cedos-get", cedos.socket))
        assert said in capfd.readouterr().err
    say_if_closed("cedos-get", cedos.socket)
    assert said not in capfd.readouterr().err
