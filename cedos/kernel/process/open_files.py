"""How many files and sockets this process may have open."""

import errno
import resource
from contextlib import suppress
from typing import Final

OUT_OF_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""What `accept` says where there is no room for one more: it stays readable."""


def allow(wanted: int | None = None) -> int:
    """Raises this process's own limit to `wanted`, or as far as it may; how many it has then.

    (The kernel knows no limit without a number here: fs.nr_open is the largest.)
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = hard if wanted is None else min(wanted, hard)
    if soft < target:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            return target
    return soft
