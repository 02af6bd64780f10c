"""What rules leave to sessions, as the daemon tells it."""

from pathlib import Path
from typing import Any

import pytest

from cedos.api.rules import RuleMessage, RuleRequest
from cedos.commands.sessions.shared import ruled_networks
from cedos.commands.sessions.shared.ruled_networks import RuledNetworks
from cedos.errors import DaemonUnreachableError
from cedos.model import NetworkKind
from cedos.session.io.links import Egress


class Played:
    """The daemon's answers."""

    def __init__(self, *rules: RuleRequest) -> None:
        self.known = [
            RuleMessage(number=number, rule=rule, network=None, why="")
            for number, rule in enumerate(rules, 1)
        ]
        self.gone = False

    def rules(self) -> list[RuleMessage]:
        if self.gone:
            raise DaemonUnreachableError("no daemon")
        return self.known

    def networks(self) -> list[Any]:
        return [
            type("Network", (), {"name": name, "interface": interface, "metered": metered})
            for name, interface, metered in (("wlan0", "wlan0", False), ("phone", "usb0", True))
        ]


def asked(
    monkeypatch: pytest.MonkeyPatch,
    played: Played,
    host: str = "home.example",
    *others: tuple[str, int],
) -> RuledNetworks:
    monkeypatch.setattr(ruled_networks, "ControlClient", lambda _socket, _timeout_s: played)
    later = (
        Egress("usb1", 7, frozenset(), NetworkKind.CELLULAR, True),
        Egress("eth0", 8, frozenset(), NetworkKind.ETHERNET, False),
    )
    found = RuledNetworks(
        Path("socket"),
        (host, 7000),
        *others,
        looked_up=lambda name: ("192.0.2.7",) if name == host else ("192.0.2.8",),
        egresses=lambda _: later,
    )
    found.read()
    return found


@pytest.mark.parametrize("about", ["home.example", "192.0.2.0/24"])
def test_a_rule_leaves_some_networks(monkeypatch: pytest.MonkeyPatch, about: str) -> None:
    played = Played(RuleRequest(host=about, never=("metered",)))
    ruled = asked(monkeypatch, played)
    assert {name: ruled.may_use(name) for name in ("wlan0", "usb0")} == {
        "wlan0": True,
        "usb0": False,
    }
    assert ruled.why == f"your rule 1 for {about}: never metered"
    # What comes up later is taken for what the kernel tells of it.
    assert ruled.may_use("eth0")
    assert not ruled.may_use("usb1")
    assert not ruled.may_use("gone0")


def test_a_network_is_meant_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled = asked(monkeypatch, Played(RuleRequest(host="home.example", only=("phone",))))
    assert ruled.may_use("usb0")
    assert not ruled.may_use("wlan0")


@pytest.mark.parametrize(
    "rule",
    [
        RuleRequest(host="other.example", never=("metered",)),
        RuleRequest(host="home.example", port=22, never=("metered",)),
    ],
)
def test_other_rules_leave_all(monkeypatch: pytest.MonkeyPatch, rule: RuleRequest) -> None:
    ruled = asked(monkeypatch, Played(rule))
    assert ruled.may_use("usb0")
    assert ruled.may_use("unknown0")
    assert ruled.why == ""


@pytest.mark.parametrize("about", ["second.example", "192.0.2.8"])
def test_a_rule_about_one_node_holds_for_sessions_with_any(
    monkeypatch: pytest.MonkeyPatch, about: str
) -> None:
    played = Played(RuleRequest(host=about, never=("metered",)))
    assert asked(monkeypatch, played).may_use("usb0"), "it is not of this gateway"
    ruled = asked(monkeypatch, played, "home.example", ("second.example", 7000))
    assert not ruled.may_use("usb0")
    assert ruled.may_use("wlan0")
    assert not ruled.may_use("usb1")
    assert ruled.why == f"your rule 1 for {about}: never metered"


def test_without_a_daemon_there_are_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(RuleRequest(host="home.example", never=("metered",)))
    ruled = asked(monkeypatch, played)
    assert not ruled.may_use("usb0")
    played.gone = True
    ruled.read()
    assert ruled.may_use("usb0")
    played.gone = False
    ruled.read()
    assert not ruled.may_use("usb0")
    played.known = []
    ruled.read()
    assert ruled.may_use("usb0"), "the rule was taken back"
