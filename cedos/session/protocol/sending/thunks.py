"""Sends that wait for an appropriate network, as tokens (dissertation, 2.2.5)."""

from collections.abc import Sequence
from typing import Final

from cedos.session.protocol.schedulers.estimates import allowed
from cedos.session.protocol.schedulers.interface import PathState

DEFERRED: Final = -1
"""Instead of an IROB's id: the label has no appropriate network now; the thunk will be told."""


class Thunks:
    """Registered thunks in order; the application keeps what a token stands for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}  # token -> rank

    def __len__(self) -> int:
        return len(self._waiting)

    def register(self, token: int, rank: int) -> None:
        self._waiting[token] = rank

    def cancel(self, token: int) -> bool:
        return self._waiting.pop(token, None) is not None

    def due(self, paths: Sequence[PathState]) -> list[tuple[int, int]]:
        """Those whose label can be sent now, as (token, rank); each is told once."""
        ranks = {rank for rank in set(self._waiting.values()) if allowed(paths, rank)}
        due = [(token, rank) for token, rank in self._waiting.items() if rank in ranks]
        for token, _ in due:
            del self._waiting[token]
        return due
