"""The facts that prefetching needs and the reports that it makes, from and to the daemon.

The daemon sees all networks, and counts what all programs spend. Once a second a program reports what it
has open and has used, so that budgets are paced for it; the answer has networks, radios and prices.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

from cedos.api.client import ControlClient
from cedos.api.messages import NetworkMessage
from cedos.api.programs import PriceMessage, RadioMessage
from cedos.budget_kinds import Resource
from cedos.config.directories import directories
from cedos.controller.hint import MOST_ITEMS, PrefetchReport, StartedMessage, TakingMessage
from cedos.errors import CedosError
from cedos.model import Label, NetworkKind, Urgency
from cedos.selector.budgets.controller import PROHIBITIVE, Step, SteppedQuote
from cedos.selector.budgets.prices import Prices, prices
from cedos.selector.energy import Radio
from cedos.selector.prefetch.outlook import Path as NetworkPath
from cedos.selector.prefetch.queue import Plan, Queue, Taking, ways

T_co = TypeVar("T_co", covariant=True)
_PROMPT_S = 0.2
# The largest request, below the daemon's limit.
_MOST_BYTES: Final = 60_000
_RATES = ("past10_bps", "past5_bps", "past1_bps", "delivery_down_bps")


@dataclass(frozen=True, slots=True)
class News:
    """The changes since the last report."""

    networks: tuple[str, ...] = ()  # those that bytes are told by, in order
    waiting: Sequence[Sequence[Taking]] = ()  # per open item its ways, leaving it to demand first
    # The ways of what was begun, with the network chosen.
    started: Sequence[tuple[Sequence[Taking], int]] = ()
    used_bytes: tuple[float, ...] = ()  # what was received for items of this program, by network
    used_j: float = 0.0  # joules of that, on an awake radio


class Ledger:
    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def add(self, network: str | None, received_bytes: float) -> None:
        """Count received bytes of an item; None: on demand, over an unknown network."""
        if network is not None and received_bytes > 0.0:
            self._used[network] = self._used.get(network, 0.0) + received_bytes

    def news(
        self,
        queue: Queue,
        now_s: float,
        paths: Sequence[NetworkPath],
        prices: Prices,
        plan: Plan,
        before: Sequence[tuple[Hashable, Sequence[Taking]]],
    ) -> News:
        """Return the news of a round whose plan was carried out; `before`: the `ways` before it."""
        names = tuple([path.name for path in paths])
        used = tuple([self._used.pop(name, 0.0) for name in names])
        self._used.clear()
        known = dict(before)
        started = []
        # Of each start tell which of its options was taken, and which others it had.
        for key, network in plan.starts:
            options = known.get(key, ())
            at = names.index(network)
            place = next((n for n, one in enumerate(options) if one.network == at), None)
            if place is not None:
                started.append((options, place))
        return News(
            networks=names,
            waiting=[options for _, options in ways(queue, now_s, paths, prices)],
            started=started,
            used_bytes=used,
            used_j=sum(
                path.active_j(8.0 * each / path.rate_bps, each)
                for path, each in zip(paths, used, strict=True)
                if each > 0.0 and path.rate_bps > 0.0
            ),
        )


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """The facts of one network now; unknown ones are None."""

    name: str  # what budgets know it by
    interface: str  # where to send
    kind: NetworkKind  # decides what it is taken for before anything is known
    up: bool  # whether packets can leave
    metered: bool  # whether its bytes count against a data cap
    radio: Radio  # its power model
    rate_bps: float | None = None  # what it carried of late, towards the host
    rtt_s: float | None = None  # its round-trip time
    shares: Mapping[str, float] | None = None  # in which states its radio is found, on average
    idle_s: float | None = None  # seconds since a program of this host used its radio


@dataclass(frozen=True, slots=True)
class View:
    networks: Sequence[NetworkFacts]
    prices: Prices


class Surroundings(Protocol):
    """The networks and prices around an application."""

    async def view(self) -> View:
        """Return the facts now. CedosError: they are unknown, and nothing is prefetched."""
        ...

    def report(self, news: News) -> None:
        """Take the changes since the last view; called after each view, in the loop."""
        ...


class DaemonSurroundings:
    """The facts of the daemon, under the name `program` (None: the name of the process)."""

    def __init__(self, socket: Path | None = None, program: str | None = None) -> None:
        self._client = ControlClient(socket or directories().socket, timeout_s=2.0)
        self._program = _text(program or Path(sys.argv[0]).name or "a program", 64)
        self._news = News()

    async def view(self) -> View:
        """Ask the daemon. DaemonUnreachableError: no daemon answers."""
        request = self._request()
        answer = await asyncio.to_thread(self._client.prefetching, request)
        # What has happened is not to be said twice; what is open stays open.
        self._news = replace(self._news, started=(), used_bytes=(), used_j=0.0)
        return View(
            [_facts(network, answer.radios[network.name]) for network in answer.networks],
            prices_of(
                answer.prices, [network.name for network in answer.networks if network.metered]
            ),
        )

    def report(self, news: News) -> None:
        """Keep the news for the next question."""
        self._news = news

    def _request(self) -> PrefetchReport:
        news, most = self._news, MOST_ITEMS
        while True:
            request = PrefetchReport(
                program=self._program,
                pid=os.getpid(),
                networks=list(news.networks),
                waiting=[_takings(each) for each in news.waiting[:most]],
                started=[
                    StartedMessage(ways=_takings(options), chosen=place)
                    for options, place in news.started[:most]
                ],
                used_bytes=list(news.used_bytes),
                used_j=news.used_j,
            )
            if most <= 1 or len(msgspec.json.encode(request)) <= _MOST_BYTES:
                return request
            most //= 2


def prices_of(messages: Sequence[PriceMessage], metered: Sequence[str]) -> Prices:
    """Return prices of the daemon's budgets; a budget without a price now is left out."""
    return prices(
        [
            (
                Resource(each.resource),
                each.networks,
                SteppedQuote(
                    PROHIBITIVE if each.s_per_unit is None else each.s_per_unit,
                    [Step(*step) for step in each.steps],
                ),
            )
            for each in messages
        ],
        metered,
    )


