"""Looks for a better access point while a stream that is played needs one (Cedos, V-C).

A host stays with an access point for as long as it hears it, however little that carries: on the paper's
train three stations of 44 brought data, with a look every five seconds nine of them.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from cedos.monitor.bus import SystemBus
from cedos.monitor.providers import screen, wifi_scan

EVERY_S: Final = 5.0


class WifiSearch:
    """Only in the foreground: while somebody is at the screen, as far as logind knows.

    Args:
        wanted: whether Wi-Fi is missed now. While it carries what is played nobody looks: a scan
            interrupts it.
    """

    def __init__(
        self, bus: SystemBus, wanted: Callable[[], bool], every_s: float = EVERY_S
    ) -> None:
        self._bus, self._wanted, self._every_s = bus, wanted, every_s

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                if self._wanted() and await screen.read(self._bus) is not False:
                    await wifi_scan.scan(self._bus)
                await asyncio.sleep(self._every_s)
        finally:
            await self._bus.close()
