"""What became of a session's datagrams."""

from typing import NamedTuple


class DatagramCounts(NamedTuple):
    """Handed in, gone over a further path, and never sent for want of a path in time."""

    sent: int
    copies: int
    expired: int
