"""Mahimahi traces: the instants at which a link may deliver one packet, repeated for ever.

A file holds one integer per line, milliseconds since the start, never decreasing. Each line is one
opportunity to deliver `OPPORTUNITY_BYTES`; the last line is also the period after which the file
starts again (Mahimahi, mm-link(1)): `1` alone is 12 Mbit/s for ever. What mm-link reads is read here,
and white space at the ends of lines and of the file, too.
"""

import gzip
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cedos.errors import TraceError
from emu import console

OPPORTUNITY_BYTES = 1500
OPPORTUNITY_BITS = OPPORTUNITY_BYTES * 8
# The largest file. Parsing takes five times as much memory, and a file of 3 MB may contain 3 GB of
# zeros.
_MOST_BYTES = 256 << 20
# The longest file. A stranger's of 16 bytes can say 30,000 years, and figures are made of each second.
LONGEST_S = 86_400
# The most opportunities of a repeated trace: a day at 9 Mbit/s, half a gigabyte.
_MOST_REPEATED = 1 << 26
# TCP payload per full packet: 1500 bytes less IPv4, TCP and timestamp headers.
TCP_GOODPUT_SHARE = 1448 / 1500

# A number of up to 15 digits: 31,000 years in milliseconds, and within every integer type. No repetition
# gives back what it took (`+`), so that a file of megabytes is matched in milliseconds.
_NUMBER = rb"[ \t]*+\+?[0-9]{1,15}+"
_LINE = re.compile(_NUMBER + rb"[ \t\r]*+")
_READ = re.compile(rb"(?:" + _LINE.pattern + rb"\n)*+" + _NUMBER)


