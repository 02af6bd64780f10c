"""A turn of the table as programs and people see it."""

from datetime import datetime

import pytest

from cedos.api.turn_text import lateness, sentence
from cedos.api.turns import seen_turn
from cedos.model import Direction
from cedos.selector.deadlines.host_networks import HostNetworks, SeenNetwork
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable

UNIX_S = 1e9


@pytest.fixture
def table() -> TransferTable:
    networks = HostNetworks()
    for at_s in range(-300, 0):
        for name in ("wlan0", "lte0"):
            rate_bps = 24e6 if at_s % 2 else 8e6
            networks.measured(name, Direction.DOWN, rate_bps, 1.0, float(at_s))
    return TransferTable(networks)


def told(table: TransferTable, size_bytes: int, in_s: float, *, wifi: bool = True) -> None:
    table.report(
        TableTransfer("a", 0, "a", "server", Direction.DOWN, size_bytes, 0, UNIX_S + in_s), 0.0
    )
    seen = [SeenNetwork("wlan0", wifi, 0.0), SeenNetwork("lte0", True, 2e-7)]
    table.plan(seen, UNIX_S, 0.0)


def test_that_it_is_expected_too_late_is_said_from_the_start(table: TransferTable) -> None:
    """30 MB over 32 Mbit/s in 5.8 s: not impossible at the best rate ever, and nothing was said."""
    told(table, 30_000_000, 5.8)
    turn = seen_turn(table, "a", 0.0, UNIX_S)
    assert not turn.late
    text = sentence(turn, UNIX_S + 5.8, datetime.fromtimestamp(UNIX_S))
    assert text.startswith("may not be done by ")
    assert "(expected " in text
    assert "Wi-Fi alone" not in text


def test_what_is_in_time_is_not_called_late(table: TransferTable) -> None:
    told(table, 30_000_000, 60.0)
    turn = seen_turn(table, "a", 0.0, UNIX_S)
    assert lateness(turn, UNIX_S + 60.0, datetime.fromtimestamp(UNIX_S)) == ""


def test_a_metered_network_that_has_carried_some_of_it_goes_on(table: TransferTable) -> None:
    told(table, 30_000_000, 600.0, wifi=False)
    assert seen_turn(table, "a", 0.0, UNIX_S).spare == ("lte0",)
    table.remembered("a", {"lte0": 400})  # its size was asked for
    assert not seen_turn(table, "a", 0.0, UNIX_S).begun
    table.remembered("a", {"lte0": 400_000})
    assert seen_turn(table, "a", 0.0, UNIX_S).begun
