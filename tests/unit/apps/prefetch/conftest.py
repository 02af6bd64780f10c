"""An application that prefetches, and surroundings that a test changes."""

import asyncio

import pytest

from cedos.apps.prefetch.prefetcher import Prefetcher
from cedos.apps.prefetch.surroundings import NetworkFacts, View
from cedos.model import NetworkKind


class Dear:
    """Metered bytes are out of reach."""

    def energy_rate(self, amount=0.0, duration_s=1.0):
        return 0.0

    def data_rate(self, network, amount=0.0, duration_s=1.0):
        return 2.0**200 if network == "lte0" else 0.0


class World:
    """Surroundings: networks, prices, and a fault in the way of looking at them."""

    def __init__(self, radio, *names):
        self._radio = radio
        self.become(**dict.fromkeys(names, True))
        self.prices = Dear()
        self.fault = None

    def become(self, **up):
        """These are its networks from now on: `become(wlan0=False)`."""
        self.networks = [self._network(name, is_up) for name, is_up in up.items()]

    def _network(self, name, up):
        kind = NetworkKind.WIFI if name == "wlan0" else NetworkKind.CELLULAR
        return NetworkFacts(name, name, kind, up, name == "lte0", self._radio, 8e6, 0.02)

    async def view(self):
        if self.fault:
            raise self.fault
        return View(self.networks, self.prices)

    def report(self, news):
        self.news = news


class Item:
    """A fetcher that does what a test says, and counts."""

    def __init__(self, do=None, value="value"):
        self.do, self.value = do, value
        self.turns = []

    async def fetch(self, turn):
        self.turns.append(turn)
        if self.do is not None:
            await self.do(turn)
        return self.value


class Application:
    """A maker of cases for tests."""

    def __init__(self, radio):
        self._radio = radio

    def world(self, *names):
        """Networks that are up; `wlan0` is Wi-Fi, `lte0` metered."""
        return World(self._radio, *names)

    def item(self, do=None, value="value"):
        return Item(do, value)

    def prefetcher(self, world, **options):
        return Prefetcher(world, **{"every_s": 0.02, **options})

    async def for_ever(self, turn):
        """Wait for ever, like a fetcher that never ends."""
        await asyncio.Event().wait()


@pytest.fixture(scope="session")
def app(make_radio):
    return Application(make_radio())
