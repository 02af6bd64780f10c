"""What prefetching has to know of the world: the networks, and what is left to spend."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cedos.model import NetworkKind
from cedos.prefetch.news import News
from cedos.selector.prefetch.path import PrefetchPrices, RadioModel


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """One network now; what is not known is None.

    Attributes:
        name: what budgets know it by.
        interface: where to send.
        kind: decides what it is taken for before anything is known.
        up: whether packets can leave.
        metered: whether its bytes are counted by somebody.
        rate_bps: what it carried of late, towards the host.
        rtt_s: its round-trip time.
        radio: its power model.
        shares: in which states its radio is found, on average.
        idle_s: seconds since anybody on this host used its radio.
    """

    name: str
    interface: str
    kind: NetworkKind
    up: bool
    metered: bool
    radio: RadioModel
    rate_bps: float | None = None
    rtt_s: float | None = None
    shares: Mapping[str, float] | None = None
    idle_s: float | None = None


class Unbudgeted:
    """Prices where nothing is budgeted: everything may be spent."""

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return 0.0

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return 0.0


_UNBUDGETED = Unbudgeted()


@dataclass(frozen=True, slots=True)
class View:
    networks: Sequence[NetworkFacts]
    prices: PrefetchPrices = _UNBUDGETED


class Surroundings(Protocol):
    async def view(self) -> View:
        """The facts now; a CedosError where they cannot be had: nothing is prefetched then."""
        ...


@runtime_checkable
class NewsListener(Protocol):
    """Surroundings that want to know what is prefetched, and what is still open."""

    def report(self, news: News) -> None:
        """What has changed since the last view; called after each, in the loop."""
        ...
