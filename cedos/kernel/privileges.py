"""Which of the two capabilities this process has; the daemon needs both, and nothing else."""

from pathlib import Path
from typing import Final

from cedos.errors import PrivilegeError

NEEDED: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
_STATUS: Final = Path("/proc/self/status")


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
