"""The facts from the running daemon: it sees all networks, and counts what all programs spend."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cedos.api.budgets import BudgetMessage
from cedos.api.client import ControlClient
from cedos.api.messages import NetworkMessage
from cedos.directories import directories
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from cedos.prefetch.surroundings import NetworkFacts, View
from cedos.radio_file import radios
from cedos.selector.budget import PROHIBITIVE, Resource, reduced
from cedos.selector.budget_prices import Prices, prices
from cedos.selector.radio import Radio

_TECHNOLOGIES = {
    NetworkKind.WIFI: ("wifi",),
    NetworkKind.ETHERNET: ("wifi",),
    NetworkKind.CELLULAR: ("lte", "3g", "cellular"),
}
_RATES = ("past10_bps", "past5_bps", "past1_bps")


@dataclass(frozen=True, slots=True)
class _Said:
    """A price as the daemon said it; what does not fit into what is left has none."""

    rate: float
    left: float

    def rate_for(self, amount: float, duration_s: float) -> float:
        """See `selector.budget_controller.Quote`."""
        return self.rate if amount <= self.left else PROHIBITIVE


class DaemonSurroundings:
    """Asks the daemon; see `Surroundings`.

    Args:
        socket: its control socket; None: where it is by default.
        device: whose radios joules are reckoned with (`cedos/radios.toml`).

    Raises:
        ConfigError: there is no such device.
    """

    def __init__(self, socket: Path | None = None, device: str = "delphi") -> None:
        self._client = ControlClient(socket or directories().socket, timeout_s=2.0)
        known = radios()
        if device not in known:
            raise ConfigError(
                f"there is no device {device!r}; there are {', '.join(sorted(known))}"
            )
        self._radios: dict[NetworkKind, Radio] = {}
        for kind, names in _TECHNOLOGIES.items():
            found = [known[device][name] for name in names if name in known[device]]
            self._radios[kind] = (found or list(known[device].values()))[0]

    async def look(self) -> View:
        """See `Surroundings.look`; DaemonUnreachableError where no daemon answers."""
        networks, budgets = await asyncio.to_thread(self._ask)
        return View(
            [self._facts(network) for network in networks],
            prices_of(budgets, [network.name for network in networks if network.metered]),
        )

    def _ask(self) -> tuple[list[NetworkMessage], list[BudgetMessage]]:
        return self._client.networks(), self._client.budgets()

    def _facts(self, said: NetworkMessage) -> NetworkFacts:
        def known(name: str) -> float | None:
            indicator = said.indicators.get(name)
            return indicator.value if indicator is not None else None

        rates = [rate for rate in map(known, _RATES) if rate]
        captive = bool(known("captive"))
        return NetworkFacts(
            said.name,
            said.interface,
            said.kind,
            # Behind a portal nothing comes that was asked for.
            said.up and not captive and known("available") != 0.0,
            said.metered,
            self._radios[said.kind],
            max(rates, default=None),
            known("rtt_s"),
        )


def prices_of(budgets: Sequence[BudgetMessage], metered: Sequence[str]) -> Prices:
    """Prices from what the daemon says of its budgets; one that has none now is free."""
    quoted = []
    for said in budgets:
        left = reduced(said.supply - said.spent, said.supply)
        if said.spent_up:
            quote = _Said(PROHIBITIVE, 0.0)
        elif said.s_per_unit is not None:
            quote = _Said(said.s_per_unit, max(left, 0.0))
        else:
            continue  # over, suspended, or nobody prices it
        quoted.append((Resource(said.resource), said.networks, quote))
    return prices(quoted, metered)
