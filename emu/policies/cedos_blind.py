"""cedos with nothing but its own eyes: no series of the place's indicators, as on a wired laptop.

A place's series tell, of each second that is over, what the network would have carried. A real host
knows that only of a network that something saturates; here pings, flows and counters are all there is.
"""

from collections.abc import Mapping

from emu.policies.base import Stage
from emu.policies.cedos import Cedos, with_settings

_BLIND: Mapping[str, object] = {"series": {}, "offset_s": {}}


class CedosBlind(Cedos):
    name = "cedos-blind"

    def start(self, stage: Stage) -> None:
        super().start(with_settings(stage, "providers", _BLIND))


policy = CedosBlind
