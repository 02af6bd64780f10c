"""Open what the daemon needs at its start; go on without what cannot be had.

The method, objective and model of decisions, by the configuration.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from cedos.config import Config, unknown_names
from cedos.controller.config import Choices, ControllerConfig
from cedos.daemon import state_file
from cedos.daemon.budgets.metering import money_per_mb, radios_of
from cedos.errors import HistoryError, HostError, ModelError
from cedos.host.monitor.links import LinkMonitor
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.sizes import UNKNOWN, SizeHistory
from cedos.logs import get_logger
from cedos.model import Budget, Network
from cedos.selector.energy import PowerModel
from cedos.selector.objective import MaxS, MaxSPerE, Objective, WeightedCost
from cedos.storage import model_files
from cedos.storage.history import History
from cedos.storage.usage import Usage
from predictors.completion import CompletionModel as TreeModel

SIZES = "the sizes learned earlier"
# The number of latest flows in the history that show how well networks are predicted.
JUDGED_FLOWS = 1_000
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = get_logger(__name__)


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
    opened = History(path)
    stack.callback(opened.close)
    if opened.notice:
        problems.append(opened.notice)
        _log.warning("history", notice=opened.notice)
    return opened


def usage(path: Path, stack: AsyncExitStack, problems: list[str]) -> Usage:
    """Return what was used; where its file cannot be written, `Usage.problem` says what is kept."""
    try:
        opened = Usage(path, boot())
    except HistoryError as error:
        problems.append(str(error))
        opened = Usage(None, boot(), earlier=path)
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
    except HistoryError as error:
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


def controller_config(
    config: Config, choices: Choices, first_number: int, *, dry_run: bool
) -> ControllerConfig:
    """Return the controller's part of the configuration."""
    steering = config.steering
    return ControllerConfig(
        choices=choices,
        rescue=steering.rescue,
        short_queues=steering.short_queues,
        close_stuck=steering.close_stuck,
        closes_after_s=steering.closes_after_s,
        pacing=config.pacing.controller,
        phone=config.decision.phone,
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


def objective(config: Config) -> Objective:
    decision = config.decision
    match decision.objective:
        case "max-s":
            return MaxS()
        case "max-s-per-e":
            return MaxSPerE()
        case "balanced":
            return WeightedCost(decision.seconds_per_joule).for_phone(decision.phone)


def choices(
    config: Config,
    problems: list[str],
    load: Callable[[Path | None], TreeModel] = model_files.load,
) -> Choices:
    """Return how to decide: by the shipped predictors where others cannot be used; `problems` says so.

    `load` reads the predictors' file.
    """
    try:
        model = load(config.predictors.model_path)
    except ModelError as error:
        if config.predictors.model_path is None:
            raise
        problems.append(f"{error}. Until then the predictors that come with cedos decide")
        _log.warning("the predictors cannot be used", why=str(error))
        model = load(None)
    return Choices(
        objective=objective(config),
        model=model,
        default_size_bytes=int(UNKNOWN.median_bytes),
        redundant=config.decision.redundant,
        price_per_mb=money_per_mb(config),
        power=PowerModel(radios_of(config)),
    )
