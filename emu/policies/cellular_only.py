"""Everything over the cellular network."""

from cedos.model import NetworkKind
from emu.policies.base import Stage
from emu.testbed.access import LTE


class CellularOnly:
    name = "cellular-only"
    title = "LTE alone"
    networks = (NetworkKind.CELLULAR,)

    def start(self, stage: Stage) -> None:
        stage.laptop.prefer(LTE)

    def stop(self) -> None:
        """Do nothing: the laptop lives for one run."""


policy = CellularOnly
