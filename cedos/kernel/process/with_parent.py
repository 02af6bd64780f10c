"""A process that ends when the one that began it does (PR_SET_PDEATHSIG, prctl(2))."""

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(parent: int) -> None:
    """SIGTERM when it is gone, or at once where it is gone already; survives `exec`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
