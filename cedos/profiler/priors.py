"""What to expect of a transfer before anything is known of its server.

Delphi (section 4) answers 3 KB where nothing is known and 100 KB once chunked coding is seen, the
medians of the Alexa top 500. These are of single HTTP answers; a TLS or QUIC connection counts as a
whole, with all that one page asks of one server, and has medians of its own here (`WHOLE`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from cedos.model import Direction

_STANDARD = NormalDist()
_QUANTILES = tuple((i + 0.5) / 11 for i in range(11))
_POINTS = tuple(_STANDARD.inv_cdf(q) for q in _QUANTILES)
_SURPRISE = _STANDARD.inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Prior:
    """What to expect of an unknown server: log-normal with this median and this sigma of ln(bytes).

    The paper gives medians alone; sigma makes the 90 % interval two orders of magnitude each way.
    """

    median_bytes: float
    sigma: float = 2.8
    points: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Equally likely sizes that stand for the distribution."""

    def __post_init__(self) -> None:
        points = tuple(self.median_bytes * math.exp(self.sigma * z) for z in _POINTS)
        object.__setattr__(self, "points", points)

    def points_above(self, size_bytes: int) -> list[float]:
        """Equally likely sizes that stand for the distribution of those larger than this.

        A size that the prior hardly knows shows it to be too narrow: it is widened until what came
        lies within its 90 % interval, so that the estimate runs ahead and is not chased.
        """
        distance = math.log(max(1, size_bytes) / self.median_bytes)
        sigma = max(self.sigma, distance / _SURPRISE)
        z = distance / sigma
        share = max(0.5 * math.erfc(z / math.sqrt(2)), 1e-300)
        return [
            self.median_bytes * math.exp(-sigma * _STANDARD.inv_cdf(share * q)) for q in _QUANTILES
        ]


UNKNOWN = Prior(3_000)
"""Nothing is known of the transfer."""
CHUNKED = Prior(100_000, 1.5)
"""Its length is not stated because it is made while it is sent."""

WHOLE: Mapping[tuple[int, Direction], Prior] = {
    (443, Direction.DOWN): Prior(32_000, 1.5),
    (443, Direction.UP): Prior(1_300),
}
"""Of a whole connection, by the server's port and the direction; all others are `UNKNOWN`.

Downloads as generated pages have them (`emu.workloads.web.visits` makes these two figures); of
uploads, a handshake and ten requests of curl, and the width of what is not known at all.
"""
