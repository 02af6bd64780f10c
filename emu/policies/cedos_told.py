"""cedos told each network's rate of the second before: an upper bound that no real host reaches.

A place's series of indicators hold, for each second that has passed, the rate that the network would
have carried. A real host knows that rate only of a network that something saturates.
"""

from typing import Any

from cedos.model import NetworkKind
from emu.policies.base import Stage
from emu.policies.cedos import Cedos, with_settings
from emu.testbed.access import INTERFACES


class CedosTold(Cedos):
    name = "cedos-told"
    title = "cedos, told the rates"

    def start(self, stage: Stage) -> None:
        told: dict[str, Any] = {"started_at_s": stage.replay_at_s, "series": {}, "offset_s": {}}
        for kind, network in stage.place.networks.items():
            if network.series_path is not None:
                interface = INTERFACES[NetworkKind(kind)]
                told["series"][interface] = str(network.series_path.absolute())
                told["offset_s"][interface] = stage.offset_s % network.down.period_s
        super().start(with_settings(stage, "providers", told))


policy = CedosTold
