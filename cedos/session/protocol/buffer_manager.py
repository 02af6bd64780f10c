"""D2BufMgr: when a stream that is played uses a metered network (Cedos, III-C.2 and IV). Pure.

The player consumes stored data down to the threshold `low`, without any network: data over the metered
network then comes just in time. Once begun, the metered network fills the store up to `high`, so that
its radio can rest again. An unmetered network that carries the bit rate ends the filling at once.
`high` is near, because a metered byte that an unmetered network could have carried is wasted. A player
that stores all it gets would look empty, so `PlaybackClock` counts by the bit rate.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Final


class PlaybackClock:
    """A clock of what a player has played, by the bit rate.

    It runs from the first bytes on, and stands while the player has none.
    """

    def __init__(self, bitrate_bps: float) -> None:
        self._bytes_per_s = bitrate_bps / 8
        self._played = 0.0
        self._at_s: float | None = None

    def played_bytes(self, written_bytes: int, now: float) -> int:
        """Return how much of the bytes that the player got it has played."""
        if written_bytes and self._at_s is not None:
            passed_s = max(now - self._at_s, 0.0)
            self._played = min(self._played + passed_s * self._bytes_per_s, float(written_bytes))
        if written_bytes:
            self._at_s = now
        return int(self._played)


# The assumed switching time before one was measured: up to 0.9 s (Cedos, V-A), two round trips,
# first bytes.
_START_S: Final = 1.5
_SAFETY: Final = 2.0  # starts differ by as much
_LOOK_S: Final = 0.2  # the time until the next look
_REFILL_S: Final = 2.0  # the length of a filling at least, in seconds of playing
_GRACE_S: Final = 2.0  # an unmetered network has this time to show that it carries something
_QUIET_S: Final = 0.3  # after this silence the peer has sent all that it may
_STARTS: Final = 5
# The window while a metered network fills: at least so many bytes, or seconds of the bit rate.
_SMALL_WINDOW: Final = 1 << 16
_WINDOW_S: Final = 0.5


@dataclass(slots=True)
class BufferSituation:
    """The recent behaviour of the networks.

    `unmetered_up_s`: for how long an unmetered network is up; None: none is up, or it is silent.
    `unmetered_bps`: the rate over unmetered networks in the last second. `metered_bps` and
    `metered_rtt_s`: as last measured; None: never. `quiet_s`: for how long nothing has arrived.
    """

    buffered_bytes: int
    unmetered_up_s: float | None = None
    unmetered_bps: float = 0.0
    metered_bps: float | None = None
    metered_rtt_s: float | None = None
    quiet_s: float = 0.0


class BufferManager:
    """The thresholds of a played stream, given or computed from bit rate and measured starts.

    `window_bytes`: how much the peer may send ahead of the reader. These bytes arrive even if nothing is
    read, so the window is small while a metered network fills.
    """

    def __init__(
        self,
        *,
        bitrate_bps: float | None = None,
        low_bytes: int = 0,
        high_bytes: int | None = None,
        window_bytes: int = 0,
    ) -> None:
        self._low, self._given_high = low_bytes, high_bytes
        self._window = window_bytes
        self._bytes_per_s = (bitrate_bps or 0.0) / 8
        small = max(_SMALL_WINDOW, ceil(self._bytes_per_s * _WINDOW_S))
        self._small = min(self._window, small)
        self._starts: deque[float] = deque(maxlen=_STARTS)
        self._filling = self._full = self._alone = False

    @property
    def misses_unmetered(self) -> bool:
        """Return whether no unmetered network is up, or those that are carry too little."""
        return self._filling or self._alone

    @property
    def filling(self) -> bool:
        """Return whether the metered network is used now, up to the high threshold."""
        return self._filling

    @property
    def window_bytes(self) -> int:
        """Return how much the peer may send ahead from now on."""
        return self._small if self._filling else self._window

    def on_start(self, took_s: float) -> None:
        """Note the seconds from the decision to the first bytes over the metered network."""
        self._starts.append(took_s)

    def thresholds(self) -> tuple[int, int]:
        """Return the low and the high threshold in bytes."""
        if not self._bytes_per_s:
            return self._low, max(self._low, self._given_high or self._low)
        # Twice the slowest recent start, and the time until it is looked at.
        start_s = max(self._starts, default=_START_S)
        low = max(ceil(self._bytes_per_s * (start_s * _SAFETY + _LOOK_S)), self._low)
        high = low + self._small + ceil(self._bytes_per_s * _REFILL_S)
        return low, max(high, self._given_high or 0)

    def metered_wanted(self, situation: BufferSituation) -> bool:
        low, high = self.thresholds()
        buffered = situation.buffered_bytes
        up_s = situation.unmetered_up_s
        carried = situation.unmetered_bps / 8
        self._alone = up_s is None
        # An unmetered network carries the bit rate: stop filling, whatever is stored.
        if up_s is not None and carried >= max(self._bytes_per_s, 1.0):
            self._filling = False
        elif self._filling:
            # Stop filling when what is stored and on its way reaches `high`; or when reading has stopped
            # (`may_read`) and the peer has sent its whole window.
            under_way = (situation.metered_bps or 0.0) / 8 * (situation.metered_rtt_s or 0.0)
            exhausted = situation.quiet_s > _QUIET_S and buffered > low
            enough = buffered >= max(high - under_way, low + 1)
            if enough or (exhausted and self._full):
                self._filling = False
        # Start filling at `low`, unless an unmetered network has just come up and may still deliver.
        elif buffered <= low and (up_s is None or up_s >= _GRACE_S):
            self._filling = True
        if not self._filling:
            self._full = False
        return self._filling

    def may_read(self, stored_bytes: int, most_bytes: int) -> bool:
        """Return whether more is to be read from the stream; `stored_bytes` are stored.

        While the metered network fills, reading stops where all that the peer may still send reaches
        `high`: then no data is on its way when the network is left.
        """
        if not self._filling:
            return stored_bytes < most_bytes
        self._full = self._full or stored_bytes >= min(
            max(self.thresholds()[1] - self._small, 0), most_bytes
        )
        return not self._full
