"""Emulated links: unmodified Mahimahi as nested shells, the outermost one in the provider's namespace.

`mm-delay` is outermost (core and backhaul), then `mm-loss`, then `mm-link` (the radio and its
queues); the innermost shell's namespace is the phone. Three facts shape this file:

- Mahimahi is setuid root, and refuses to be started by root. So an unprivileged user starts it.
- It calls iptables to put each shell behind NAT. The testbed routes the shells instead, so that each
  network has one NAT, at the provider, and not three. So in Mahimahi's private mount namespace, iptables
  is a program that does nothing.
- A shell within a shell needs `ip_forward` in its namespace, which only root may set, from outside. So
  each shell waits for a line on its standard input before it starts the next one. The innermost one
  waits for the end of that input, so that all shells end if their owner dies.
"""

import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from pyroute2 import IPRoute

from cedos.errors import EmulationError
from emu.testbed import netns
from emu.testbed.access import Access
from emu.testbed.netns import Namespace, entered

START_TIMEOUT_S = 15.0
_NOBODY = "65534"
_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"

# Run by root: hide iptables, wait for a line, then run the command ("$@") as an unprivileged user.
_OUTER = f"""set -e
PATH={_PATH}
mount --bind /bin/true "$(readlink -f "$(command -v iptables)")"
echo $$
read -r _ || exit 0
exec setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups env -i PATH={_PATH} "$@"
"""
_NEXT = 'echo $$; read -r _ || exit 0; exec "$@"'
# mm-link starts this command right before the replay begins, so the command prints the time.
_INNERMOST = "echo $$ $(date +%s%N); read -r _; exit 0"


def launch(
    access: Access, isp: Namespace, subnet: str, directory: Path, nice: int = 0
) -> "MahimahiLink":
    """Begin to start a link whose outer end is in `isp`; the caller goes on with `prepare`.

    In `isp`, packets to `subnet` (the client's, as `192.168.43.0/24`) are routed into the link.
    `directory` is for the files of this link alone. A `nice` below 0 keeps it on time on a busy host.
    """
    up, down = directory / "up.trace", directory / "down.trace"
    access.down.write(down)
    if access.up is access.down:
        up = down
    else:
        access.up.write(up)
    shells = _shells(access, up, down)
    command = ["unshare", "--mount", "sh", "-c"]
    command += [_OUTER, "sh", *nested(shells)]
    if nice:
        command = ["nice", "-n", str(nice), *command]
    return MahimahiLink(
        isp.command(*command), [shell[0] for shell in shells], isp.path, subnet, directory
    )


def _shells(access: Access, up: Path, down: Path) -> list[list[str]]:
    shells = []
    # Each direction gets half, rounded down: the shells add about a millisecond of their own.
    delay_ms = int(access.rtt_s * 500 + 1e-6)
    if delay_ms:
        shells.append(["mm-delay", str(delay_ms)])
    if access.loss:
        shells += [["mm-loss", way, f"{access.loss:.6f}"] for way in ("uplink", "downlink")]
    shells.append(
        [
            "mm-link",
            "--uplink-queue=droptail",
            f"--uplink-queue-args=packets={access.queue_up_packets}",
            "--downlink-queue=droptail",
            f"--downlink-queue-args=packets={access.queue_down_packets}",
            str(up),
            str(down),
            "--",
        ]
    )
    return shells


def nested(shells: list[list[str]]) -> list[str]:
    """Return the command line of shells within shells: each prints its pid and waits for a line."""
    command = ["sh", "-c", _INNERMOST]
    for shell in reversed(shells[1:]):
        command = ["sh", "-c", _NEXT, "sh", *shell, *command]
    return [*shells[0], *command]


