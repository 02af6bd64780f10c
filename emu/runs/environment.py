"""The environment of a run: versions, kernel, git state, so that it can be repeated."""

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from emu.repository import ROOT, WRITTEN

_PACKAGES = ("cedos", "pyroute2.minimal", "scikit-learn", "numpy", "pyarrow", "aiohttp", "msgspec")
_PROGRAMS = {
    "mahimahi": ["dpkg-query", "-W", "-f=${Version}", "mahimahi"],
    "nginx": ["nginx", "-v"],
    "curl": ["curl", "--version"],
    "iptables": ["iptables", "--version"],
}


def describe(seed: int | None = None) -> dict[str, Any]:
    """Return the environment as a dictionary for JSON; an unknown value is None."""
    return {
        # Where a folder lies on this machine says nothing elsewhere.
        "arguments": [
            os.path.relpath(each) if each.startswith("/") else each for each in sys.argv[1:]
        ],
        "seed": seed,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "packages": {name: _version(name) for name in _PACKAGES},
        "programs": {name: _output(command) for name, command in _PROGRAMS.items()},
        "git": _git(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output(command: list[str], cwd: Path | None = None) -> str | None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=5, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _git() -> dict[str, Any] | None:
    commit = _output(["git", "rev-parse", "HEAD"], ROOT)
    if commit is None:
        return None
    written = [f":(exclude){each}" for each in WRITTEN]
    status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *written]
    return {"commit": commit, "modified": _output(status, ROOT) is not None}
