"""First packets into a dead network are led over another one, for programs that know nothing of it."""

import asyncio
import functools
import re
import socket
import time
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from kit.steered import steered

from cedos.host.steer.steering import Steering
from cedos.host.steer.undo import Undone, restore
from cedos.model import FlowKey, Strategy, StrategyKind

FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
SERVER = {4: "198.51.100.1", 6: "2001:db8:100::1"}
PORT = 8000
TIMEOUTS = {"wlan0": 0.25, "lte0": 0.25}
KINDS = [(version, proto) for version in (4, 6) for proto in (0, 262)]
rescued = functools.partial(steered, default="wlan0", rescue=True)


def filters(host, version, *words, check=True):
    program = "iptables" if version == 4 else "ip6tables"
    return host.server.run(program, *words, check=check).stdout


@contextmanager
def dead(host, *names):
    """Networks that are dead beyond their routers: neighbours still answer."""
    rules = [("PREROUTING", "-i", name, "-p", "tcp", "-j", "DROP") for name in names]
    for version in (4, 6):
        for rule in rules:
            filters(host, version, "-t", "raw", "-A", *rule)
    try:
        yield
    finally:
        for version in (4, 6):
            for rule in rules:
                filters(host, version, "-t", "raw", "-D", *rule)


class Program:
    """A program that connects, and knows nothing of what is done for it."""

    def __init__(self, host, version, proto=0, port=PORT):
        self.host, self.version, self.port = host, version, port
        self.socket = socket.socket(FAMILY[version], socket.SOCK_STREAM, proto)
        host.sockets.append(self.socket)
        self.socket.setblocking(False)
        self.begun_s = time.monotonic()
        self.socket.connect_ex((SERVER[version], port))
        self.task = asyncio.create_task(self._connected())

    async def _connected(self):
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self.socket, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_writer(self.socket)
        if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, "connect")
        return time.monotonic() - self.begun_s

    def key(self):
        """Return the key of this connection; an MPTCP socket has none: then of the only one there is."""
        local = self.socket.getsockname()[:2]
        if not local[1]:
            local = opening(self.host, self.version)
        return FlowKey(ip_address(local[0]), local[1], ip_address(SERVER[self.version]), self.port)

    async def took_s(self, limit_s=3.0):
        return await asyncio.wait_for(self.task, limit_s)

    async def ask(self, words=b"who\n"):
        """Return the server's answer; to `who` it is the address that it sees."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self.socket, words)
        return (await asyncio.wait_for(loop.sock_recv(self.socket, 100), 3)).decode()

    def close(self):
        self.socket.close()


def opening(host, version=4):
    """Address and port of a socket that waits for its first answer; None without one."""
    for line in host.client.run(
        "ss", "-Htn", f"-{version}", "state", "syn-sent"
    ).stdout.splitlines():
        address, _, port = line.split()[2].rpartition(":")
        return address.strip("[]").partition("%")[0], int(port)
    return None


async def rescuing(host, **options):
    steering = Steering(host.directory, rescue=True, **options)
    await steering.__aenter__()
    await steering.networks_changed(host.networks())
    steering.set_default("wlan0")
    return steering


def early(steering):
    assert steering.rescues.set_first_timeouts(TIMEOUTS)


def members(host):
    """The rescued flows in the sets and rules of the client."""
    rules = [host.client.ip(f"-{version}", "rule").count(" sport ") for version in (4, 6)]
    return sum(rules)


def connections_at(host, version):
    """Return the connections at the server, half open ones too."""
    lines = host.server.run("ss", "-Htna", f"-{version}", f"sport = :{PORT}").stdout.splitlines()
    return [line.split() for line in lines if not line.startswith("LISTEN")]


@pytest.mark.parametrize(("version", "proto"), KINDS)
@rescued(unchanged=True)
async def test_a_first_packet_is_repeated_early_and_over_the_other_network(
    host, steering, version, proto
):
    early(steering)
    with dead(host, "wlan0"):
        program = Program(host, version, proto)
        key = program.key()
        assert str(key.local) == host.address("wlan0", version)
        await asyncio.sleep(0.15)
        assert steering.rescues.connecting(key).resend_in_s < 0.15
        assert steering.rescues.rescue(key, "lte0")
        assert await program.took_s() < 0.95
        assert await program.ask() == host.address("lte0", version)
        assert steering.rescues.connecting(key) is None
        assert members(host) == 1
        program.close()
        steering.rescues.remove(key)
        assert members(host) == 0


@rescued()
async def test_to_repeat_early_a_second_time_takes_no_more_descriptors(host, steering):
    before = len(list(Path("/proc/self/fd").iterdir()))
    steering.rescues.repeat_early()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("version", [4, 6])
def test_without_bpf_the_kernels_own_second_is_enough(host, version, monkeypatch):
    def refused(*_):
        raise PermissionError(1, "no")

    monkeypatch.setattr("cedos.host.steer.kernel.linux_rescue.FirstTimeouts", refused)

    async def body():
        steering = await rescuing(host)
        try:
            assert any("after 1 s" in problem for problem in steering.problems)
            assert not steering.rescues.set_first_timeouts(TIMEOUTS)
            with dead(host, "wlan0"):
                program = Program(host, version)
                key = program.key()
                await asyncio.sleep(0.3)
                assert steering.rescues.connecting(key).resend_in_s > 0.5
                assert steering.rescues.rescue(key, "lte0")
                assert 0.9 < await program.took_s() < 1.5
                assert await program.ask() == host.address("lte0", version)
                program.close()
        finally:
            await steering.close()

    before = host.state()
    host.run(body)
    assert host.state() == before


@pytest.mark.parametrize("version", [4, 6])
@rescued()
async def test_what_was_answered_is_left_alone(host, steering, version):
    early(steering)
    program = Program(host, version)
    key = program.key()
    await program.took_s()
    assert steering.rescues.connecting(key) is None
    assert not steering.rescues.rescue(key, "lte0")
    assert await program.ask() == host.address("wlan0", version)
    assert members(host) == 0
    refused = Program(host, version, port=9)
    with pytest.raises(ConnectionRefusedError):
        await refused.took_s()
    program.close()


@pytest.mark.parametrize("version", [4, 6])
def test_a_late_answer_is_refused(host, version):
    """The server did answer, but that took its time: it comes when the flow has been rescued."""
    late = ("OUTPUT", "-o", "wlan0", "-p", "tcp", "--sport", str(PORT), "-j", "DROP")

    def dropped():
        words = ("-t", "raw", "-nvxL", "CEDOS_LATE")
        program = "iptables" if version == 4 else "ip6tables"
        printed = host.client.run(program, *words).stdout
        return int(re.findall(r"^\s*(\d+)\s+\d+ DROP", printed, re.MULTILINE)[0])

    async def body():
        steering = await rescuing(host)
        try:
            early(steering)
            filters(host, version, "-A", *late)
            program = Program(host, version)
            key = program.key()
            await asyncio.sleep(0.1)
            assert any(line[0] == "SYN-RECV" for line in connections_at(host, version))
            assert steering.rescues.rescue(key, "lte0")
            # Its next attempt to answer gets through, while ours is kept waiting over the other one.
            filters(host, version, "-I", "OUTPUT", "-o", "lte0", "-p", "tcp", "-j", "DROP")
            filters(host, version, "-D", *late)
            await host.until(lambda: dropped() > 0, 4)
            assert not program.task.done()
            filters(host, version, "-D", "OUTPUT", "-o", "lte0", "-p", "tcp", "-j", "DROP")
            await program.took_s(4)
            assert await program.ask() == host.address("lte0", version)
            living = [line for line in connections_at(host, version) if line[0] == "ESTAB"]
            assert len(living) == 1
            assert host.address("lte0", version) in living[0][4]
            program.close()
            steering.rescues.remove(key)
        finally:
            await steering.close()

    host.run(body)


@pytest.mark.parametrize("version", [4, 6])
@rescued()
async def test_mptcp_knows_which_network_carries_it_and_moves_back(host, steering, version):
    early(steering)
    with dead(host, "wlan0"):
        program = Program(host, version, 262)
        key = program.key()
        await asyncio.sleep(0.1)
        assert steering.rescues.rescue(key, "lte0")
        await program.took_s()
        assert await program.ask() == host.address("lte0", version)

        def now():
            return next(iter(steering.connections.values()), None)

        await host.until(now)
        assert [path.network for path in now().subflows] == ["lte0"]
    # The network that was dead lives again: it is joined as what it is, and can take over.
    await host.until(lambda: {p.network for p in now().subflows} == {"lte0", "wlan0"}, 15)
    joined = next(path for path in now().subflows if path.network == "wlan0")
    assert joined.backup
    assert str(joined.key.local) == host.address("wlan0", version)
    with dead(host, "lte0"):
        token = next(iter(steering.connections))
        steering.steer_connection(token, Strategy(StrategyKind.SINGLE, ("wlan0",)))
        assert await program.ask(b"over the other one") == "over the other one"
    program.close()


@rescued()
async def test_joins_and_bound_sockets_are_not_moved(host, steering):
    early(steering)
    with dead(host, "lte0"):
        program = Program(host, 4, 262)
        await program.took_s()
        await program.ask()
        await host.until(lambda: opening(host), 5)
        local = opening(host)
        key = FlowKey(ip_address(local[0]), local[1], ip_address(SERVER[4]), PORT)
        # The kernel binds those of our path manager to their interface; others' would show it.
        found = steering.rescues.connecting(key)
        assert found is None or found.join
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            bound.setsockopt(socket.SOL_SOCKET, 25, b"wlan0")
            bound.setblocking(False)
            bound.connect_ex(("203.0.113.1", PORT))
            local = bound.getsockname()
            key = FlowKey(ip_address(local[0]), local[1], ip_address("203.0.113.1"), PORT)
            assert steering.rescues.connecting(key) is None
        program.close()


@pytest.mark.parametrize("version", [4, 6])
@rescued()
async def test_it_goes_back_where_the_other_network_does_not_answer_either(host, steering, version):
    early(steering)
    with dead(host, "wlan0", "lte0"):
        program = Program(host, version)
        key = program.key()
        assert steering.rescues.rescue(key, "lte0")
        await asyncio.sleep(0.4)
        assert steering.rescues.connecting(key).resent >= 1
        assert steering.rescues.rescue(key, "wlan0")
        assert members(host) == 0
    await program.took_s()
    assert await program.ask() == host.address("wlan0", version)
    program.close()


def test_the_rest_of_a_dead_daemon_is_undone(host):
    async def killed():
        steering = await rescuing(host)
        early(steering)
        with dead(host, "wlan0"):
            program = Program(host, 4)
            key = program.key()
            assert steering.rescues.rescue(key, "lte0")
            await program.took_s()
            assert members(host) == 1
        # As after kill -9: nobody undoes anything, the kernel closes the files.
        steering.rescues.close()
        steering._journal.close()
        steering._kernel.close()
        program.close()

    before = host.state()
    host.run(killed)
    assert host.state() != before
    with host.client.entered():
        done = restore(host.directory).done
        assert host.state() == before
        assert any("CEDOS_NAT" in line for line in done)
        assert restore(host.directory) == Undone()


@rescued(unchanged=True)
async def test_many_at_once(host, steering):
    early(steering)
    with dead(host, "wlan0"):
        programs = [Program(host, version) for version in (4, 6) for _ in range(60)]
        keys = [program.key() for program in programs]
        assert all(steering.rescues.rescue(key, "lte0") for key in keys)
        # The kernel repeats a first packet after 1, 3 and 7 s.
        for program in programs:
            await program.took_s(10)
        for program, key in zip(programs, keys, strict=True):
            assert await program.ask() == host.address("lte0", key.local.version)
        assert members(host) == 120
        for program, key in zip(programs, keys, strict=True):
            program.close()
            steering.rescues.remove(key)
        assert members(host) == 0


@rescued(dry_run=True, unchanged=True)
async def test_a_dry_run_says_it_and_does_nothing(host, steering):
    with dead(host, "wlan0"):
        program = Program(host, 4)
        key = program.key()
        assert steering.rescues.rescue(key, "lte0")
        assert any("translate" in printed for printed in steering.planned)
        assert members(host) == 0
        program.task.cancel()
        program.close()
