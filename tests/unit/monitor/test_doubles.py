"""The stand-ins keep the promises of what they stand in for."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.model import FlowKey, Network, NetworkKind
from cedos.monitor.doubles import PlayedFlows, PlayedLinks
from cedos.monitor.events import Change, FlowClosed, FlowOpened, Flows, Links, Mailbox

pytestmark = pytest.mark.anyio

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False, (ip_interface("10.0.1.2/24"),))
KEY = FlowKey(ip_address("10.0.1.2"), 5000, ip_address("198.51.100.1"), 443)


async def test_played_links() -> None:
    played = PlayedLinks()
    links: Links = played
    played.play([WIFI])
    played.play([replace(WIFI, up=False)])
    played.play([])
    played.close()
    events = [event async for event in links.events()]
    assert [e.change for e in events] == [Change.APPEARED, Change.CHANGED, Change.LOST]
    played.play([WIFI])
    assert links.networks() == [WIFI]
    assert links.metrics() == {"home": 0}
    assert links.is_local(ip_address("10.0.1.2"))
    assert not links.is_local(ip_address("10.0.1.3"))


async def test_played_flows() -> None:
    played = PlayedFlows()
    flows: Flows = played
    played.open(KEY)
    played.finish(FlowClosed(KEY, 1.0, 2, 3))
    played.close()
    assert [type(event) async for event in flows.events()] == [FlowOpened, FlowClosed]
    assert await flows.snapshot() == []


async def test_a_mailbox_nobody_empties_drops_the_oldest_and_counts() -> None:
    mailbox: Mailbox[int] = Mailbox(limit=3)
    for number in range(5):
        mailbox.put(number)
    mailbox.close()
    assert [number async for number in mailbox.iterate()] == [2, 3, 4]
    assert mailbox.dropped == 2
