"""Whether a living connection is worth a spare subflow that would wake its network's radio. Pure."""

from collections.abc import Iterable, Mapping

from cedos.model import Direction, Network
from cedos.selector.energy.power_model import PowerModel
from cedos.selector.objective import Objective, Outcome

_SAVES_S = 0.005
"""A move that finds a subflow ready saves a round trip and the radio's start, 0.1 s or so; of the
connections that live long enough to get a spare about one in twenty is ever moved."""
_LASTS_S = 1.0
_CARRIES_BYTES = 1e6


def not_worth_a_spare(
    networks: Iterable[Network],
    objective: Objective,
    power: PowerModel,
    idle_s: Mapping[str, float],
) -> frozenset[str]:
    """The networks over which a spare costs more joules than it is expected to save time.

    `idle_s`: network -> seconds since it was last used; absent: long ago.
    """
    found = set()
    for network in networks:
        radio = power.radios[network.kind]
        tail_j = radio.added_tail_j(idle_s.get(network.name))
        if not tail_j:
            continue
        energy_j = radio.active_w(Direction.DOWN) * _LASTS_S
        without = Outcome(_LASTS_S, energy_j, 0.0, _CARRIES_BYTES)
        ready = without._replace(time_s=_LASTS_S - _SAVES_S, energy_j=energy_j + tail_j)
        if objective.cost(ready) >= objective.cost(without):
            found.add(network.name)
    return frozenset(found)