def _facts(network: NetworkMessage, radio: RadioMessage) -> NetworkFacts:
    def known(name: str) -> float | None:
        indicator = network.indicators.get(name)
        return indicator.value if indicator is not None else None

    rates = [rate for rate in map(known, _RATES) if rate]
    return NetworkFacts(
        network.name,
        network.interface,
        network.kind,
        # (What is dead or captive is not available.)
        network.up and not network.barred and known("available") != 0.0,
        network.metered,
        msgspec.convert(radio.radio, Radio),
        max(rates, default=None),
        known("rtt_s"),
        radio.shares,
        radio.idle_s,
    )


def _takings(options: Sequence[Taking]) -> list[TakingMessage]:
    # Three digits are enough, and a third of the bytes.
    return [
        TakingMessage(
            float(f"{each.time_s:.3g}"),
            float(f"{each.energy_j:.3g}"),
            [float(f"{sent:.3g}") for sent in each.sent],
        )
        for each in options
    ]


def _text(name: str, most: int) -> str:
    """Replace lone surrogates, which JSON cannot carry, and shorten."""
    return name[:most].encode(errors="replace").decode()


class FetchError(CedosError):
    """An item could not be fetched; says which and why."""


class NotThereError(FetchError):
    """An item does not exist, or may not be had: trying again is of no use."""


class Turn:
    """The conditions of one attempt of a fetcher.

    A fetch ahead of time steps back while the application waits for something else: a fetcher waits in
    `turn` between blocks of data. A fetcher that binds its sockets to the turn's interface is under no
    rule of the user: one that must be asks the daemon for the rules (`ControlClient.rules`) itself.
    """

    def __init__(
        self,
        interface: str | None,
        label: Label,
        report: Callable[[float, float | None], None] = lambda received, size: None,
        clear: Callable[[], bool] = lambda: True,
    ) -> None:
        # The network interface to use; None: whatever the host would use.
        self.interface = interface
        # Background where it is ahead of time, foreground where a caller waits (IntNW's labels).
        self.label = label
        self._report = report
        self._clear = clear
        self.stopped = False  # the attempt has ended, whatever its fetcher still does

    def on_received(self, total_bytes: float, size_bytes: float | None = None) -> None:
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
    is for the fetcher to keep.
    """

    async def fetch(self, turn: Turn, /) -> T_co:
        """Fetch the item; any exception is a failure, and `NotThereError` a final one."""
        ...
