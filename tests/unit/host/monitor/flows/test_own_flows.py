"""The daemon's own probes of networks are told apart from what programs transfer."""

import socket
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.host.monitor import flow_source, portal_check
from cedos.host.monitor.portal_check import PortalCheck, TestPage, shake_hands
from cedos.host.monitor.probing import dns_probe
from cedos.model import FlowKey, Network, NetworkKind

HERE = ip_address("127.0.0.1")
LO = Network(
    *("lo", "lo", 1, NetworkKind.ETHERNET, False, (ip_interface("127.0.0.1/8"),)), resolvers=(HERE,)
)

PROBES = {
    "a look-up": ("udp", lambda port: dns_probe.run(LO, "a.test", port=port, timeout_s=0.2)),
    "a portal's name": (
        "udp",
        lambda port: PortalCheck(TestPage.of("http://a.test/", ""), port=port)(LO, 0.4),
    ),
    "a portal's page": (
        "tcp",
        lambda port: PortalCheck(TestPage.of(f"http://127.0.0.1:{port}/", ""))(LO, 0.2),
    ),
    "a TLS handshake": ("tcp", lambda port: shake_hands(LO, HERE, 0.2, port)),
}


def key(far, near, protocol):
    return FlowKey(ip_address(far[0]), far[1], ip_address(near[0]), near[1], protocol)


@pytest.mark.parametrize("name", PROBES)
async def test_each_probe_of_a_network_is_an_own_flow(name, monkeypatch):
    monkeypatch.setattr(portal_check, "leads_nowhere", lambda address: False)
    protocol, probe = PROBES[name]
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as asked:
        asked.bind((str(HERE), 0))
        asked.settimeout(1.0)
        if protocol == "tcp":
            asked.listen()
        await probe(asked.getsockname()[1])
        if protocol == "udp":
            far = asked.recvfrom(2048)[1]
        else:
            accepted, far = asked.accept()
            accepted.close()
        seen = key(far, asked.getsockname(), protocol)
        assert flow_source.is_own(seen)
        for other in (
            replace(seen, local_port=seen.local_port ^ 1),
            replace(seen, protocol="tcp" if protocol == "udp" else "udp"),
        ):
            assert not flow_source.is_own(other)


async def test_old_ones_are_forgotten(monkeypatch):
    monkeypatch.setattr(flow_source, "_MOST", 3)
    keys = []
    for _ in range(4):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
            assert flow_source.connect(made, HERE, 9)
            keys.append(key(made.getsockname(), (str(HERE), 9), "udp"))
    assert [flow_source.is_own(each) for each in keys[-3:]] == [True] * 3
    assert len(flow_source._known) == 3
