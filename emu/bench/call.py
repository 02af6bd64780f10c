"""A two-way call of 50 packets/s each way while Wi-Fi dies: plain UDP, and through the gateway.

On an emulated laptop (Wi-Fi 24 Mbit/s, 20 ms; LTE 16 Mbit/s, 50 ms; Mahimahi) with a daemon. In the
middle of each call Wi-Fi dies beyond its first hop, without a word: in both directions, or every second
time towards the laptop alone. What is later than 400 ms is lost. Busy: a download goes through the
gateway at the same time.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.bench.rescue import Bench as Cutter
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.gateway import PROXY_PORT, Gatewayed
from emu.testbed.programs.rescue_laptop import RescueDaemon, put_on_time
from emu.testbed.programs.servers import Servers
from emu.workloads.call import Heard, heard

NAME = "call"

_CALL_S, _DIES_S, _ROUNDS = 12.0, 6.0, 4
_WIFI = Access(NetworkKind.WIFI, Trace.constant(10e6), Trace.constant(24e6), 0.020)
_LTE = Access(NetworkKind.CELLULAR, Trace.constant(8e6), Trace.constant(16e6), 0.050)
_PLAIN: Final = {"wifi_call": "wlan0", "lte_call": "lte0"}
_USER: Final = 65_534
_GATEWAY: Final[dict[str, tuple[str, ...]]] = {
    "call": (),
    "doubled_call": ("--udp", "doubled"),
    "redirected_call": ("--redirect", str(_USER)),
}
_BULK_BYTES: Final = 400_000_000


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure for about five minutes.

    Returns:
        `call_loss_share`, `call_gap_ms`, `call_delay_p95_ms`: through the gateway, of both directions
        of all calls together, the gap the longest of all. With `doubled_` in front: over both networks
        at once; with `busy_`, beside a download; with `redirected_`, of a program that knows of no proxy;
        with `wifi_` and `lte_`: plain UDP on one network.

    Raises:
        EmulationError: the testbed or the daemon.
    """
    figures: dict[str, float] = {}
    with _emulated() as cutter:
        for name, interface in _PLAIN.items():
            figures |= _calls(cutter, ("--interface", interface), name, progress)
    for name, options in _GATEWAY.items():
        with _emulated() as cutter:
            variables = {"CEDOS_RUNTIME_DIR": cutter.daemon.environment["CEDOS_RUNTIME_DIR"]}
            with Gatewayed(cutter.laptop, cutter.laptop.directory, variables, options):
                user = _USER if "--redirect" in options else None
                figures |= through_gateway(cutter, progress, name, user=user)
                if not options:
                    figures |= through_gateway(cutter, progress, f"busy_{name}", busy=True)
    return figures


def through_gateway(
    cutter: Cutter,
    progress: Callable[[str], None],
    name: str = "call",
    *,
    busy: bool = False,
    user: int | None = None,
) -> dict[str, float]:
    """Call on a laptop that has a gateway's proxy, and a web server to be `busy` with.

    The figures' keys begin with `name`. `user`: whose programs are redirected, and who calls; without,
    the caller asks the proxy by SOCKS 5.
    """
    way = ("--user", str(user)) if user is not None else ("--socks", str(PROXY_PORT))
    with _busy(cutter.laptop) if busy else nullcontext():
        return _calls(cutter, way, name, progress)


@contextmanager
def _busy(laptop: Laptop) -> Iterator[None]:
    """Load the laptop with a download that does not end by itself."""
    bulk: subprocess.Popen[bytes] = laptop.client.popen(
        *("curl", "-sS", "-o", "/dev/null", "--proxy", f"socks5h://127.0.0.1:{PROXY_PORT}"),
        f"http://{SERVER}/bytes/{_BULK_BYTES}",
    )
    try:
        yield
        if bulk.poll() is not None:
            raise EmulationError("the download beside the calls has ended")
    finally:
        bulk.kill()
        bulk.wait()


@contextmanager
def _emulated() -> Iterator[Cutter]:
    with Laptop(_WIFI, _LTE) as laptop, Servers(laptop):
        put_on_time(laptop)
        daemon = RescueDaemon(laptop, bpf=True, rescue=True)
        daemon.start()
        try:
            yield Cutter(laptop, daemon, _LTE.rtt_s)
        finally:
            daemon.stop()


def _calls(
    cutter: Cutter, way: tuple[str, ...], name: str, progress: Callable[[str], None]
) -> dict[str, float]:
    found: list[Heard] = []
    for number in range(_ROUNDS):
        both = _call(cutter, way, back_only=bool(number % 2))
        found += both
        shown = ", ".join(
            f"{each.lost} of {each.sent} lost, gap {1e3 * each.gap_s:.0f} ms" for each in both
        )
        progress(f"{name} {number + 1}/{_ROUNDS}: up {shown.replace(' ms,', ' ms; down')}")
        cutter.daemon.until_both_live()
        time.sleep(1.0)
    delays = sorted(delay_s for each in found for delay_s in each.delays_s)
    return {
        f"{name}_loss_share": sum(each.lost for each in found) / sum(each.sent for each in found),
        f"{name}_gap_ms": 1e3 * max(each.gap_s for each in found),
        f"{name}_delay_p95_ms": 1e3 * delays[int(0.95 * (len(delays) - 1))],
    }


def _call(cutter: Cutter, way: tuple[str, ...], *, back_only: bool) -> tuple[Heard, Heard]:
    """Return what each end of one call has heard of the other: up, down."""
    laptop = cutter.laptop
    up, down = (laptop.directory / f"{end}.json" for end in ("caller", "callee"))
    program = (sys.executable, "-m", "emu.workloads.call")
    with cutter.cut_when_told("wlan0", back_only=back_only) as cut:
        callee: subprocess.Popen[bytes] = laptop.server.popen(
            *program, "callee", SERVER, str(_CALL_S), str(down), stdout=subprocess.PIPE
        )
        with callee:
            assert callee.stdout is not None
            callee.stdout.readline()
            caller: subprocess.Popen[bytes] = laptop.client.popen(
                *program, "caller", SERVER, str(_CALL_S), str(up), *way
            )
            time.sleep(_DIES_S)
            cut()
            if caller.wait(60) or callee.wait(60):
                raise EmulationError("an end of a call failed")
    return heard(up, down), heard(down, up)


if __name__ == "__main__":
    print(run(lambda line: print(line, file=sys.stderr)))
