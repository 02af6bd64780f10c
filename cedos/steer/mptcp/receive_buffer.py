"""How much of a download the other end may have on its way: what makes a move quick and smooth.

A sender gives its kernel far more than the path takes, and what a subflow holds stays on that path:
measured over 12 Mbit/s, the next write of the application, and so the first packet on the new path,
came 190-290 ms after the command. The other end cannot hand out more than our receive window,
though; the rest waits above the paths, and the first packet comes one round trip after the command.
A window that does not overflow the old path's queue also keeps the last packets there from being
lost, which nobody notices for half a second: without it, every fifth move left the application
without data for 350-600 ms.

It costs no rate: over 24 and 12 Mbit/s (23 and 63 ms) a buffer of 256 KiB gave each path alone all
that it has, and one of 704 KiB both together (34 Mbit/s, as without a bound).
"""

import math
from collections.abc import Iterable
from typing import Final

KEY: Final = "net.ipv4.tcp_rmem"
# Room for an application that reads late.
_SLACK_BYTES: Final = 16 << 10
# The kernel counts a packet's buffers: about twice its payload.
_BUFFER_PER_WINDOW: Final = 2
_ONE_PATH: Final = 2.0
_ALL_PATHS: Final = 1.25
_STEPS_PER_DOUBLING: Final = 4
# Enough for the first second of a download that is quicker than all before it; the bound is then
# lifted by what that one has measured. Over both paths of the bench it limits nothing.
_LEAST_WINDOW_BYTES: Final = 192 << 10


def receive_buffer_bytes(paths: Iterable[tuple[float, float]], *, together: bool = False) -> int:
    """The largest receive buffer to allow a connection.

    Twice what the best path has on its way never limits what is measured now, and where the path
    becomes faster the measured rate can double before the next call. Rounded up in steps of a
    fifth, so that it changes seldom.

    Args:
        paths: of each network the highest rate seen lately in bit/s, and in s the longest of its
            living flows' least round-trip times.
        together: some connection uses all paths at once: it has to hold what the fast ones bring
            while it waits for the slowest.

    Returns:
        bytes, for the third value of `net.ipv4.tcp_rmem`.
    """
    known = list(paths)
    window = _ONE_PATH * max((rate * rtt / 8 for rate, rtt in known), default=0.0)
    if together:
        rate_bps = sum(rate for rate, _ in known)
        longest_s = max((rtt for _, rtt in known), default=0.0)
        window = max(window, _ALL_PATHS * rate_bps * longest_s / 8, 2 * _LEAST_WINDOW_BYTES)
    window = max(window, _LEAST_WINDOW_BYTES)
    buffer = _BUFFER_PER_WINDOW * (window + _SLACK_BYTES)
    steps = math.ceil(math.log2(buffer) * _STEPS_PER_DOUBLING)
    return int(2 ** (steps / _STEPS_PER_DOUBLING))


def with_maximum(value: str, maximum: int) -> str | None:
    """`tcp_rmem` with a third value that is never above what the host has; None: not such a value."""
    try:
        least, initial, most = map(int, value.split())
    except ValueError:
        return None
    return f"{least}\t{initial}\t{min(most, max(maximum, initial))}"
