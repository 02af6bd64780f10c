"""cedos that chooses the network of each new connection and never moves or rescues one.

Compared with `cedos` it shows the worth of second paths, of moves and of rescued first packets.
"""

from emu.policies.base import Stage
from emu.policies.cedos import Cedos, with_settings

_KEPT = {"mptcp": False, "rescue": False}


class CedosStart(Cedos):
    name = "cedos-start"

    def start(self, stage: Stage) -> None:
        super().start(with_settings(stage, "steering", _KEPT))


policy = CedosStart
