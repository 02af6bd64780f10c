"""Keeps the receive window of connections bounded, so that a move is quick and smooth.

What a sender has handed to a subflow stays on that path, and the other end cannot hand out more than our
receive window. What was measured: docs/decisions/receive-window.md.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from cedos.host.steer.journal_records import (
    TCP_RMEM,
    WINDOW_STEPS_PER_DOUBLING,
    Append,
    SysctlRecord,
)
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.mptcp.connection import MptcpConnection
from cedos.model import Network, NetworkKind, StrategyKind

# Extra room for an application that reads late.
_SLACK_BYTES: Final = 16 << 10
# Buffer bytes per payload byte: the kernel counts whole packet buffers.
_BUFFER_PER_WINDOW: Final = 2
_ONE_PATH: Final = 2.0
_ALL_PATHS: Final = 1.25
# The least window. It is enough for the first second of the fastest download so far; then the
# bound follows what was measured. In the bench it limits no path.
_LEAST_WINDOW_BYTES: Final = 192 << 10
_REMEMBERED_S: Final = 600.0


def receive_buffer_bytes(paths: Iterable[tuple[float, float]], *, together: bool = False) -> int:
    """Return the largest receive buffer to allow a connection, in bytes (third value of `tcp_rmem`).

    Twice what the best path has on its way never limits what is measured now, and where the path
    becomes faster the measured rate can double before the next call. Rounded up in steps of a
    fifth, so that it changes seldom.

    Args:
        paths: of each network the highest rate seen lately in bit/s, and in s the longest of its
            living flows' least round-trip times.
        together: some connection uses all paths at once: it has to hold what the fast ones bring
            while it waits for the slowest.
    """
    known = list(paths)
    window = _ONE_PATH * max((rate * rtt / 8 for rate, rtt in known), default=0.0)
    if together:
        rate_bps = sum(rate for rate, _ in known)
        longest_s = max((rtt for _, rtt in known), default=0.0)
        window = max(window, _ALL_PATHS * rate_bps * longest_s / 8, 2 * _LEAST_WINDOW_BYTES)
    window = max(window, _LEAST_WINDOW_BYTES)
    buffer = _BUFFER_PER_WINDOW * (window + _SLACK_BYTES)
    steps = math.ceil(math.log2(buffer) * WINDOW_STEPS_PER_DOUBLING)
    return int(2 ** (steps / WINDOW_STEPS_PER_DOUBLING))


def with_maximum(value: str, maximum: int) -> str | None:
    """Return `tcp_rmem` with a new maximum, never above the host's own; None: not such a value."""
    try:
        least, initial, most = map(int, value.split())
    except ValueError:
        return None
    return f"{least}\t{initial}\t{min(most, max(maximum, initial))}"


class ReceiveWindow:
    """The bound on the receive window. Its methods raise OSError and the journal's errors.

    A network is taken to be as quick as it ever was in the last minutes: what is measured is what
    was used, and a quiet minute says nothing about the next download.
    """

    def __init__(self, kernel: SteeringKernel, append: Append) -> None:
        self._kernel = kernel
        self._append = append
        self._own: str | None = None
        # Network -> its highest rate, and when that was seen.
        self._best: dict[str, tuple[float, float]] = {}
        # The two values in use: for paths one by one, and for paths together.
        self._alone: str | None = None
        self._together: str | None = None

    def on_measured(
        self, networks: Iterable[Network], paths: Mapping[str, tuple[float, float]], now_s: float
    ) -> None:
        """Apply new measurements; no bound while some network is a wire."""
        up = [network for network in networks if network.up]
        now = self._kernel.read_sysctl(TCP_RMEM)
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
        if self._alone and _read_most(alone) <= _read_most(self._alone) <= 2 * _read_most(alone):
            return
        for value in dict.fromkeys((alone, together)):
            self._append(SysctlRecord(TCP_RMEM, self._own, value))
        self._alone, self._together = alone, together

    def _rate(self, name: str, rate_bps: float, now_s: float) -> float:
        best_bps, at_s = self._best.get(name, (0.0, now_s))
        if rate_bps >= best_bps or now_s - at_s > _REMEMBERED_S:
            best_bps, at_s = rate_bps, now_s
        self._best[name] = (best_bps, at_s)
        return best_bps

    def used_by(self, connections: Iterable[MptcpConnection]) -> None:
        """Allow more while a connection uses several paths at once."""
        several = any(
            connection.strategy is not None and connection.strategy.kind is StrategyKind.MPTCP
            for connection in connections
        )
        wanted = self._together if several else self._alone
        if wanted is not None:
            self._write(wanted)

    def _write(self, value: str) -> None:
        now = self._kernel.read_sysctl(TCP_RMEM)
        if now is not None and now.split() != value.split():
            self._kernel.write_sysctl(TCP_RMEM, value)


def _read_most(value: str) -> int:
    return int(value.rsplit(maxsplit=1)[-1])
