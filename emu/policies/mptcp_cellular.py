"""The kernel's own MPTCP with the cellular network as the primary one."""

from cedos.model import NetworkKind
from emu.policies.base import Fixed, Stage
from emu.testbed.access import LTE
from emu.testbed.phones import use_kernel_path_manager


class MptcpCellular(Fixed):
    name = "mptcp-cellular"
    title = "kernel MPTCP, cellular first"
    networks = (NetworkKind.CELLULAR, NetworkKind.WIFI)

    def start(self, stage: Stage) -> None:
        use_kernel_path_manager(stage.laptop)
        stage.laptop.prefer(LTE)


policy = MptcpCellular
