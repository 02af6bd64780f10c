"""The kernel's MPTCP in its handover mode: the cellular network is a backup (Delphi, section 9.3)."""

from cedos.model import NetworkKind
from emu.policies.base import Fixed, Stage
from emu.testbed.access import ADDRESSES, INTERFACES


class MptcpHandover(Fixed):
    name = "mptcp-handover"

    def start(self, stage: Stage) -> None:
        laptop = stage.laptop
        for namespace in (laptop.client, laptop.server, laptop.core):
            if namespace is not None:
                namespace.ip("mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "0")
        cellular = NetworkKind.CELLULAR
        laptop.client.ip(
            *("mptcp", "endpoint", "add", ADDRESSES[cellular], "dev", INTERFACES[cellular]),
            *("subflow", "backup"),
        )


policy = MptcpHandover
