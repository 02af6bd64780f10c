"""Players of which proxies on this host tell: what they have in store, and what they wait for."""

from typing import Final

from cedos.api.transfers import PlayersReport, PlayingMessage
from cedos.errors import ConfigError

_VALID_S: Final = 5.0
_MOST_PROGRAMS: Final = 64


class ToldPlayers:
    """What was told counts for a few seconds: a proxy that has ended leaves no trace."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], tuple[float, tuple[PlayingMessage, ...]]] = {}

    def told(self, report: PlayersReport, uid: int, now_s: float) -> None:
        """ConfigError: too many tell of players."""
        self._forget(now_s)
        key = uid, report.program
        if key not in self._told and len(self._told) >= _MOST_PROGRAMS:
            raise ConfigError(f"players: more than {_MOST_PROGRAMS} programs tell of theirs")
        self._told[key] = now_s, report.players

    def listed(self, now_s: float) -> list[PlayingMessage]:
        self._forget(now_s)
        return [player for _, players in self._told.values() for player in players]

    def _forget(self, now_s: float) -> None:
        for key, (told_s, _) in list(self._told.items()):
            if now_s - told_s > _VALID_S:
                del self._told[key]
