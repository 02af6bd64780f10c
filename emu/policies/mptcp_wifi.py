"""The kernel's own MPTCP with Wi-Fi as the primary network."""

from emu.policies.base import Stage
from emu.testbed.kernel_mptcp import use_kernel_path_manager


class MptcpWifi:
    """Connections start over Wi-Fi; those that speak MPTCP also use the cellular network."""

    name = "mptcp-wifi"

    def start(self, stage: Stage) -> None:
        """Adds the path manager's endpoints; Wi-Fi already has the better metric."""
        use_kernel_path_manager(stage.laptop)

    def stop(self) -> None:
        """Nothing to undo: the laptop lives for one run."""


policy = MptcpWifi
