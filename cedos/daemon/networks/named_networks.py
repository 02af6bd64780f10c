"""Check that the interfaces and networks that the configuration names have been seen."""

from collections.abc import Callable, Iterable, Sequence

import structlog

from cedos.config import Config, unknown_names
from cedos.model import Budget, Network

_log = structlog.get_logger(__name__)


class NamedNetworks:
    """Tells of names that no network has had since the daemon's start: a phone may come later.

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
