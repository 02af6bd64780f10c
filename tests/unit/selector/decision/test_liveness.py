from typing import Any

import pytest

from cedos.model import Context, Indicator
from cedos.selector.decision.liveness import BELIEVED_S, ago, dead_networks, may_return, why_dead


@pytest.mark.parametrize(
    ("indicators", "dead"),
    [
        ({}, False),
        ({"wlan0_available": 1.0}, False),
        ({"wlan0_available": 0.0}, True),
        ({"wlan0_ping_loss": 0.99}, False),
        ({"wlan0_ping_loss": 1.0}, True),
        ({"wlan0_ping_loss": 1.0, "wlan0_available": 1.0}, True),
        ({"wlan0_ping_loss": 0.0, "wlan0_available": 0.0}, False),
        ({"wlan0_ping_loss": 0.8, "wlan0_available": 0.0}, False),
        ({"wlan0_ping_loss": 1.0, "wlan0_rtt_s": 0.02}, True),
        ({"lte0_ping_loss": 1.0}, False),
    ],
)
def test_who_is_dead(host: Any, indicators: dict[str, float], dead: bool) -> None:
    why = why_dead(host.context(**indicators), "wlan0")
    assert (why is not None) is dead


def test_the_reason_names_network_and_age(host: Any) -> None:
    assert (
        why_dead(host.context(wlan0_ping_loss=1.0), "wlan0") == "wlan0 answered no ping 0.4 s ago"
    )
    assert (
        why_dead(host.context(age_s=2.0, wlan0_available=0.0), "wlan0")
        == "wlan0 was not available 2.0 s ago"
    )


def test_old_evidence_condemns_nobody(host: Any) -> None:
    for column in ("wlan0_ping_loss", "wlan0_available"):
        value = {"wlan0_ping_loss": 1.0, "wlan0_available": 0.0}[column]
        assert why_dead(host.context(age_s=BELIEVED_S, **{column: value}), "wlan0")
        assert not why_dead(host.context(age_s=BELIEVED_S + 0.1, **{column: value}), "wlan0")


@pytest.mark.parametrize(("name", "value"), [("ping_loss", 1.0), ("available", 0.0)])
def test_an_answer_since_then_revives(name: str, value: float) -> None:
    def why(rtt_at_s: float) -> str | None:
        known = {name: Indicator(value, 10.0), "rtt_s": Indicator(0.02, rtt_at_s)}
        return why_dead(Context(12.0, {"wlan0": known}), "wlan0")

    assert why(9.0)
    assert why(10.0)
    assert why(11.0) is None


def test_only_networks_that_are_up_are_looked_at(host: Any) -> None:
    context = host.context(wlan0_ping_loss=1.0, lte0_ping_loss=1.0, old0_ping_loss=1.0)
    networks = (host.wlan, host.network("lte0", "cellular", up=False))
    assert list(dead_networks(context, networks)) == ["wlan0"]


def test_older_answers_do_not_refute_what_is_not_available() -> None:
    known = {"available": Indicator(0.0, 10.0), "ping_loss": Indicator(0.0, 9.0)}
    assert why_dead(Context(12.0, {"wlan0": known}), "wlan0")


def test_only_a_portal_waits_for_somebody(host: Any) -> None:
    assert may_return(host.context(wlan0_ping_loss=1.0), "wlan0")
    assert may_return(host.context(wlan0_captive=0.0, wlan0_available=0.0), "wlan0")
    assert not may_return(host.context(wlan0_captive=1.0), "wlan0")
    assert may_return(host.context(), "eth9")


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (-0.1, "just now"),
        (0.04, "just now"),
        (0.4, "0.4 s ago"),
        (9.96, "10 s ago"),
        (60.0, "60 s ago"),
    ],
)
def test_how_long_ago_is_told_as_exactly_as_it_matters(age_s: float, words: str) -> None:
    assert ago(age_s) == words
