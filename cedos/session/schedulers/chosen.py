"""Does what somebody else decided: the selector's strategy for each label (DESIGN, "Words").

`single(n)` keeps to one network, `mptcp(primary=n)` begins with one and uses all, `redundant(n, m)`
sends the same over several, `defer` waits. Where the networks that were chosen are gone, the data goes
where there is a way, unless the strategy is to wait: a choice must never end a flow.
"""

from collections.abc import Mapping, Sequence

from cedos.model import Label, Strategy, StrategyKind
from cedos.session.schedulers.estimates import CHUNK_BYTES, allowed
from cedos.session.scheduling import LABELS, RANK, Backlog, Grant, PathState


class Chosen:
    """Follows strategies.

    Args:
        strategies: what was chosen for each label; labels that are missing go by `usual`.
        usual: for all others.
    """

    name = "chosen"
    copies = True

    def __init__(self, usual: Strategy, strategies: Mapping[Label, Strategy] | None = None) -> None:
        self._by_rank = [usual] * len(LABELS)
        for label, strategy in (strategies or {}).items():
            self.decide(label, strategy)

    def decide(self, label: Label, strategy: Strategy) -> None:
        """From now on, the label goes this way."""
        self._by_rank[RANK[label]] = strategy

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> Grant | None:
        """The most urgent data whose strategy lets it onto this path."""
        for rank in range(len(LABELS)):
            strategy = self._by_rank[rank]
            if path not in self._meant(strategy, allowed(paths, rank)):
                continue
            if backlog.waiting_bytes[rank]:
                spread = len(paths) > 1 and strategy.kind is StrategyKind.MPTCP
                return Grant(rank, min(room_bytes, CHUNK_BYTES) if spread else room_bytes)
            if strategy.kind is StrategyKind.REDUNDANT and backlog.copyable_bytes[rank]:
                return Grant(rank, room_bytes, copy=True)
        return None

    @staticmethod
    def _meant(strategy: Strategy, paths: Sequence[PathState]) -> Sequence[PathState]:
        if strategy.kind is StrategyKind.DEFER:
            return ()
        if strategy.kind is StrategyKind.MPTCP:
            primary = [path for path in paths if path.facts.network in strategy.networks[:1]]
            # The others join once the primary one has carried something, as MPTCP's subflows do.
            return primary if primary and not primary[0].sent_bytes else paths
        return [path for path in paths if path.facts.network in strategy.networks] or paths

    def appropriate(self, rank: int, paths: Sequence[PathState], now: float) -> bool:
        """Whether one of the networks that were chosen for the label is there."""
        strategy = self._by_rank[rank]
        may = allowed(paths, rank)
        if strategy.kind is StrategyKind.DEFER or not may:
            return False
        return any(path.facts.network in strategy.networks for path in may)

    def next_look_s(self, paths: Sequence[PathState], now: float) -> float | None:
        """Nothing changes by waiting; who decides anew tells the driver."""
        return None
