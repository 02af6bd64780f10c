"""The kernel's own MPTCP with Wi-Fi as the primary network."""

from cedos.model import NetworkKind
from emu.policies.base import Fixed, Stage
from emu.testbed.phones import use_kernel_path_manager


class MptcpWifi(Fixed):
    name = "mptcp-wifi"
    title = "kernel MPTCP, Wi-Fi first"
    networks = (NetworkKind.WIFI, NetworkKind.CELLULAR)

    def start(self, stage: Stage) -> None:
        use_kernel_path_manager(stage.laptop)


policy = MptcpWifi
