"""Episodes go over networks as the daemon knows them."""

import asyncio
from typing import Any

import pytest

from cedos.files.podcasts import leading_networks
from cedos.files.podcasts.leading_networks import LeadingNetworks
from cedos.model import Label, NetworkKind, Strategy
from cedos.session.io.advice import KnownNetwork, Question

pytestmark = pytest.mark.anyio


class Daemon:
    """Was told that loopback is a phone."""

    def __init__(self) -> None:
        self.asked = 0

    async def learn(self) -> None:
        self.asked += 1

    def network(self, interface: str) -> KnownNetwork | None:
        return KnownNetwork(NetworkKind.CELLULAR, metered=True) if self.asked else None

    async def choose(self, question: Question) -> Strategy | None:
        return None

    def decided(self, label: Label) -> int | None:
        return None


@pytest.mark.parametrize("there", [True, False])
async def test_a_network_is_metered_where_the_daemon_says_so(there: bool) -> None:
    networks = LeadingNetworks(chooser=Daemon() if there else None)
    (egress,) = await networks.to("127.0.0.1")
    assert egress.metered is there
    assert (egress.kind is NetworkKind.CELLULAR) is there
    networks.close()


async def test_a_name_that_nobody_tells_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asyncio.Event()

    async def getaddrinfo(*_arguments: Any, **_options: Any) -> list[Any]:
        await answered.wait()
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(leading_networks, "_LOOK_UP_S", 0.05)
    networks = LeadingNetworks()
    async with asyncio.timeout(2.0):
        assert "lo" not in {each.interface for each in await networks.to("slow.test")}
        answered.set()
        assert [each.interface for each in await networks.to("slow.test")] == ["lo"]
    networks.close()
