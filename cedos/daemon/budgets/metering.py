"""Meter all programs: bytes by the interfaces' counters, joules of the radios by the traffic."""

from collections.abc import Mapping, Sequence

from cedos.budget_kinds import FREE, HELPED, METERED, PAID, RADIO, RADIOS, Tariff
from cedos.config import Config
from cedos.errors import ConfigError
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Network, NetworkKind
from cedos.selector.energy import Radio, RadioWatch
from cedos.storage.model_files import radios
from cedos.storage.usage import Counter, Usage


def radios_of(config: Config) -> dict[NetworkKind, Radio]:
    """Return the configured radios; ConfigError where there are no such ones, with those there are."""
    energy = config.energy
    known = radios(energy.file)
    if energy.device not in known:
        raise ConfigError(f'[energy] device = "{energy.device}": there are {", ".join(known)}')
    found = {}
    for kind, technology in (
        (NetworkKind.CELLULAR, energy.cellular),
        (NetworkKind.WIFI, energy.wifi),
        (NetworkKind.ETHERNET, energy.wifi),
        (NetworkKind.HELPER, energy.wifi),
    ):
        if technology not in known[energy.device]:
            there = ", ".join(known[energy.device])
            raise ConfigError(f'[energy] "{technology}": {energy.device} has {there}')
        found[kind] = known[energy.device][technology]
    return found


def money_per_mb(config: Config) -> dict[str, float]:
    """Return what networks cost, by name, if the configuration says so."""
    return {
        network.name or interface: network.money_per_mb
        for interface, network in config.networks.items()
        if network.money_per_mb is not None
    }


class Metering:
    """Turns counters into odometers.

    Args:
        present: the interfaces there are at the start: what these carried before the first start of
            all is not ours to count.
    """

    def __init__(
        self,
        usage: Usage,
        boot: str,
        present: Sequence[Network],
        radios: Mapping[NetworkKind, Radio],
        money_per_mb: Mapping[str, float],
    ) -> None:
        self._usage = usage
        self._boot = boot
        self._strangers = set() if usage.counters else {network.index for network in present}
        self._radios = radios
        self._watches: dict[str, tuple[NetworkKind, RadioWatch, float]] = {}
        self._tariff = Tariff(money_per_mb)
        # By helper the counters of the last look; by interface what its helpers carried since then.
        self._helped: dict[str, Counters] = {}
        self._beside: dict[tuple[int, str], int] = {}

    def on_counters(self, network: Network, counters: Counters, now_s: float) -> None:
        """Take an interface's counters, or the daemon's own of a helper.

        `now_s`: of a clock that does not jump.
        """
        if network.kind is NetworkKind.HELPER:
            self._on_helper(network, counters)
            return
        down = self._difference(network, "down", counters.received_bytes)
        up = self._difference(network, "up", counters.sent_bytes)
        if down + up:
            kind = METERED if network.metered else FREE
            self._usage.add(f"{kind}{network.name}", down + up)
        self._radio(network, up, down, now_s)

    def _on_helper(self, helper: Network, counters: Counters) -> None:
        before = self._helped.get(helper.name, Counters(0, 0))
        self._helped[helper.name] = counters
        down = counters.received_bytes - before.received_bytes
        up = counters.sent_bytes - before.sent_bytes
        if down + up:
            self._usage.add(f"{HELPED}{helper.name}", down + up)
            self._usage.add(PAID, (down + up) * helper.money_per_mb / 1e6)
        for way, risen in (("down", down), ("up", up)):
            place = helper.index, way
            self._beside[place] = self._beside.get(place, 0) + risen

    def _difference(self, network: Network, way: str, value: int) -> int:
        now = Counter(self._boot, network.index, value)
        known = network.index not in self._strangers
        risen = self._usage.rise(way, now, counted_from_start=known)
        # What helpers carried over the same interface is counted as theirs.
        place = network.index, way
        helped = min(risen, self._beside.get(place, 0))
        if helped:
            self._beside[place] -= helped
        return risen - helped

    def _radio(self, network: Network, up: int, down: int, now_s: float) -> None:
        kind, watch, before_j = self._watches.get(network.name, (None, None, 0.0))
        if watch is None or kind is not network.kind:
            watch, before_j = RadioWatch(self._radios[network.kind]), 0.0
        watch.add_bytes(now_s, up, down)
        joules = watch.energy_j(now_s)
        for key in (RADIOS, f"{RADIO}{network.name}"):
            self._usage.add(key, joules - before_j)
        self._watches[network.name] = (network.kind, watch, joules)

    def shares(self, network: str, now_s: float) -> dict[str, float]:
        """Return the share of time that a network's radio spent in each state."""
        known = self._watches.get(network)
        return known[1].shares(now_s) if known else {}

    def idle_s(self, network: str, now_s: float) -> float | None:
        """Return seconds since a network's radio was last used; None: never, as far as is known."""
        known = self._watches.get(network)
        return known[1].idle_s(now_s) if known else None

    def measure_use(self, budget: Budget, begin_s: float) -> float:
        """Return the units of a budget that were used since an instant; not for a battery's."""
        meter = budget.resource.meter
        return meter.measure_use(self._usage, budget.networks, begin_s, self._tariff)
