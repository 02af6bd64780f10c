"""cedos with nothing but its own eyes: no series of the place's indicators, as on a wired laptop.

A place's series tell, of each second that is over, what the network would have carried. A real host
knows that only of a network that something saturates; here pings, flows and counters are all there is.
"""

from collections.abc import Mapping
from dataclasses import replace

from emu.policies.base import Stage
from emu.policies.cedos import Cedos

_BLIND: Mapping[str, object] = {"series": {}, "offset_s": {}}


class CedosBlind(Cedos):
    """The daemon without the place's indicators; it takes the same settings as `cedos`."""

    name = "cedos-blind"

    def start(self, stage: Stage) -> None:
        """Returns when the daemon answers that it is ready."""
        given = stage.settings.get("providers")
        providers = {**(given if isinstance(given, dict) else {}), **_BLIND}
        super().start(replace(stage, settings={**stage.settings, "providers": providers}))


policy = CedosBlind
