"""What the living flows tell of their networks, from one sample of them to the next. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cedos.model import FlowKey, Indicator, Network
from cedos.monitor.events import FlowSample

# A flow that received this much more, and was still receiving at both ends of the interval, is taken
# to have used what the network gave.
_BULK_BYTES = 15_000
_FRESH_S = 0.1


@dataclass(slots=True)
class Glimpse:
    """What the flows over one network say of the time since the last sample.

    `rtts_s` are fresh round-trip times, `busy` whether a download saturates the network. `down_bps`
    and `up_bps` are the delivery rates of the flows that the network, and not a program, held back,
    0 without one. `segments_again` of the `segments` were sent a second time.
    """

    rtts_s: list[float] = field(default_factory=list)
    busy: bool = False
    down_bps: float = 0.0
    up_bps: float = 0.0
    segments: int = 0
    segments_again: int = 0

    def rates(self, at_s: float) -> dict[str, Indicator]:
        """`delivery_down_bps` and `delivery_up_bps`, where there was something to measure."""
        rates = {"delivery_down_bps": self.down_bps, "delivery_up_bps": self.up_bps}
        return {name: Indicator(rate, at_s) for name, rate in rates.items() if rate > 0}


class FlowWatch:
    """Compares the flows' samples with those before."""

    def __init__(self) -> None:
        self._before: dict[FlowKey, FlowSample] = {}

    def observe(
        self, samples: Iterable[FlowSample], networks: Iterable[Network]
    ) -> Mapping[str, Glimpse]:
        """What the samples say of each network that carries flows; by the network's name.

        A flow belongs to the network that has its local address.
        """
        owner = {address.ip: n.name for n in networks for address in n.addresses}
        before, self._before = self._before, {}
        found: dict[str, Glimpse] = {}
        for sample in samples:
            self._before[sample.key] = sample
            name = owner.get(sample.key.local)
            if name is None:
                continue
            glimpse = found.setdefault(name, Glimpse())
            old = before.get(sample.key)
            if old is not None and old.bytes_down <= sample.bytes_down:
                _compare(glimpse, old, sample)
        return found


def _compare(glimpse: Glimpse, old: FlowSample, new: FlowSample) -> None:
    down, up = new.bytes_down - old.bytes_down, new.bytes_up - old.bytes_up
    bulk = down >= _BULK_BYTES
    # The smoothed estimate moves when something sent is acknowledged, and stands still on a pure
    # download; the receiver's own moves with the data.
    if new.rtt_s is not None and up > 0:
        glimpse.rtts_s.append(new.rtt_s)
    elif new.receive_rtt_s is not None and bulk:
        glimpse.rtts_s.append(new.receive_rtt_s)
    glimpse.segments += max(new.segments - old.segments, 0)
    glimpse.segments_again += max(new.retransmits - old.retransmits, 0)
    elapsed_s = new.at_s - old.at_s
    if bulk and max(new.idle_down_s, old.idle_down_s) <= _FRESH_S:
        glimpse.busy = True
        glimpse.down_bps += 8.0 * down / elapsed_s if elapsed_s > 0 else 0.0
    if up >= _BULK_BYTES and old.unacknowledged and new.unacknowledged:
        glimpse.up_bps += 8.0 * up / elapsed_s if elapsed_s > 0 else 0.0
