"""The kernel's own MPTCP with the cellular network as the primary one."""

from emu.policies.base import Stage
from emu.testbed.access import LTE
from emu.testbed.kernel_mptcp import use_kernel_path_manager


class MptcpCellular:
    """Connections start over the cellular network; those that speak MPTCP also use Wi-Fi."""

    name = "mptcp-cellular"

    def start(self, stage: Stage) -> None:
        """Adds the path manager's endpoints and prefers the cellular default route."""
        use_kernel_path_manager(stage.laptop)
        stage.laptop.prefer(LTE)

    def stop(self) -> None:
        """Nothing to undo: the laptop lives for one run."""


policy = MptcpCellular
