"""Arguments over the wire: back as they were, or refused."""

from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.privileged import wire
from cedos.host.steer.kernel.interface import FilterPlan
from cedos.host.steer.routing_plan import Preference
from cedos.kernel.mptcp import CreateSubflow, DestroySubflow, PathManagerCommand, SetBackup
from cedos.kernel.policy_routing import Route, Rule
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Address, FlowKey

KEY = FlowKey(ip_address("192.0.2.1"), 40_000, ip_address("2001:db8::1"), 443)
RULE = Rule(4, Preference.DESTINATION, 7_300_003, destination=ip_network("192.0.2.0/24"), port=443)
CREATE = CreateSubflow(7, KEY.local, 1, 3, KEY.remote, 443, True)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tuple[Rule, ...], (RULE, replace(RULE, table=None, interface="wlan0"))),
        (tuple[Route, ...], (Route(7_300_003, ip_network("::/0"), 3, KEY.remote, b"\1"),)),
        (tuple[PathManagerCommand, ...], (CREATE, DestroySubflow(7, KEY), SetBackup(7, KEY, True))),
        (FilterPlan, FilterPlan(track=True, barred=("wlan0",))),
        (ConnectingSocket | None, ConnectingSocket(0.25, 1, False, 1000)),
        (ConnectingSocket | None, None),
        (tuple[tuple[Address, float], ...], ((KEY.local, 0.25),)),
        (tuple[tuple[int, str] | None, ...], None),
        (bytes, b"\0\xff"),
    ],
)
def test_values_come_back_as_they_were(kind, value):
    if value is None and kind != ConnectingSocket | None:
        with pytest.raises(ValueError, match="type"):
            wire.from_plain(kind, wire.plain(value))
    else:
        assert wire.from_plain(kind, wire.plain(value)) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, True), (int, "1"), (str, b"a"), (tuple[Rule, ...], [["Route", 1, 2, 3, 4, 5]]),
        (tuple[Rule, ...], [["Rule", 4]]),
        (FlowKey, ["FlowKey", "192.0.2.1", -1, "nonsense", 1, "tcp"]),
        (PathManagerCommand, ["Rule", 1]), (dict[str, int], {}),
    ],
)  # fmt: skip
def test_what_is_not_of_its_type_is_refused(kind, value):
    with pytest.raises(ValueError, match=r"type|none of|wire|address"):
        wire.from_plain(kind, value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=6),
    max_leaves=20,
)


@given(PLAIN)
def test_any_value_is_taken_or_refused(value):
    for kind in (tuple[Rule, ...], FlowKey, PathManagerCommand, FilterPlan):
        with suppress(ValueError):
            wire.from_plain(kind, value)
