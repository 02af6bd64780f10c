"""What moves a budget's price: one interface for Odyssey's feedback and for ours."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Option(NamedTuple):
    """One way to carry something out: its cost in seconds without this resource, and its units."""

    cost_s: float
    amount: float


class Quote(Protocol):
    """The price at one instant; cheap to ask, as every decision does."""

    @property
    def rate(self) -> float:
        """Seconds per unit while nothing is contemplated."""

    def rate_for(self, amount: float, duration_s: float) -> float:
        """Seconds per unit if `amount` were spent over `duration_s` from now on.

        `budget.PROHIBITIVE` where so much may not be spent.
        """


class Controller(Protocol):
    """Keeps one budget through one period. Instants are seconds of any one clock.

    No clock is trusted: an instant before the last one is taken as it is, and teaches nothing.
    """

    @property
    def name(self) -> str:
        """What configurations and records call it."""

    def observe(self, now_s: float, left: float) -> None:
        """Takes what is measured to be left, by whomever the rest was used."""

    def offered(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        """Takes a choice that has come up, with what was chosen."""

    def waiting(self, choices: Sequence[Sequence[Option]]) -> None:
        """Takes all choices that are open for longer, such as what could be prefetched; once each."""

    def foreseen(self, amount: float) -> None:
        """Takes that so much of what is observed next was used for what was `waiting`: no habit."""

    def changed(self, now_s: float, supply: float, ends_s: float) -> None:
        """Takes another supply for this period, or another end of it."""

    def quote(self, now_s: float) -> Quote: ...

    def spare(self, now_s: float, left: float, supply: float) -> float:
        """Units that choices may use, of so many that are left of a supply larger than this one's.

        Where units are bought one by one: of all that may still be bought, not of the one in use.
        """

    def state(self) -> dict[str, Any]:
        """What it has learned that is of use to later periods, as plain data for JSON."""


class MakeController(Protocol):
    """Makes a controller for a period; both classes of controllers are such."""

    def __call__(
        self,
        supply: float,
        begins_s: float,
        ends_s: float,
        *,
        now_s: float | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> Controller:
        """`learned` is an earlier period's `Controller.state`, ValueError where it is none."""
