"""Joules of a whole run: the radios' power while the interfaces were active, and their tails.

The model is the selector's (Delphi, Table 4); here it is applied to what the interfaces really
carried, so that the tails of many small transfers are shared as they are on a phone.
"""

from collections.abc import Sequence
from itertools import pairwise

from cedos.model import Direction, NetworkKind
from cedos.selector.energy import DELPHI, PowerModel
from emu.testbed.counters import Sample


def run_energy_j(samples: Sequence[Sample], kind: NetworkKind, power: PowerModel = DELPHI) -> float:
    """Energy of one interface's samples, in time order.

    Each interval between samples in which bytes moved costs the send or the receive power, whichever
    way carried more; a pause costs as much of the tail as fits into it, in proportion. A probe wakes
    the radio like any other packet.
    """
    radio = power.radios[kind]
    tail_w = radio.tail_j / radio.tail_s if radio.tail_s else 0.0
    energy_j = 0.0
    tail_left_s = 0.0
    for before, after in pairwise(samples):
        length_s = after.at_s - before.at_s
        received = after.received_bytes - before.received_bytes
        sent = after.sent_bytes - before.sent_bytes
        if received + sent > 0:
            energy_j += length_s * radio.active_w(
                Direction.UP if sent > received else Direction.DOWN
            )
            tail_left_s = radio.tail_s
        else:
            spent_s = min(length_s, tail_left_s)
            energy_j += spent_s * tail_w
            tail_left_s -= spent_s
    return energy_j + tail_left_s * tail_w
