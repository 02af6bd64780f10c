"""How much of the host's TCP memory was taken while an emulation ran.

All namespaces share it, and buffers of anything on the machine count. Beyond the first number of
`tcp_mem` the kernel may hold windows small and drop what has come, also of the emulated hosts.
"""

from pathlib import Path

from emu.testbed.netns import Namespace
from emu.testbed.programs.watcher import Watcher

_EVERY_S = 0.5
_LIMITS = Path("/proc/sys/net/ipv4/tcp_mem")
_TAKEN = Path("/proc/thread-self/net/sockstat")


class TcpMemory(Watcher):
    """Watches while the block runs: `most_pages` were taken; up to `free_pages` nobody is held back."""

    def __init__(self, client: Namespace) -> None:
        super().__init__(client, "watching the host's TCP memory")
        self.most_pages = 0
        self.free_pages = int(_LIMITS.read_text().split()[0])

    def _watch(self) -> None:
        self._ready.set()
        while True:
            self.most_pages = max(self.most_pages, taken_pages(_TAKEN.read_text()))
            if self._stop.wait(_EVERY_S):
                return


def taken_pages(sockstat: str) -> int:
    """The pages that TCP has taken, of all namespaces (it is counted once for the host)."""
    for line in sockstat.splitlines():
        protocol, *fields = line.split()
        if protocol == "TCP:" and "mem" in fields:
            return int(fields[fields.index("mem") + 1])
    return 0
