"""An interface's byte counters, of the daemon's own network namespace (/sys may be another's)."""

from collections.abc import Mapping
from pathlib import Path

from cedos.errors import HostError
from cedos.kernel import rtnetlink
from cedos.kernel.netlink import NETLINK_ROUTE, AsyncRequester
from cedos.kernel.rtnetlink import Counters


class InterfaceCounters:
    """The counters of the network namespace that the calling thread is in at the first reading."""

    def __init__(self) -> None:
        self._requester: AsyncRequester | None = None

    async def read(self, index: int) -> Counters | None:
        """Return the counters of interface `index`, None where it is gone or the kernel does not tell."""
        request = rtnetlink.counters_request(index)
        try:
            if self._requester is None:
                self._requester = AsyncRequester(NETLINK_ROUTE)
            answers = await self._requester.get(rtnetlink.RTM_GETSTATS, request, 1.0)
        except (OSError, TimeoutError, HostError):
            return None
        return next(filter(None, map(rtnetlink.parse_counters, answers)), None)

    def close(self) -> None:
        if self._requester is not None:
            self._requester.close()
            self._requester = None


_DEVICES = Path("/proc/thread-self/net/dev")


def received_bytes() -> Mapping[str, int]:
    """Return the bytes that each interface received, at once; empty where the kernel does not tell."""
    try:
        lines = _DEVICES.read_text().splitlines()[2:]
    except OSError:
        return {}
    named = (line.partition(":")[::2] for line in lines)
    return {name.strip(): int(fields.split()[0]) for name, fields in named}
