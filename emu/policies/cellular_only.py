"""Everything over the cellular network."""

from emu.policies.base import Stage
from emu.testbed.access import LTE


class CellularOnly:
    name = "cellular-only"
    title = "LTE alone"

    def start(self, stage: Stage) -> None:
        stage.laptop.prefer(LTE)

    def stop(self) -> None:
        """Do nothing: the laptop lives for one run."""


policy = CellularOnly
