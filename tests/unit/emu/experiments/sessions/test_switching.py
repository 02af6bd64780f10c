"""Packets, silences and changes of network put together."""

import pytest

from emu.experiments.sessions import cedos_tables
from emu.testbed.access import LTE, WLAN


def test_delays_are_between_the_last_and_the_first_packet() -> None:
    networks, planned = cedos_tables.script("one-at-a-time", 2, 10.0, 5e6)
    assert [network.carrier for network in networks] == [
        [(0.0, 10.0), (20.0, 30.0)],
        [(10.0, 20.0)],
    ]
    began_s = 1000.0
    seen = {
        WLAN: [1001.0, 1009.99, 1020.03, 1025.0],
        LTE: [1010.10, 1015.0, 1019.98],
    }
    silences = [[1009.99, 1010.15], [1019.98, 1020.08], [1028.0, 1029.0]]
    found = cedos_tables.delays(planned, seen, silences, began_s, 10.0)
    assert found["wifi-to-lte"]["packets_s"] == pytest.approx([0.11])
    assert found["wifi-to-lte"]["silences_s"] == pytest.approx([0.16])
    assert found["lte-to-wifi"]["packets_s"] == pytest.approx([0.05])
    assert found["lte-to-wifi"]["silences_s"] == pytest.approx([0.10])


def test_a_silence_before_the_next_change_is_the_next_ones() -> None:
    _, planned = cedos_tables.script("lte-always", 2, 10.0, 5e6)
    silences = [[1009.0, 1010.2], [1019.9, 1021.0]]
    found = cedos_tables.delays(planned, {WLAN: [], LTE: []}, silences, 1000.0, 10.0)
    assert found["wifi-to-lte"] == {"packets_s": [], "silences_s": [pytest.approx(1.2)]}
    assert found["lte-to-wifi"] == {"packets_s": [], "silences_s": [pytest.approx(1.1)]}
