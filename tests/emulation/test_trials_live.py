"""A free Wi-Fi that was slow once carries what is fetched again, soon after it is fast."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emu.places.traces import Trace
from emu.testbed.access import INTERFACES, Access
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.daemon import Daemon
from emu.testbed.programs.servers import Servers

WIFI, CELLULAR = INTERFACES
SLOW_S, LIMIT_S = 12.0, 75.0
CONFIGURATION = f"""
    [networks.{INTERFACES[CELLULAR]}]
    kind = "cellular"
    metered = false
    [probes]
    target = "{SERVER}"
    dns = false
    [providers]
    host = false
"""


def steps(*parts: tuple[float, float]) -> Trace:
    """A trace of parts, each with its rate in bit/s and its length in s."""
    began_ms, lines = 0.0, []
    for rate_bps, length_s in parts:
        each_ms = 1500 * 8 / rate_bps * 1000
        lines += [began_ms + n * each_ms for n in range(1, int(length_s * 1000 / each_ms) + 1)]
        began_ms += length_s * 1000
    return Trace.parse("\n".join(f"{at_ms:.0f}" for at_ms in lines).encode())


def fetches(laptop: Laptop, until: Callable[[list[str]], bool]) -> list[str]:
    """From which address 300 kB were fetched, each time."""
    command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{local_ip}", "--max-time", "20"]
    found: list[str] = []
    while not until(found):
        found.append(laptop.client.run(*command, f"http://{SERVER}/bytes/300000").stdout)
        time.sleep(0.1)
    return found


@pytest.mark.usefixtures("registry")
def test_wifi_that_was_slow_is_used_again_when_it_is_fast(tmp_path: Path) -> None:
    wifi, cellular = steps((1.2e6, SLOW_S), (40e6, 2 * LIMIT_S)), Trace.constant(16e6)
    with (
        Laptop(
            Access(WIFI, wifi, wifi, 0.030), Access(CELLULAR, cellular, cellular, 0.072)
        ) as laptop,
        Servers(laptop),
    ):
        daemon = Daemon(laptop.client, tmp_path, CONFIGURATION)
        daemon.start()
        try:
            daemon.wait_for(lambda client: client.status().default.network is not None, 10.0)
            began_s = time.monotonic()
            slow = fetches(laptop, lambda _: time.monotonic() > began_s + SLOW_S - 3.0)
            later = fetches(
                laptop,
                lambda found: found[-5:] == 5 * slow[:1] or time.monotonic() > began_s + LIMIT_S,
            )
        finally:
            daemon.stop()
    assert len(set(slow[2:])) == 1
    assert slow[2] != slow[0], "the phone carried them"
    assert later[-5:] == 5 * slow[:1], "it was never used again"
    assert "to show how fast it is by now" in daemon.log.read_text()
