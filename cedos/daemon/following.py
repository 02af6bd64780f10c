"""What the objective follows: the battery's level and the data plan's use."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from cedos.config import Config
from cedos.daemon import kept
from cedos.daemon.plan import PlanMeter
from cedos.model import Network
from cedos.monitor.battery import BatteryReader
from cedos.monitor.bus import SystemBus
from cedos.monitor.counters import CounterSource, InterfaceCounters
from cedos.selector.follow import Curves
from cedos.selector.objective import Objective

_FILE = "plan.json"
_WHAT = "the use of the data plan"
_READ_S = 10.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Following:
    """Reads battery and counters every now and then.

    Args:
        config: the plan, and whether anything follows.
        curves: how the exponents go; None: they stay.
        bus: the system bus, None where there is none.
        state: the folder for what survives a restart.
        networks: those of this host now.
        changed: is given the objective after each reading, where it follows anything.
        counters: a test's stand-in.
    """

    def __init__(
        self,
        config: Config,
        curves: Curves | None,
        bus: SystemBus | None,
        state: Path,
        networks: Callable[[], Sequence[Network]],
        changed: Callable[[Objective], None],
        counters: CounterSource | None = None,
    ) -> None:
        self._curves = curves
        self._battery = BatteryReader(bus) if bus is not None and curves is not None else None
        self._file = state / _FILE
        self._networks = networks
        self._changed = changed
        self._counters = counters
        self._meter: PlanMeter | None = None
        if config.plan.metered_bytes is not None:
            self._meter = PlanMeter(config.plan.metered_bytes, config.plan.reset_day, _boot())
            known = kept.read(self._file, _WHAT)
            if known is not None:
                try:
                    self._meter.resume(known)
                except ValueError as error:
                    kept.unusable(self._file, _WHAT, error)

    @property
    def problems(self) -> list[str]:
        """What is degraded, in words."""
        if self._meter is not None and (share := self._meter.used_share(_today())) >= 1.0:
            return [f"the data plan is used up ({share:.0%})"]
        return []

    async def run(self) -> None:
        """Reads until it is cancelled; keeps what was used."""
        if self._meter is None and self._battery is None:
            return
        counters = self._counters or InterfaceCounters()
        try:
            while True:
                await self.read(counters)
                await asyncio.sleep(_READ_S)
        finally:
            counters.close()

    async def read(self, counters: CounterSource) -> None:
        """Reads once."""
        battery = await self._battery.read() if self._battery is not None else None
        share = None
        if (meter := self._meter) is not None:
            for network in self._networks():
                if network.metered and (counted := await counters.read(network.index)):
                    total = counted.received_bytes + counted.sent_bytes
                    meter.observe(network.interface, total, _today())
            share = meter.used_share(_today())
            await asyncio.to_thread(kept.write, self._file, meter.state(), _WHAT)
        if self._curves is not None:
            level = battery.level if battery is not None and battery.discharging else None
            self._changed(self._curves.objective(level, share))


def _today() -> date:
    return date.today()  # the plan goes by the calendar on this host's wall


def _boot() -> str:
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
