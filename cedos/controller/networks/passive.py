"""Derive round trips and losses of networks from samples of their living flows. Pure.

Of their rates tells `delivery`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cedos.controller.events import FlowSample
from cedos.model import FlowKey, Network

# After fewer bytes, the receiver's round trip may be that of the interval before.
_BULK_BYTES = 15_000


@dataclass(slots=True)
class PassiveSample:
    """Fresh round-trip times, whether bytes moved, how many of the segments were sent a second time."""

    rtts_s: list[float] = field(default_factory=list)
    carried: bool = False
    segments: int = 0
    segments_again: int = 0


class PassiveWatch:
    def __init__(self) -> None:
        self._before: dict[FlowKey, FlowSample] = {}

    def observe(
        self, samples: Iterable[FlowSample], networks: Iterable[Network]
    ) -> Mapping[str, PassiveSample]:
        """Return what flows show of each network that has their local addresses, by its name."""
        owner = {address.ip: n.name for n in networks for address in n.addresses}
        before, self._before = self._before, {}
        found: dict[str, PassiveSample] = {}
        for sample in samples:
            self._before[sample.key] = sample
            name = owner.get(sample.key.local)
            if name is None:
                continue
            glimpse = found.setdefault(name, PassiveSample())
            old = before.get(sample.key)
            glimpse.carried |= old is None or (old.bytes_down, old.bytes_up) != (
                sample.bytes_down,
                sample.bytes_up,
            )
            if old is not None and old.bytes_down <= sample.bytes_down:
                _compare(glimpse, old, sample)
        return found


def _compare(glimpse: PassiveSample, old: FlowSample, new: FlowSample) -> None:
    down, up = new.bytes_down - old.bytes_down, new.bytes_up - old.bytes_up
    # The smoothed estimate moves when something sent is acknowledged, and stands still on a pure
    # download; the receiver's own moves with the data.
    if new.rtt_s is not None and up > 0:
        glimpse.rtts_s.append(new.rtt_s)
    elif new.receive_rtt_s is not None and down >= _BULK_BYTES:
        glimpse.rtts_s.append(new.receive_rtt_s)
    glimpse.segments += max(new.segments - old.segments, 0)
    glimpse.segments_again += max(new.retransmits - old.retransmits, 0)
