"""Which of the two capabilities this process has; the daemon needs both, and nothing else.

Once its privileged part is a process of its own (`PART_NAME`), the daemon itself gives them up.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import Final

from cedos.errors import PrivilegeError

NEEDED: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
PART_NAME: Final = "cedos-privileg"
"""What the kernel calls that process: it takes fifteen characters."""

_STATUS: Final = Path("/proc/self/status")
_CAPABILITY_VERSION_3: Final = 0x20080522
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_libc = ctypes.CDLL(None, use_errno=True)


def held(pid: int | None = None) -> frozenset[str]:
    """The needed capabilities that are effective in a process; None: in this one.

    Raises:
        ProcessLookupError: there is no such process, or it does not show.
    """
    status = _STATUS if pid is None else Path(f"/proc/{pid}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError as error:
        raise ProcessLookupError(pid) from error
    mask = int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
    return frozenset(name for name, bit in NEEDED.items() if mask >> bit & 1)


def require(what: str) -> None:
    """Raises PrivilegeError, naming what is missing and how to get it, unless both are held."""
    missing = sorted(NEEDED.keys() - held())
    if missing:
        raise PrivilegeError(
            f"{what} needs {' and '.join(missing)}: run it as root, or by the systemd unit"
            " (`cedos example unit`)"
        )


def give_up() -> None:
    """Gives up all capabilities of this process for good, those of programs that it starts, too.

    To be called while it has one thread: each has its own. OSError: the kernel refuses.
    """
    nothing = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    version = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    for done in (
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
        _libc.capset(version, nothing),
    ):
        if done != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"capabilities cannot be given up: {os.strerror(number)}")
