"""Two-way calls of 50 packets/s each way through the gateway, while Wi-Fi dies.

In the middle of each call Wi-Fi dies beyond its first hop, without a word: in both directions, or every
second time towards the laptop alone. What is later than 400 ms is lost.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from cedos.errors import EmulationError
from emu.statistics import percentile
from emu.testbed.access import WLAN
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.daemon import RescueDaemon
from emu.workloads.call import Heard, heard

_CALL_S, _DIES_S, _ROUNDS = 12.0, 6.0, 4
_PROGRAM: Final = (sys.executable, "-m", "emu.workloads.call")


def measure(
    laptop: Laptop, daemon: RescueDaemon, user: int, progress: Callable[[str], None]
) -> dict[str, float]:
    """Call as a user whose programs are redirected to the gateway.

    Returns:
        `call_loss_share`, `call_gap_ms`, `call_delay_p95_ms`: of both directions of all calls together,
        the gap the longest of all.
    """
    found: list[Heard] = []
    for number in range(_ROUNDS):
        up, down = _one_call(laptop, user, back_only=bool(number % 2))
        found += [up, down]
        progress(f"call {number + 1}/{_ROUNDS}: up {_shown(up)}; down {_shown(down)}")
        daemon.until_both_live()
        time.sleep(1.0)
    delays = sorted(delay_s for each in found for delay_s in each.delays_s)
    return {
        "call_loss_share": sum(each.lost for each in found) / sum(each.sent for each in found),
        "call_gap_ms": 1e3 * max(each.gap_s for each in found),
        "call_delay_p95_ms": 1e3 * percentile(delays, 0.95),
    }


def _shown(one: Heard) -> str:
    return f"{one.lost} of {one.sent} lost, gap {1e3 * one.gap_s:.0f} ms"


def _one_call(laptop: Laptop, user: int, *, back_only: bool) -> tuple[Heard, Heard]:
    """Return what each end of one call has heard of the other: up, down."""
    up, down = (laptop.directory / f"{end}.json" for end in ("caller", "callee"))
    common = (SERVER, str(_CALL_S))
    with Silence(laptop, WLAN, back_only=back_only).when_told() as cut:
        callee: subprocess.Popen[bytes] = laptop.server.popen(
            *_PROGRAM, "callee", *common, str(down), stdout=subprocess.PIPE
        )
        with callee:
            assert callee.stdout is not None
            callee.stdout.readline()
            caller: subprocess.Popen[bytes] = laptop.client.popen(
                *_PROGRAM, "caller", *common, str(up), "--user", str(user)
            )
            time.sleep(_DIES_S)
            cut()
            if caller.wait(60) or callee.wait(60):
                raise EmulationError("an end of a call failed")
    return heard(up, down), heard(down, up)
