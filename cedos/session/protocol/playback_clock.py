"""How much of a stream has been played, by its bit rate. Pure.

A player that stores all it gets would else look as one that has nothing: what it has in store is the
difference between what it got and what it can have played.
"""


class PlaybackClock:
    """Runs from the first bytes on, and stands while the player has none."""

    def __init__(self, bitrate_bps: float) -> None:
        self._bytes_per_s = bitrate_bps / 8
        self._played = 0.0
        self._at_s: float | None = None

    def played_bytes(self, written_bytes: int, now: float) -> int:
        """Of those that the player got so far."""
        if written_bytes and self._at_s is not None:
            passed_s = max(now - self._at_s, 0.0)
            self._played = min(self._played + passed_s * self._bytes_per_s, float(written_bytes))
        if written_bytes:
            self._at_s = now
        return int(self._played)
