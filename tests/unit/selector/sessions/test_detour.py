"""Direct or by the gateway: one network or two, near or far, shells and pages."""

from typing import Any

import pytest

from cedos.model import StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.sessions.detour import Detour, DetourVerdict, weigh

KINDS = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP, StrategyKind.REDUNDANT})
WEB, SHELL = 443, 22


def route(host: Any, networks: Any, rtt_s: float, port: int = WEB, **times: float) -> DetourVerdict:
    times = times or {"wifi": 0.2, "cellular": 0.4, "mptcp_wifi": 0.2, "mptcp_cellular": 0.4}
    context = host.context(**{f"{each.name}_rtt_s": 0.02 for each in networks})
    case = Case(host.transfer(30_000), context, networks, host.oracle(**times), kinds=KINDS)
    return weigh(decide(case), networks, Detour(rtt_s, port))


@pytest.mark.parametrize(
    ("names", "rtt_s", "port", "direct"),
    [
        ("wlan0 lte0", 0.02, WEB, False),
        ("wlan0 lte0", 0.30, WEB, False),
        ("wlan0 lte0", 0.60, WEB, True),  # a gateway on the other side of the world
        ("wlan0 lte0", 0.60, SHELL, False),
        ("wlan0", 0.02, WEB, False),  # it may have another address in a minute
        ("wlan0", 0.20, WEB, True),
        ("wlan0", 0.20, SHELL, False),
        ("eth0", 0.02, WEB, True),  # a cable alone
        ("eth0", 0.02, SHELL, False),
    ],
)
def test_where_it_goes(host: Any, names: str, rtt_s: float, port: int, direct: bool) -> None:
    known = {"wlan0": host.wlan, "lte0": host.lte, "eth0": host.network("eth0", "ethernet")}
    found = route(host, tuple(known[name] for name in names.split()), rtt_s, port)
    assert found.direct is direct, found.reason


def test_what_both_networks_gain_pays_for_a_long_way(host: Any) -> None:
    times = {"wifi": 9.0, "cellular": 9.5, "mptcp_wifi": 5.0, "mptcp_cellular": 5.2}
    found = route(host, host.both, 0.6, **times)
    assert not found.direct
    assert "using several networks saves 4.00 s" in found.reason


def test_it_is_said_why(host: Any) -> None:
    found = route(host, (host.network("eth0", "ethernet"),), 0.04)
    assert found.reason == (
        "direct: the way through the gateway takes 45 ms more and is worth 3 ms, and no other"
        " network is there to go on over"
    )


def test_without_a_usable_network_nothing_is_judged(host: Any) -> None:
    down = host.network("wlan0", up=False)
    assert not route(host, (down,), 5.0).direct
