"""What probes have cost so far, by network and kind (Delphi, Table 3)."""

from collections.abc import Iterator
from dataclasses import dataclass

from cedos.monitor.probing.result import ProbeKind, ProbeResult


@dataclass(slots=True)
class ProbeTotal:
    probes: int = 0
    failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    energy_j: float = 0.0

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down


class ProbeCosts:
    def __init__(self) -> None:
        self._totals: dict[tuple[str, ProbeKind], ProbeTotal] = {}

    def add(self, result: ProbeResult) -> None:
        total = self._totals.setdefault((result.network, result.kind), ProbeTotal())
        total.probes += 1
        total.failed += bool(result.problem)
        total.bytes_up += result.spent.bytes_up
        total.bytes_down += result.spent.bytes_down
        total.seconds += result.spent.seconds
        total.energy_j += result.energy_j or 0.0

    def __iter__(self) -> Iterator[tuple[str, ProbeKind, ProbeTotal]]:
        for (network, kind), total in self._totals.items():
            yield network, kind, total

    def bytes(self, network: str) -> int:
        return sum(total.bytes for name, _, total in self if name == network)