class Trace:
    """Delivery opportunities of one direction of a link, repeated with a period."""

    __slots__ = ("_at_end", "period_ms", "times_ms")

    def __init__(
        self,
        # Opportunities in milliseconds, never decreasing, from 0 to the period.
        times_ms: Sequence[int] | npt.NDArray[np.integer],
        # Where the opportunities end before it, one is added at its end: the format can state a
        # period in no other way. None: the last opportunity.
        period_ms: int | None = None,
    ) -> None:
        times = np.array(times_ms, dtype=np.int64, copy=True)
        period = period_ms if period_ms is not None else int(times[-1])
        if times.size == 0 or int(times[-1]) < period:
            times = np.append(times, period)
        times.flags.writeable = False
        # Read-only array of shape (n,), the opportunities of one period in milliseconds, never
        # decreasing; the last one is the period.
        self.times_ms: npt.NDArray[np.int64] = times
        self.period_ms = period  # after so many milliseconds it starts again
        self._at_end = len(times) - int(np.searchsorted(times, period))

    @classmethod
    def read(cls, path: Path) -> "Trace":
        """Read a trace file, plain or gzip'd (`.gz`); TraceError names file and line."""
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{path}: {error}") from error
        if len(data) > _MOST_BYTES:
            raise TraceError(
                f"{path}: more than {_MOST_BYTES >> 20} MiB of text; an hour at 100 Mbit/s is 229"
            )
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, name: str = "trace") -> "Trace":
        """Parse the text of a trace file; `name` is what an error calls it.

        TraceError: empty, not an integer, negative, decreasing, of zero length, or longer than a day.
        """
        if not data.strip():
            raise TraceError(f"{name}: empty; one integer (milliseconds) per line is needed")
        if not _READ.fullmatch(data.rstrip()):
            raise TraceError(f"{name}:{_first_bad_line(data)}")
        times = np.fromstring(data.replace(b"+", b""), dtype=np.int64, sep=" ")
        falls = np.flatnonzero(np.diff(times) < 0)
        if falls.size:
            at = int(falls[0])
            raise TraceError(
                f"{name}:{at + 2}: {times[at + 1]} after {times[at]}: times must not decrease"
            )
        if int(times[-1]) == 0:
            raise TraceError(
                f"{name}:{times.size}: the last line is the period and must be more than 0"
            )
        if int(times[-1]) > LONGEST_S * 1000:
            raise TraceError(
                f"{name}:{times.size}: lasts {int(times[-1]) / 86_400_000:.0f} days, if its times are"
                " milliseconds; up to one day would be right"
            )
        return cls(times)

    @classmethod
    def constant(cls, rate_bps: float, duration_s: float = 1.0) -> "Trace":
        """Return a trace of (nearly) constant rate: opportunities as even as milliseconds allow."""
        period_ms = round(duration_s * 1000)
        count = round(rate_bps * duration_s / OPPORTUNITY_BITS)
        if period_ms <= 0 or count <= 0:
            raise TraceError(f"{rate_bps:g} bit/s for {duration_s:g} s is not one packet")
        steps = np.arange(1, count + 1, dtype=np.int64)
        return cls(-(-steps * period_ms // count), period_ms)

    def __len__(self) -> int:
        return int(self.times_ms.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        return np.array_equal(self.times_ms, other.times_ms)

    def __hash__(self) -> int:
        return hash(self.times_ms.tobytes())

    @property
    def period_s(self) -> float:
        return self.period_ms / 1000

    @property
    def mean_bps(self) -> float:
        return len(self) * OPPORTUNITY_BITS / self.period_s

    def rotated(self, start_s: float, length_s: float | None = None) -> "Trace":
        """Return the same trace, replayed from `start_s` on (which may lie beyond the period).

        The number of opportunities stays: the last line marks the period and stays the last line,
        all others move.

        Args:
            start_s: where the replay begins, rounded to milliseconds.
            length_s: keep only so many seconds: a shorter file starts sooner. The end of a cut
                trace is marked by one opportunity more.
        """
        shift = round(start_s * 1000) % self.period_ms
        times = self.times_ms
        if shift:
            # What lies before the start comes behind the rest, a period later.
            first = int(np.searchsorted(times[:-1], shift))
            times = np.concatenate(
                (times[first:-1] - shift, times[:first] + (self.period_ms - shift))
            )
        if length_s is not None:
            length_ms = max(1, round(length_s * 1000))
            if length_ms < self.period_ms:
                return Trace(times[: int(np.searchsorted(times, length_ms))], length_ms)
        return Trace(times, self.period_ms)

    def repeated(self, length_s: float) -> "Trace":
        """Return the same trace, repeated for so long at least; itself if it lasts as long.

        TraceError: that is more than fits into memory.
        """
        count = math.ceil(length_s * 1000 / self.period_ms)
        if count <= 1:
            return self
        if count * len(self) > _MOST_REPEATED:
            raise TraceError(
                f"a trace of {self.mean_bps / 1e6:.0f} Mbit/s cannot be repeated for {length_s:g} s: at"
                f" that rate {_MOST_REPEATED * OPPORTUNITY_BITS / self.mean_bps:.0f} s are the most"
            )
        begins = np.arange(count, dtype=np.int64)[:, None] * self.period_ms
        return Trace((begins + self.times_ms).ravel(), count * self.period_ms)

    def rate_bps(self, from_s: float, to_s: float) -> float:
        """Return the mean rate in [from_s, to_s), across the end of the period too.

        ValueError: the interval is empty.
        """
        if not to_s > from_s:
            raise ValueError(f"[{from_s}, {to_s}) is empty")
        count = self._before(to_s * 1000) - self._before(from_s * 1000)
        return count * OPPORTUNITY_BITS / (to_s - from_s)

    def bins(self, width_s: float) -> npt.NDArray[np.float64]:
        """Rate over one period in bits per second, in bins of `width_s`, the last perhaps shorter.

        Shape (n,).
        """
        if not width_s > 0:
            raise ValueError("a bin needs a width")
        count = max(1, int(np.ceil(self.period_s / width_s - 1e-9)))
        edges = np.append(np.arange(count) * width_s, self.period_s)
        before = np.array([self._before(edge * 1000) for edge in edges])
        rates: npt.NDArray[np.float64] = np.diff(before) * OPPORTUNITY_BITS / np.diff(edges)
        return rates

    def write(self, path: Path) -> None:
        """Write a file that Mahimahi replays; gzip'd where the name ends in `.gz`."""
        data = ("\n".join(map(str, self.times_ms.tolist())) + "\n").encode()
        # No time stamp inside: the same trace is the same file.
        console.write(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)

    def _before(self, at_ms: float) -> int:
        """Opportunities before an instant, if there had been periods before this one too.

        What lies at the period's end is the next period's instant 0.
        """
        # A hair of tolerance: 0.3 * 1000 is not 300 in floating point.
        periods, rest = divmod(at_ms - 1e-6, self.period_ms)
        # (An integer to search for: for any other the whole array would be converted first.)
        within = int(np.searchsorted(self.times_ms, math.ceil(rest)))
        return int(periods) * len(self) + within + self._at_end


def _first_bad_line(data: bytes) -> str:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if _LINE.fullmatch(line):
            continue
        shown = line[:40].decode(errors="replace").strip()
        if not shown:
            return f"{number}: empty line; one integer (milliseconds) is needed"
        if re.fullmatch(rb"-[0-9]+\s*", line):
            return f"{number}: {shown}: negative; times count from 0"
        return f"{number}: {shown!r} is not an integer (milliseconds) of at most 15 digits"
    return "1: not a trace"
