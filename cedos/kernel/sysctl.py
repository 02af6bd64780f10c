"""Sysctls of the calling thread's network namespace, and the names of those that several rooms know."""

from pathlib import Path
from typing import Final

MPTCP_ENABLED: Final = "net.mptcp.enabled"
# Up to Linux 6.14 a number (0 kernel, 1 userspace), since then a name; some kernels have both.
MPTCP_PATH_MANAGER: Final = "net.mptcp.path_manager"
MPTCP_PM_TYPE: Final = "net.mptcp.pm_type"

_ROOT: Final = Path("/proc/sys")


def read(name: str) -> str | None:
    """A sysctl's value without its line's end; None where this kernel does not have it."""
    try:
        return (_ROOT / name.replace(".", "/")).read_text().rstrip("\n")
    except FileNotFoundError:
        return None


def write(name: str, value: str) -> None:
    (_ROOT / name.replace(".", "/")).write_text(f"{value}\n")
