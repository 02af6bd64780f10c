"""The facts from the running daemon: it sees all networks, and counts what all programs spend.

One question a second: it tells what this program has open and has used, so that budgets are paced for
it and people can see it, and brings networks, radios and prices.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from cedos.api.client import ControlClient
from cedos.api.messages import NetworkMessage
from cedos.api.programs import (
    MOST_ITEMS,
    ItemMessage,
    PrefetchingRequest,
    PriceMessage,
    RadioMessage,
    StartedMessage,
    TakingMessage,
)
from cedos.config.directories import directories
from cedos.model import Resource
from cedos.prefetch.news import News, PrefetchedItem
from cedos.prefetch.surroundings import NetworkFacts, View
from cedos.selector.budgets.prices import Prices, prices
from cedos.selector.budgets.steps import Step, SteppedQuote
from cedos.selector.budgets.supply import PROHIBITIVE
from cedos.selector.energy.radio import Radio
from cedos.selector.prefetch.choices import Taking

_MOST_BYTES: Final = 60_000
"""A request is smaller than the daemon's limit."""

_NO_FIGURE_S: Final = 1e12
"""What is out of reach has a price beyond all measure, which says nothing to people."""

_RATES = ("past10_bps", "past5_bps", "past1_bps", "delivery_down_bps")


class DaemonSurroundings:
    """Asks the daemon, and tells it; people are told of `program` (None: what it was started as)."""

    def __init__(self, socket: Path | None = None, program: str | None = None) -> None:
        self._client = ControlClient(socket or directories().socket, timeout_s=2.0)
        self._program = _text(program or Path(sys.argv[0]).name or "a program", 64)
        self._news = News()

    async def view(self) -> View:
        """DaemonUnreachableError where no daemon answers."""
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
        """It goes with the next question."""
        self._news = news

    def _request(self) -> PrefetchingRequest:
        news, most = self._news, MOST_ITEMS
        while True:
            request = PrefetchingRequest(
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
                counts=news.counts,
                items=[_item(each) for each in news.items],
            )
            if most <= 1 or len(msgspec.json.encode(request)) <= _MOST_BYTES:
                return request
            most //= 2


def prices_of(messages: Sequence[PriceMessage], metered: Sequence[str]) -> Prices:
    """Prices from what the daemon says of its budgets; one that has none now is not among them."""
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
    captive = bool(known("captive"))
    return NetworkFacts(
        network.name,
        network.interface,
        network.kind,
        # Behind a portal nothing comes that was asked for, nor where a budget bars the way.
        network.up and not captive and not network.barred and known("available") != 0.0,
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
    """Names that came from elsewhere may hold what is no text, lone surrogates, which JSON cannot."""
    return name[:most].encode(errors="replace").decode()


def _item(item: PrefetchedItem) -> ItemMessage:
    verdict = item.verdict
    weighed = verdict.weighed
    return ItemMessage(
        title=_text(item.title, 300),
        cls=_text(str(verdict.item.cls), 300),
        size_bytes=verdict.left_bytes,
        likely=verdict.likely,
        why=verdict.why[:300],
        network=verdict.network,
        saves_s=weighed.saves_s if weighed else None,
        energy_j=weighed.energy_j if weighed else None,
        metered_bytes=(weighed.sent_bytes if verdict.metered else 0.0) if weighed else None,
        gain_s=weighed.gain_s if weighed and abs(weighed.gain_s) < _NO_FIGURE_S else None,
    )
