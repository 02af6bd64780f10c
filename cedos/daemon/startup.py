"""Open what the daemon needs at its start; go on without what cannot be had."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from cedos.config import Config, unknown_names
from cedos.config.sections import ProbesConfig
from cedos.controller.config import Choices, ControllerConfig, ProbingConfig
from cedos.daemon import state_file
from cedos.errors import HistoryError, HostError
from cedos.host.monitor.networks.links import LinkMonitor
from cedos.host.monitor.probing.result import TRAIN_PACKET_BYTES, TRAIN_PACKETS, ProbeKind
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.sizes import SizeHistory
from cedos.model import Budget, Network
from cedos.storage.history import History
from cedos.storage.usage import Usage

SIZES = "the sizes learned earlier"
# The number of latest flows in the history that show how well networks are predicted.
JUDGED_FLOWS = 1_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_log = structlog.get_logger(__name__)


def need_two(links: LinkMonitor) -> None:
    """Raise HostError if there are fewer than two networks to choose from."""
    if sum(network.up for network in links.networks()) < 2:
        raise HostError(
            f"there is no choice with fewer than two usable networks. Usable now: {usable_text(links)}."
            " Connect another one (a phone tethered by USB, say), or see `cedos doctor`"
        )


def usable_text(links: LinkMonitor) -> str:
    """Return the usable networks, and what others lack: "wlan0; not usable: lte0 (no default route)"."""
    networks = links.networks()
    usable = ", ".join(network.name for network in networks if network.up) or "none"
    others = ", ".join(
        f"{network.name} ({network.lacks})" for network in networks if not network.up
    )
    return f"{usable}; not usable: {others}" if others else usable


def history(
    config: Config, path: Path, stack: AsyncExitStack, problems: list[str]
) -> History | None:
    """Return the history; None where nothing is to be kept."""
    if not config.history.enabled:
        return None
    opened = History(config.history.path or path)
    stack.callback(opened.close)
    if opened.notice:
        problems.append(opened.notice)
        _log.warning("history", notice=opened.notice)
    return opened


def usage(path: Path, stack: AsyncExitStack, problems: list[str]) -> Usage:
    """Return what was used; where its file cannot be had, only what is used from now on."""
    try:
        opened = Usage(path, boot())
    except HistoryError as error:
        problems.append(f"{error}. Budgets count only what is used from now on")
        opened = Usage(None, boot())
    stack.callback(opened.close)
    return opened


def boot() -> str:
    """Tell this start of the host from others; "": the kernel does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def sizes(path: Path) -> SizeHistory:
    """Return the sizes learned earlier; none where they cannot be used."""
    try:
        if (state := state_file.read(path, SIZES)) is not None:
            return SizeHistory.from_state(state)
    except ValueError as error:
        state_file.unusable(path, SIZES, error)
    return SizeHistory()


def first_packets(config: Config, stack: AsyncExitStack, problems: list[str]) -> Capture | None:
    """Return the capture of flows' first packets; without it sizes are known when flows end."""
    if not config.profiler.enabled:
        return None
    try:
        capture = open_capture()
    except HostError as error:
        problems.append(f"{error}. Sizes of transfers are known only when flows end")
        return None
    stack.callback(capture.close)
    return capture


def probing_config(probes: ProbesConfig) -> ProbingConfig:
    """Return the controller's part of `[probes]`."""
    kinds = [ProbeKind.DNS.value] if probes.dns else []
    if probes.server:
        kinds.append(ProbeKind.UDP_TRAIN.value)
    return ProbingConfig(
        probes.enabled,
        tuple(kinds),
        bool(probes.server),
        probes.rule,
        probes.interval_s,
        probes.full_interval_s,
        probes.threshold,
        train_bytes=TRAIN_PACKETS * TRAIN_PACKET_BYTES if probes.server else 0,
    )


def controller_config(
    config: Config, choices: Choices, first_number: int, *, dry_run: bool, wakes: bool = False
) -> ControllerConfig:
    """Return the controller's part of the configuration; `wakes`: this host can be woken."""
    steering, decision = config.steering, config.decision
    return ControllerConfig(
        choices=choices,
        interval_s=decision.reevaluate_interval_s,
        idle_interval_s=decision.idle_interval_s,
        rescue=steering.rescue and steering.iptables,
        short_queues=steering.short_queues,
        close_stuck=steering.close_stuck,
        closes_after_s=steering.closes_after_s,
        close_stuck_ports=frozenset(steering.close_stuck_ports),
        unable_to_bar="" if steering.iptables else "[steering] iptables = true would be needed",
        wake_above_percent=config.transfers.wake_battery_percent if wakes else None,
        probing=probing_config(config.probes),
        pacing=config.pacing.controller,
        phone=decision.phone,
        dry_run=dry_run,
        first_number=first_number,
    )


class NamedNetworks:
    """The configured names that no network has had since the daemon's start: a phone may come later.

    `budgets` are those of now.
    """

    def __init__(self, config: Config, budgets: Callable[[], Iterable[Budget]]) -> None:
        self._config = config
        self._budgets = budgets
        self._interfaces: set[str] = set()
        self._names: set[str] = set()
        self._told: set[str] = set()

    def networks_changed(self, networks: Sequence[Network]) -> None:
        """Take all networks; what is missing goes to the log, once."""
        self._interfaces |= {network.interface for network in networks}
        self._names |= {network.name for network in networks}
        for problem in self.problems:
            if problem not in self._told:
                self._told.add(problem)
                _log.warning(problem)

    @property
    def problems(self) -> list[str]:
        return unknown_names(
            self._config, self._budgets(), interfaces=self._interfaces, networks=self._names
        )
