"""An interface's byte counters by rtnetlink, which works in any namespace (/sys may be another's)."""

from dataclasses import dataclass

from pyroute2.iproute.linux import AsyncIPRoute
from pyroute2.netlink import nlmsg

from cedos.kernel.netlink_client import Client

# A mask of the statistics wanted: bit 0 stands for IFLA_STATS_LINK_64.
_LINK_64 = 1


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes since the interface was made."""

    received_bytes: int
    sent_bytes: int


def parse(message: nlmsg) -> Counters | None:
    """The counters of an RTM_NEWSTATS, None where it has none."""
    counted = message.get_attr("IFLA_STATS_LINK_64")
    return None if counted is None else Counters(counted["rx_bytes"], counted["tx_bytes"])


class InterfaceCounters:
    """The counters of the network namespace that the calling thread is in."""

    def __init__(self) -> None:
        self._client = Client(AsyncIPRoute)

    async def read(self, index: int) -> Counters | None:
        """The counters of interface `index`, None where it is gone or the kernel does not tell."""
        try:
            answers = await self._client.ask(
                lambda rtnl: rtnl.stats("get", ifindex=index, filter_mask=_LINK_64), 1.0
            )
        except (OSError, TimeoutError):
            return None
        return next((found for one in answers if (found := parse(one)) is not None), None)

    def close(self) -> None:
        """Closes the socket."""
        self._client.close()
