"""Sysctls of the calling thread's network namespace, and the names of those that several rooms know.

In a sysctl's name `/` stands for a dot of an interface's name, as sysctl(8) writes it.
"""

import errno
import os
from pathlib import Path
from typing import Final

MPTCP_ENABLED: Final = "net.mptcp.enabled"
# Up to Linux 6.14 a number (0 kernel, 1 userspace), since then a name; some kernels have both.
MPTCP_PATH_MANAGER: Final = "net.mptcp.path_manager"
MPTCP_PM_TYPE: Final = "net.mptcp.pm_type"

_ROOT: Final = Path("/proc/sys")
_NOWHERE: Final = {"", ".", ".."}
_AS_PATH: Final = str.maketrans("./", "/.")


def read(name: str) -> str | None:
    """Return a sysctl's value without its line's end; None if this kernel does not have it."""
    try:
        return (_ROOT / name.translate(_AS_PATH)).read_text().rstrip("\n")
    except FileNotFoundError:
        return None


def write(name: str, value: str) -> None:
    """Write an existing sysctl below /proc/sys. Errors: OSError."""
    path = name.translate(_AS_PATH)
    if "\0" in path or not _NOWHERE.isdisjoint(path.split("/")):
        raise FileNotFoundError(errno.ENOENT, "no such sysctl", name)
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(_ROOT / path, flags)
    try:
        os.write(file, f"{value}\n".encode())
    finally:
        os.close(file)
