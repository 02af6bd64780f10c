"""cedos that chooses where a transfer begins, and leaves it there: nothing is moved, nothing rescued.

What it shows is what the other half of the controller is worth: MPTCP's paths, living connections that
move, first packets that are led over another network.
"""

from emu.policies.base import Stage
from emu.policies.cedos import Cedos, with_settings

_KEPT = {"mptcp": False, "rescue": False}


class CedosStart(Cedos):
    name = "cedos-start"

    def start(self, stage: Stage) -> None:
        super().start(with_settings(stage, "steering", _KEPT))


policy = CedosStart
