"""What disturbed a policy's run from outside, in words: its figures are not to be compared then."""

from collections.abc import Iterator

_LATE_S = 0.25
"""On a quiet machine of two cores transfers begin within 0.1 s of their instant."""


def disturbances(*, most_pages: int, free_pages: int, latest_s: float) -> Iterator[str]:
    """Return what disturbed the run; empty if nothing did.

    Args:
        most_pages, free_pages: of the host's TCP memory (`testbed.tcp_memory`).
        latest_s: how much later than planned a transfer began at most.
    """
    if most_pages > free_pages:
        yield (
            f"the host's TCP memory was short: {most_pages} pages were in use, and from {free_pages}"
            " on (net.ipv4.tcp_mem) the kernel holds all connections back, also emulated ones"
        )
    if latest_s > _LATE_S:
        yield f"the machine was too busy: a transfer began {latest_s:.1f} s late"
