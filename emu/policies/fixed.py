"""Fixed policies: each sets the laptop up once, and never changes its choice."""

from cedos.model import NetworkKind
from emu.policies import Stage
from emu.testbed.access import ADDRESSES, INTERFACES, LTE
from emu.testbed.phones import use_kernel_path_manager


class Fixed:
    """A policy that at most sets the laptop up, which lives for one run."""

    def start(self, stage: Stage) -> None:
        """Do nothing: the emulated laptop comes with routes that prefer Wi-Fi."""

    def stop(self) -> None:
        """Do nothing: there is nothing to undo."""


class WifiFirst(Fixed):
    """Wi-Fi while it is associated, whatever it delivers: what laptops do today."""

    name = "wifi-first"
    title = "Linux as it is"
    networks = (NetworkKind.WIFI,)


class CellularOnly(Fixed):
    """Everything over the cellular network."""

    name = "cellular-only"
    title = "LTE alone"
    networks = (NetworkKind.CELLULAR,)

    def start(self, stage: Stage) -> None:
        stage.laptop.prefer(LTE)


class MptcpWifi(Fixed):
    """The kernel's own MPTCP with Wi-Fi as the primary network."""

    name = "mptcp-wifi"
    title = "kernel MPTCP, Wi-Fi first"
    networks = (NetworkKind.WIFI, NetworkKind.CELLULAR)

    def start(self, stage: Stage) -> None:
        use_kernel_path_manager(stage.laptop)


class MptcpCellular(Fixed):
    """The kernel's own MPTCP with the cellular network as the primary one."""

    name = "mptcp-cellular"
    title = "kernel MPTCP, cellular first"
    networks = (NetworkKind.CELLULAR, NetworkKind.WIFI)

    def start(self, stage: Stage) -> None:
        use_kernel_path_manager(stage.laptop)
        stage.laptop.prefer(LTE)


class MptcpHandover(Fixed):
    """The kernel's MPTCP in its handover mode: the cellular network is a backup (Delphi, section 9.3)."""

    name = "mptcp-handover"

    def start(self, stage: Stage) -> None:
        laptop = stage.laptop
        for namespace in (laptop.client, laptop.server):
            namespace.ip("mptcp", "limits", "set", "subflows", "4", "add_addr_accepted", "0")
        cellular = NetworkKind.CELLULAR
        laptop.client.ip(
            *("mptcp", "endpoint", "add", ADDRESSES[cellular], "dev", INTERFACES[cellular]),
            *("subflow", "backup"),
        )
