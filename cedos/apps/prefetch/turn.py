"""An attempt to fetch something: its conditions and its reports."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from cedos.errors import CedosError
from cedos.model import Label, Urgency

T_co = TypeVar("T_co", covariant=True)

_PROMPT_S = 0.2


class FetchError(CedosError):
    """An item could not be fetched; says which and why."""


class NotThereError(FetchError):
    """An item does not exist, or may not be had: trying again is of no use."""


class Turn:
    """The conditions of one attempt of a fetcher.

    A fetch ahead of time steps back while the application waits for something else: a fetcher waits in
    `turn` between blocks of data.
    """

    def __init__(
        self,
        interface: str | None,
        label: Label,
        report: Callable[[float, float | None], None] = lambda received, size: None,
        clear: Callable[[], bool] = lambda: True,
        connects: Callable[[], None] = lambda: None,
    ) -> None:
        # The network interface to use; None: whatever the host would use.
        self.interface = interface
        # Background where it is ahead of time, foreground where a caller waits (IntNW's labels).
        self.label = label
        self._report = report
        self._clear = clear
        # To be called before each connection that a fetcher begins: it is no other program's.
        self.connects = connects
        self.stopped = False  # the attempt has ended, whatever its fetcher still does

    def received(self, total_bytes: float, size_bytes: float | None = None) -> None:
        """Report the received bytes of the item, and its size if that is known."""
        self._report(total_bytes, size_bytes)

    def hurry(self) -> None:
        """Stop yielding: a caller waits for the item now."""
        self.label = Label(Urgency.FOREGROUND, self.label.bulk)

    async def turn(self) -> None:
        """Wait until the attempt may go on."""
        while self.waits():  # noqa: ASYNC110 - whether it is clear is asked, not told
            await asyncio.sleep(_PROMPT_S)

    def waits(self) -> bool:
        """Return True while the attempt must wait for others."""
        return self.label.urgency is Urgency.BACKGROUND and not self._clear()


class Fetcher(Protocol[T_co]):
    """A fetcher of one item, the same ahead of time and on demand.

    An attempt that ends early is followed by another one on the same object: what was received before
    is for the fetcher to keep. `cedos explain --prefetch` shows its `title`, if it has one.
    """

    async def fetch(self, turn: Turn, /) -> T_co:
        """Fetch the item; any exception is a failure, and `NotThereError` a final one."""
        ...
