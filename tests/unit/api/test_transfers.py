"""The words for a transfer's reason to wait."""

from datetime import datetime

import pytest

from cedos.api.transfers import TurnMessage, instant, sentence, turn_message
from cedos.model import Direction
from cedos.selector.deadlines.network_state import HostNetworks, SeenNetwork
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable

NOW = datetime(2026, 11, 24, 17, 0)


def at(text):
    return datetime.fromisoformat(f"2026-11-{text}").timestamp()


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        (
            TurnMessage(spare=("lte0",), begin_unix_s=at("24 17:42")),
            "waiting for Wi-Fi, begins at the latest 17:42 over lte0",
        ),
        (
            TurnMessage(spare=("lte0",), begin_unix_s=at("24 17:59:38")),
            "waiting for Wi-Fi, begins at the latest 17:59 over lte0, 22 s before its deadline",
        ),
        (
            TurnMessage(spare=("lte0",), begin_unix_s=at("25 08:00")),
            "waiting for Wi-Fi, begins at the latest tomorrow 08:00 over lte0",
        ),
        (
            TurnMessage(spare=("lte0",), begin_unix_s=at("24 17:42"), begun=True),
            "waiting for Wi-Fi, goes on at the latest 17:42 over lte0",
        ),
        (
            TurnMessage(
                spare=("lte0",),
                begin_unix_s=at("24 17:42"),
                end_unix_s=at("24 17:30"),
                end_high_unix_s=at("24 17:30"),
            ),
            "waiting for Wi-Fi, begins at the latest 17:42 over lte0; expected done about 17:30",
        ),
        (
            TurnMessage(
                networks=("wlan0", "lte0"),
                metered=("lte0",),
                free_up=True,
                end_unix_s=at("24 18:20"),
                end_high_unix_s=at("24 18:30"),
            ),
            "may not be done by 18:00 (expected 18:20); over wlan0 and lte0",
        ),
        (
            TurnMessage(networks=("lte0",), metered=("lte0",), end_unix_s=at("24 18:00:06")),
            "may not be done by 18:00:00 (expected 18:00:06); over lte0",
        ),
        (
            TurnMessage(networks=("lte0",), metered=("lte0",), late=True),
            "cannot be done by 18:00; over lte0",
        ),
        (TurnMessage(spare=("lte0",)), "waiting for Wi-Fi"),
        (TurnMessage(), "waiting for a network"),
        (TurnMessage(first=False), "waiting for transfers that are wanted earlier"),
        (TurnMessage(free_up=True), "waiting for others that are wanted by the same time"),
        (TurnMessage(networks=("wlan0",), free_up=True), "over wlan0"),
        (
            TurnMessage(networks=("wlan0",), spare=("lte0",), begin_unix_s=at("24 17:42")),
            "over wlan0, lte0 would join at 17:42",
        ),
        (
            TurnMessage(networks=("wlan0", "lte0"), metered=("lte0",), free_up=True),
            "over wlan0 and lte0: Wi-Fi alone may be too late",
        ),
        (
            TurnMessage(networks=("lte0",), metered=("lte0",)),
            "over lte0: waiting longer may be too late",
        ),
        (
            TurnMessage(networks=("wlan0",), late=True, end_unix_s=at("24 19:10")),
            "cannot be done by 18:00; over wlan0; done about 19:10, or much later",
        ),
        (
            TurnMessage(networks=("wlan0",), late=True, end_unix_s=at("24 17:50")),
            "may not be done by 18:00; over wlan0; done about 17:50, or much later",
        ),
        (
            TurnMessage(
                networks=("wlan0",),
                end_low_unix_s=at("24 17:20"),
                end_unix_s=at("24 17:30"),
                end_high_unix_s=at("24 17:50"),
            ),
            "over wlan0; done about 17:30 (between 17:20 and 17:50)",
        ),
    ],
)
def test_it_is_said_in_one_sentence(turn, said):
    assert sentence(turn, at("24 18:00"), NOW) == said


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("24 17:03", "17:03:00"),
        ("24 23:00", "23:00"),
        ("25 08:00", "tomorrow 08:00"),
        ("27 08:00", "Fri 08:00"),
    ],
)
def test_instants(when, said):
    assert instant(at(when), NOW) == said


UNIX_S = 1e9


@pytest.fixture
def table():
    networks = HostNetworks()
    for at_s in range(-300, 0):
        for name in ("wlan0", "lte0"):
            rate_bps = 24e6 if at_s % 2 else 8e6
            networks.on_measured(name, Direction.DOWN, rate_bps, 1.0, float(at_s))
    return TransferTable(networks)


def told(table, size_bytes, in_s, *, wifi=True):
    table.report(
        TableTransfer("a", 0, "a", "server", Direction.DOWN, size_bytes, 0, UNIX_S + in_s), 0.0
    )
    seen = [SeenNetwork("wlan0", wifi, 0.0), SeenNetwork("lte0", True, 2e-7)]
    table.plan(seen, UNIX_S, 0.0)


def test_that_it_is_expected_too_late_is_said_from_the_start(table):
    """30 MB over 32 Mbit/s in 5.8 s: not impossible at the best rate ever, and nothing was said."""
    told(table, 30_000_000, 5.8)
    turn = turn_message(table, "a", 0.0, UNIX_S)
    assert not turn.late
    text = sentence(turn, UNIX_S + 5.8, datetime.fromtimestamp(UNIX_S))
    assert text.startswith("may not be done by ")
    assert "(expected " in text
    assert "Wi-Fi alone" not in text


def test_a_metered_network_that_has_carried_some_of_it_goes_on(table):
    told(table, 30_000_000, 600.0, wifi=False)
    assert turn_message(table, "a", 0.0, UNIX_S).spare == ("lte0",)
    table.add_bytes("a", {"lte0": 400}, 1.0, 0.0)  # its size was asked for
    assert not turn_message(table, "a", 0.0, UNIX_S).begun
    table.add_bytes("a", {"lte0": 400_000}, 1.0, 0.0)
    assert turn_message(table, "a", 0.0, UNIX_S).begun