class MahimahiLink:
    """An emulated link, which starts in three steps, so that several begin together."""

    def __init__(
        self, command: list[str], shells: list[str], isp: Path, subnet: str, directory: Path
    ) -> None:
        self._shells = shells
        self._subnet = subnet
        self._log = directory / "mahimahi.log"
        # The process that waits to become the next shell, and its namespace.
        self._waiting = 0
        self._outer = isp
        self._phone_pid = 0
        self._deadline_s = time.monotonic() + START_TIMEOUT_S
        self._started_at_s = 0.0
        self._text = b""
        with self._log.open("wb") as log:
            # In a session of its own a terminal's Ctrl-C does not reach it, only this program. And the
            # session's id finds all processes of the link.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process that leads all others of this link (its session and process group)."""
        return self._process.pid

    @property
    def phone_pid(self) -> int:
        """A process inside the phone's network namespace, once started."""
        if not self._phone_pid:
            raise EmulationError("the emulated link has not started")
        return self._phone_pid

    @property
    def started_at_s(self) -> float:
        """The monotonic instant at which the replay of the traces began, once started."""
        return self._started_at_s

    def prepare(self) -> None:
        """Do all that comes before the replay. EmulationError: the link died."""
        self._waiting = int(self._line())
        for shell in self._shells[:-1]:
            self._go()
            self._connect(shell, int(self._line()))

    def start(self) -> None:
        """Let the replay begin, without waiting for it."""
        self._go()

    def finish(self) -> None:
        """Wait until the link carries packets. EmulationError: it died."""
        pid, unix_ns = self._line().split()
        self._started_at_s = time.monotonic() - (time.time_ns() - int(unix_ns)) / 1e9
        self._connect(self._shells[-1], int(pid))
        self._phone_pid = int(pid)

    def alive(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raise EmulationError with Mahimahi's own words if the link has ended by itself."""
        if not self.alive() or not Path(f"/proc/{self.phone_pid}").exists():
            raise EmulationError(f"Mahimahi ended: {self._trouble()}")

    def stop(self) -> None:
        """End the link at once, without waiting for it; a second call does nothing."""
        if self._process.returncode is None:
            # The process was not waited for, so its number still belongs to this process group.
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def wait(self) -> None:
        """Wait after `stop` until the leader of its processes has ended."""
        self._process.wait()

    def _go(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
        except BrokenPipeError as error:
            raise EmulationError(f"Mahimahi ended at its start: {self._trouble()}") from error

    def _connect(self, shell: str, pid: int) -> None:
        """Add a route into a shell that has just started, and make its namespace a router."""
        # Mahimahi names a shell's device after the process that made it.
        device = f"{shell.removeprefix('mm-')}-{self._waiting}"
        with entered(self._outer):
            netlink = IPRoute()
        try:
            found = netlink.link_lookup(ifname=device)
            if not found:
                raise EmulationError(f"Mahimahi made no device {device}: {self._trouble()}")
            netlink.route("replace", dst=self._subnet, oif=found[0])
        finally:
            netlink.close()
        self._waiting = pid
        self._outer = Path(f"/proc/{pid}/ns/net")
        try:
            with entered(self._outer):
                netns.write_sysctls(netns.ROUTER_SYSCTLS)
        except FileNotFoundError as error:
            raise EmulationError(f"Mahimahi ended at its start: {self._trouble()}") from error

    def _line(self) -> str:
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        while b"\n" not in self._text:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([out], [], [], left_s)[0]:
                raise EmulationError(
                    f"Mahimahi did not start within {START_TIMEOUT_S:g} s: {self._trouble()}"
                )
            chunk = os.read(out, 4096)
            if not chunk:
                raise EmulationError(f"Mahimahi ended at its start: {self._trouble()}")
            self._text += chunk
        line, _, self._text = self._text.partition(b"\n")
        return line.decode()

    def _trouble(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            # If it is about to end, wait until it has written why.
            self._process.wait(0.5)
        # The first line has the cause; later ones are of outer shells, and say only that the inner one
        # ended.
        line = self._log.read_text(errors="replace").strip().partition("\n")[0]
        return f"{', '.join(self._shells)}: {line or 'it said nothing'}"
