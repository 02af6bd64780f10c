"""Everything over the cellular network."""

from cedos.model import NetworkKind
from emu.policies.base import Fixed, Stage
from emu.testbed.access import LTE


class CellularOnly(Fixed):
    name = "cellular-only"
    title = "LTE alone"
    networks = (NetworkKind.CELLULAR,)

    def start(self, stage: Stage) -> None:
        stage.laptop.prefer(LTE)


policy = CellularOnly
