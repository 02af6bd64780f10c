"""Daemon, proxy or gateway is killed with -9 while curl and ssh transfer: redirected, and by SOCKS."""

import os
import select
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from cedos.model import NetworkKind
from emu.bench.crash import parts
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import RescueDaemon
from emu.testbed.programs.gateway import PROXY_PORT, Gatewayed
from emu.testbed.programs.servers import Servers
from emu.workloads.downloads import as_user
from emu.workloads.tools import ShellServer

pytestmark = pytest.mark.usefixtures("registry")

ACCESSES = (
    Access(NetworkKind.WIFI, Trace.constant(8e6), Trace.constant(8e6), 0.020),
    Access(NetworkKind.CELLULAR, Trace.constant(8e6), Trace.constant(8e6), 0.060),
)
USER = 65_534
SIZE, SMALL = 3_000_000, 10_000
RESET = (56, 18, 255)
"""curl: its connection was reset, or ended too early; ssh: it broke."""


@dataclass
class Host:
    """With all that runs on it; `before` is its networking before anything of ours did."""

    laptop: Laptop
    daemon: RescueDaemon
    gatewayed: Gatewayed
    shell: ShellServer
    before: dict[str, str]
    ends: ExitStack
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start(self, *words, user=0):
        process = self.laptop.client.popen(
            *as_user(user), *words,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def curl(self, size, *options, user=0):
        words = ("curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", "%{size_download}", *options)
        return self.start(*words, f"http://{SERVER}/bytes/{size}", user=user)

    def transfers(self):
        """Under way, in the middle of what they carry."""
        options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        found = {
            "redirected": self.curl(SIZE, user=USER),
            "socks": self.curl(SIZE, "-x", f"socks5h://127.0.0.1:{PROXY_PORT}"),
            "ssh": self.start(
                *("ssh", "-F", "none", *(word for each in options for word in ("-o", each))),
                *("-i", str(self.shell.key), f"root@{SERVER}", "exec cat"),
                user=USER,
            ),
        }
        assert typed(found["ssh"], b"before\n")
        time.sleep(1.0)
        for name, process in found.items():
            assert process.poll() is None, name
        return found

    def small_works(self, within_s):
        """A new connection of a redirected program."""
        began_s = time.monotonic()
        process = self.curl(SMALL, user=USER)
        said, complaint = process.communicate(timeout=30)
        assert said == str(SMALL).encode(), complaint
        assert time.monotonic() - began_s < within_s

    def close(self):
        """Ends all of it, and sees that nothing is left."""
        for process in self.started:
            process.kill()
            process.communicate()
        self.gatewayed.close()
        self.ends.close()
        after = parts(self.laptop.client)
        for name, was in self.before.items():
            assert after[name] == was, name


def typed(ssh, line):
    ssh.stdin.write(line)
    ssh.stdin.flush()
    return ssh.stdout.readline() == line


@pytest.fixture
def host():
    with (
        Laptop(*ACCESSES, source_rules=False) as laptop,
        Servers(laptop, mptcp=False) as servers,
        ShellServer(laptop, USER) as shell,
        ExitStack() as ends,
    ):
        for size in (SIZE, SMALL):
            servers.make_size(size)
        before = parts(laptop.client)
        daemon = RescueDaemon(laptop)
        daemon.start()
        ends.callback(daemon.stop)
        variables = {"CEDOS_RUNTIME_DIR": daemon.environment["CEDOS_RUNTIME_DIR"]}
        resolver = laptop.directory / "gateway-resolv.conf"
        resolver.write_text(f"nameserver {SERVER}\n")
        options = ("--redirect", str(USER), "--fail", "open", "--detour", "always")
        gatewayed = ends.enter_context(
            Gatewayed(laptop, laptop.directory, variables, options, resolver=resolver)
        )
        daemon.until_both_live()
        yield Host(laptop, daemon, gatewayed, shell, before, ends)


def killed(pid):
    """Returns once its last thread has ended: until then its sockets take connections.

    The state in /proc is the first thread's alone, which may be a zombie before the others end.
    """
    handle = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        ended, _, _ = select.select([handle], [], [], 10)
        assert ended
    finally:
        os.close(handle)


def test_the_daemons_death_breaks_nothing(host):
    found = host.transfers()
    host.daemon.kill()
    assert typed(found["ssh"], b"after\n")
    for name in ("redirected", "socks"):
        said, complaint = found[name].communicate(timeout=60)
        assert said == str(SIZE).encode(), (name, complaint)
    assert typed(found["ssh"], b"still there\n")
    host.small_works(3.0)
    assert host.daemon.cedos("restore").returncode == 0
    host.close()


def test_the_proxys_death_resets_what_it_carried_and_the_rest_goes_direct(host):
    found = host.transfers()
    _gateway, forward = host.gatewayed.pids
    killed(forward)
    host.small_works(2.0)
    for name, process in found.items():
        assert process.wait(5) in RESET, name
    host.close()


def test_the_gateways_death_resets_what_it_carried_and_the_rest_goes_direct(host):
    found = host.transfers()
    gateway, _forward = host.gatewayed.pids
    os.kill(gateway, signal.SIGKILL)
    host.small_works(4.0)
    deadline_s = time.monotonic() + 25
    while any(process.poll() is None for process in found.values()):
        assert time.monotonic() < deadline_s
        host.small_works(2.0)
        time.sleep(0.5)
    for name, process in found.items():
        assert process.wait() in RESET, name
    host.close()
