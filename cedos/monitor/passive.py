"""What the living flows tell of their networks, from one sample of them to the next. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cedos.model import FlowKey, Network
from cedos.monitor.events import FlowSample

# A flow that received this much more, and was still receiving at both ends of the interval, is taken
# to have used what the network gave.
_BULK_BYTES = 15_000
_FRESH_S = 0.1


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What the flows over one network say: fresh round-trip times, and whether they saturate it."""

    rtts_s: tuple[float, ...]
    busy: bool


class FlowWatch:
    """Compares the flows' samples with those before."""

    def __init__(self) -> None:
        self._before: dict[FlowKey, FlowSample] = {}

    def observe(
        self, samples: Iterable[FlowSample], networks: Iterable[Network]
    ) -> Mapping[str, Glimpse]:
        """What the samples say of each network that carries flows; by the network's name.

        A flow belongs to the network that has its local address. Its smoothed round-trip time
        counts only if something it sent was acknowledged since the last sample: on a pure download
        it stands still.
        """
        owner = {address.ip: n.name for n in networks for address in n.addresses}
        before, self._before = self._before, {}
        rtts: dict[str, list[float]] = {}
        busy: set[str] = set()
        for sample in samples:
            self._before[sample.key] = sample
            name = owner.get(sample.key.local)
            if name is None:
                continue
            found = rtts.setdefault(name, [])
            old = before.get(sample.key)
            if old is None:
                continue
            if sample.rtt_s is not None and sample.bytes_up > old.bytes_up:
                found.append(sample.rtt_s)
            if (
                sample.bytes_down - old.bytes_down >= _BULK_BYTES
                and max(sample.idle_down_s, old.idle_down_s) <= _FRESH_S
            ):
                busy.add(name)
        return {name: Glimpse(tuple(found), name in busy) for name, found in rtts.items()}
