"""Estimates of a path's rate from its acknowledgements: TCP Westwood's filter, and Linux' samples."""

from collections import deque
from typing import Final, Protocol

# Westwood's tau: the filter's cut-off period, as in its authors' code.
_CUT_OFF_S: Final = 0.5
# Westwood's m: at least m samples (of zero if need be) in each tau.
_NYQUIST: Final = 2.0
_ROUNDS: Final = 10


class Bandwidth(Protocol):
    """An estimate of the rate of a path."""

    @property
    def rate_bps(self) -> float | None:
        """The estimate; None before the first sample."""

    def on_acknowledged(
        self, size_bytes: int, now_s: float, *, round_trip_s: float, limited: bool
    ) -> None:
        """Note acknowledged bytes; `limited`: the path had room, and there was nothing to send."""


class Westwood:
    """The bandwidth estimation of TCP Westwood (Mascolo et al., MobiCom 2001, section 2.2).

    Each acknowledgement of d bytes, t seconds after the one before, is a sample b = d / t. The filter is
    B = a B' + (1 - a) (b + b') / 2 with a = (2 tau - t) / (2 tau + t), where B' and b' are the previous
    estimate and sample. Where no acknowledgement comes for tau / m, a sample of 0 is taken.
    """

    def __init__(self) -> None:
        self.rate_bps: float | None = None
        self._sample_bps = 0.0
        self._at_s: float | None = None
        self._pending_bytes = 0

    def on_acknowledged(
        self, size_bytes: int, now_s: float, *, round_trip_s: float, limited: bool
    ) -> None:
        self._pending_bytes += size_bytes
        # The first acknowledgement only begins the measurement: there is no time to divide by.
        if self._at_s is None:
            self._at_s, self._pending_bytes = now_s, 0
            return
        longest_s = _CUT_OFF_S / _NYQUIST
        # Times without acknowledgements count as samples of 0 (the filter's Nyquist rate).
        while now_s - self._at_s > longest_s:
            self._at_s += longest_s
            self._filter(0.0, longest_s)
        gap_s = now_s - self._at_s
        # Acknowledgements of one instant are one sample, with the next one.
        if gap_s > 1e-6:
            self._filter(8 * self._pending_bytes / gap_s, gap_s)
            self._at_s, self._pending_bytes = now_s, 0

    def _filter(self, sample_bps: float, gap_s: float) -> None:
        if self.rate_bps is None:
            # The first sample that is not zero begins the estimate.
            if sample_bps:
                self.rate_bps = self._sample_bps = sample_bps
            return
        keep = (2 * _CUT_OFF_S - gap_s) / (2 * _CUT_OFF_S + gap_s)
        self.rate_bps = keep * self.rate_bps + (1 - keep) * (sample_bps + self._sample_bps) / 2
        self._sample_bps = sample_bps


class DeliveryRate:
    """The largest rate of the last ten round trips, without those in which there was nothing to send.

    Linux reports the rate of each round trip and whether the program limited it (`tcp_rate.c`); that is
    what sessions know of a path.
    """

    def __init__(self) -> None:
        self.rate_bps: float | None = None
        self._samples: deque[float] = deque(maxlen=_ROUNDS)
        self._began_s: float | None = None
        self._bytes = 0
        self._limited = False

    def on_acknowledged(
        self, size_bytes: int, now_s: float, *, round_trip_s: float, limited: bool
    ) -> None:
        if self._began_s is None:
            self._began_s = now_s
            return
        self._bytes += size_bytes
        self._limited |= limited
        # One sample for each round trip.
        took_s = now_s - self._began_s
        if took_s < round_trip_s:
            return
        rate_bps = 8 * self._bytes / took_s
        # A limited round trip counts where it shows more than is known.
        if not self._limited or rate_bps > (self.rate_bps or 0.0):
            self._samples.append(rate_bps)
            self.rate_bps = max(self._samples)
        self._began_s, self._bytes, self._limited = now_s, 0, False
