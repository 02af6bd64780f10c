"""Everything over the cellular network."""

from emu.policies.base import Stage
from emu.testbed.access import LTE


class CellularOnly:
    """The default route over the cellular network gets the better metric."""

    name = "cellular-only"

    def start(self, stage: Stage) -> None:
        """Prefers the cellular default route."""
        stage.laptop.prefer(LTE)

    def stop(self) -> None:
        """Nothing to undo: the laptop lives for one run."""


policy = CellularOnly
