"""Which living flows `cedos status` and programs are told of."""

import socket
from ipaddress import ip_address
from typing import Any

import pytest

from cedos.api.messages import flow_text
from cedos.daemon.api_backend import ApiBackend
from cedos.daemon.flows.living_flows import LivingFlows
from cedos.model import FlowKey
from cedos.monitor.events import FlowOpened
from cedos.monitor.flows import own_flows

pytestmark = pytest.mark.anyio

RESOLVER = (ip_address("127.0.0.1"), 53)


async def test_the_daemons_own_look_ups_are_left_out() -> None:
    flows = LivingFlows()
    others = "reliability director profiler log observer budgets hard_budgets prefetching"
    parts: Any = dict.fromkeys([*others.split(), "probing", "problems", "config_file"])
    backend = ApiBackend(flows=flows, dry_run=False, **parts)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        own_flows.connect(asker, *RESOLVER)
        host, port = asker.getsockname()
    own = FlowKey(ip_address(host), port, RESOLVER[0], RESOLVER[1], "udp")
    # Somebody else's question to the same resolver.
    other = FlowKey(ip_address(host), port ^ 1, RESOLVER[0], RESOLVER[1], "udp")
    for key in (own, other):
        flows.opened(FlowOpened(key, 1.0, 1.0))
    assert len(flows) == 2
    assert [each.flow for each in await backend.flows()] == [flow_text(other)]
