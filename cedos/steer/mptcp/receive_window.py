"""Keeps the receive window bounded (see `window`): a sysctl, its journal, and when it changes."""

from collections.abc import Iterable, Mapping
from typing import Final

from cedos.model import Network, NetworkKind, StrategyKind
from cedos.steer.kernel.interface import Kernel
from cedos.steer.mptcp.connections import Connection
from cedos.steer.mptcp.receive_buffer import KEY, receive_buffer_bytes, with_maximum
from cedos.steer.parts import Append
from cedos.steer.undo import sysctl_record

_REMEMBERED_S: Final = 600.0


class ReceiveWindow:
    """The bound on the receive window. Its methods raise OSError and the journal's errors.

    A network is taken to be as quick as it ever was in the last minutes: what is measured is what
    was used, and a quiet minute says nothing about the next download.
    """

    def __init__(self, kernel: Kernel, append: Append) -> None:
        self._kernel = kernel
        self._append = append
        self._own: str | None = None
        # Network -> its highest rate, and when that was seen.
        self._best: dict[str, tuple[float, float]] = {}
        # The two values in use: for paths one by one, and for paths together.
        self._alone: str | None = None
        self._together: str | None = None

    def measured(
        self, networks: Iterable[Network], paths: Mapping[str, tuple[float, float]], now_s: float
    ) -> None:
        """New measurements; nothing is bounded while some network is a wire."""
        up = [network for network in networks if network.up]
        now = self._kernel.read_sysctl(KEY)
        if now is None:
            return
        self._own = self._own or now
        if not up or any(network.kind is NetworkKind.ETHERNET for network in up):
            self._alone = self._together = None
            self._write(self._own)
            return
        if not all(network.name in paths for network in up):
            return
        known = [(self._rate(n.name, paths[n.name][0], now_s), paths[n.name][1]) for n in up]
        alone = with_maximum(self._own, receive_buffer_bytes(known))
        together = with_maximum(self._own, receive_buffer_bytes(known, together=True))
        if alone is None or together is None:
            return
        # Not to and fro between two sizes: smaller only when it is much smaller.
        if self._alone and _most(alone) <= _most(self._alone) <= 2 * _most(alone):
            return
        for value in dict.fromkeys((alone, together)):
            self._append(sysctl_record(KEY, self._own, value))
        self._alone, self._together = alone, together

    def _rate(self, name: str, rate_bps: float, now_s: float) -> float:
        best_bps, at_s = self._best.get(name, (0.0, now_s))
        if rate_bps >= best_bps or now_s - at_s > _REMEMBERED_S:
            best_bps, at_s = rate_bps, now_s
        self._best[name] = (best_bps, at_s)
        return best_bps

    def used_by(self, connections: Iterable[Connection]) -> None:
        """Allows more while a connection uses several paths at once."""
        several = any(
            connection.strategy is not None and connection.strategy.kind is StrategyKind.MPTCP
            for connection in connections
        )
        wanted = self._together if several else self._alone
        if wanted is not None:
            self._write(wanted)

    def _write(self, value: str) -> None:
        now = self._kernel.read_sysctl(KEY)
        if now is not None and now.split() != value.split():
            self._kernel.write_sysctl(KEY, value)


def _most(value: str) -> int:
    return int(value.rsplit(maxsplit=1)[-1])
