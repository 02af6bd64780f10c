"""Bars networks: nothing of a program's goes over them, as the budget that they count to is spent.

The packet filter refuses (`filter_rules`). A living MPTCP connection moves to another network where
it can; one that cannot ends, as the kernel keeps one that has lost all its subflows for a second only.
The record of the packet filter stands for the chains: they are found by their names.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cedos.errors import SteeringError
from cedos.host.steer.journal_records import MPTCP_CLOSE_TIMEOUT, change_sysctl
from cedos.host.steer.kernel.filter_rules import INTERFACE
from cedos.host.steer.kernel.interface import SteeringKernel, refusals
from cedos.host.steer.mptcp.connections import MptcpConnections
from cedos.host.steer.repairs import HeldSysctls, PacketFilter
from cedos.logs import get_logger
from cedos.model import Network
from cedos.selector.decision.liveness import usable

_log = get_logger(__name__)

# The seconds for which the kernel keeps an MPTCP connection without subflows (by itself 60). Its
# program learns nothing meanwhile. A second is enough for a subflow that is being joined.
_KEEPS_S: Final = "1"


class Barring:
    """Which networks are barred. The caller keeps `networks` (by name) up to date."""

    def __init__(
        self,
        kernel: SteeringKernel,
        packet_filter: PacketFilter,
        connections: MptcpConnections,
        networks: Mapping[str, Network],
        sysctls: HeldSysctls,
    ) -> None:
        self._kernel = kernel
        self._filter = packet_filter
        self._connections = connections
        self._networks = networks
        self._sysctls = sysctls
        self._names: frozenset[str] = frozenset()
        self._interfaces: dict[str, str] = {}
        self._kept: str | None = None
        self._stands = False
        self._settled = False
        self._open = True

    @property
    def interfaces(self) -> Sequence[str]:
        return sorted(filter(INTERFACE.fullmatch, self._interfaces.values()))

    def usable(self) -> Sequence[Network]:
        """Return the networks; what is barred counts as down."""
        return usable(list(self._networks.values()), self._names)

    async def bar(self, names: Collection[str]) -> None:
        """Bar these networks and no others, at once; again repairs what others took out.

        Those that are not there are barred when they come. SteeringError: closed, or refused, or all but
        some are barred, as their interfaces have names that the packet filter does not take.
        """
        self._must_be_open()
        self._names = frozenset(names)
        with refusals(f"bar {', '.join(sorted(names)) or 'no network'}"):
            if self._names or self._stands:
                self._follow()
                self._stands = True
                await self._filter.bar(self.interfaces, alone=self._settled)
                if not self._open:  # meanwhile everything is undone
                    return
                self._stands = bool(self._names)
            self._keep(briefly=bool(self._names))
            self._connections.networks_changed(self.usable())
        if odd := set(self._interfaces.values()).difference(self.interfaces):
            raise SteeringError(
                f"the packet filter takes no interface called {', '.join(map(ascii, sorted(odd)))};"
                " a name of letters and digits would be right"
            )

    async def take_down_unneeded(self) -> None:
        """Take down what an earlier daemon left of the second wall, where nothing is barred by now.

        Until then it stands: not all that is spent may be known.
        """
        self._settled = True
        with refusals("open networks that an earlier daemon has barred"):
            await self._filter.do(lambda: self._kernel.remove_wall(self.interfaces))

    async def networks_changed(self) -> None:
        """Follow the networks: one that comes back under another interface is barred there.

        A refusal is no reason not to follow them otherwise: the caller sees what gets through.
        """
        before = self.interfaces
        self._follow()
        if self.interfaces == before:
            self._filter.raise_wall()  # one that comes back has none
        else:
            try:
                await self._filter.bar(self.interfaces, alone=self._settled)
            except OSError as error:
                _log.warning("a network cannot be barred", why=error.strerror)

    def close(self) -> None:
        """Bar nothing any more; what stands is the journal's."""
        self._open = False

    def _must_be_open(self) -> None:
        if not self._open:
            raise SteeringError("steering has been closed")

    def _follow(self) -> None:
        """Keep interfaces that are gone barred: the bar is there before their next address."""
        self._interfaces = {
            name: self._networks[name].interface if name in self._networks else known
            for name in self._names
            if (known := self._interfaces.get(name, "")) or name in self._networks
        }

    def _keep(self, *, briefly: bool) -> None:
        """Set how long connections without subflows live: a second, or this host's own time."""
        now = self._kernel.read_sysctl(MPTCP_CLOSE_TIMEOUT)
        if briefly and self._kept is None and now is not None and now != _KEEPS_S:
            if change_sysctl(self._kernel, self._sysctls.note, MPTCP_CLOSE_TIMEOUT, _KEEPS_S):
                self._kept = now
        elif not briefly and self._kept is not None:
            if now == _KEEPS_S:  # and no other program has set it since
                self._kernel.write_sysctl(MPTCP_CLOSE_TIMEOUT, self._kept)
            self._sysctls.release(MPTCP_CLOSE_TIMEOUT)
            self._kept = None
