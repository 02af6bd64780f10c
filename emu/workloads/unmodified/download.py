"""One file by curl."""

import subprocess
import time

from emu.testbed.netns import Namespace
from emu.workloads.unmodified.output import watch_output
from emu.workloads.unmodified.watched import HalfWay, Watched, as_user

_LIMIT_S = 90


def download(
    where: Namespace,
    url: str,
    size: int,
    *options: str,
    user: int = 0,
    mptcp: bool = False,
    at: float = 0.3,
    half_way: HalfWay | None = None,
    after_s: float | None = None,
) -> Watched:
    """`half_way` is called once `at` of it is there, or `after_s` seconds after it began."""
    began_s = time.monotonic()
    process: subprocess.Popen[bytes] = where.popen(
        *as_user(user),
        *(("mptcpize", "run") if mptcp else ()),
        *("curl", "-sS", "-m", str(_LIMIT_S), *options, url),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return watch_output(process, began_s, size, at=at, half_way=half_way, after_s=after_s)
