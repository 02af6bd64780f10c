"""Parts of an exchange's time: told from packets at both hosts, and what the simulation has of them."""

import struct

import pytest

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.experiments.meatballs.analyses.exchange_parts import compared
from emu.experiments.meatballs.exchanges.packet_tap import Passed, payload_bytes
from emu.experiments.meatballs.exchanges.requests import Request
from emu.experiments.meatballs.exchanges.timing import PARTS, ExchangeTiming, divide, simulated
from emu.lab.simulation.network import ReplayedNetwork
from emu.places.traces import Trace
from emu.testbed.access import Access

HERE = [
    Passed(9.0, "wlan0", False, 4000),
    Passed(10.001, "wlan0", True, 1000),
    Passed(10.031, "wlan0", False, 1448),
    Passed(10.032, "wlan0", False, 1448),
    Passed(11.0, "wlan0", True, 1000),
]
THERE = [
    Passed(10.012, "to-isp", False, 1000),
    Passed(10.014, "to-isp", True, 1448),
    Passed(10.0145, "to-isp", True, 1448),
]


def test_parts_are_told_by_the_packets_in_between_and_sum_up_to_the_whole() -> None:
    found = divide(10.0, 10.033, HERE, THERE)
    expected = [0.001, 0.011, 0.002, 0.018, 0.001]
    assert [found[part] for part in PARTS] == pytest.approx(expected)
    assert sum(found.values()) == pytest.approx(0.033)


def test_an_exchange_of_which_packets_are_missing_is_no_measurement() -> None:
    with pytest.raises(EmulationError, match="not all seen"):
        divide(10.0, 10.033, HERE, THERE[:1])


def test_the_simulation_has_the_way_there_and_back_and_nothing_else() -> None:
    steady = Trace.constant(12e6)
    network = ReplayedNetwork(Access(NetworkKind.WIFI, up=steady, down=steady, rtt_s=0.02))
    found = simulated(network, 3.0002, Request(0, 0.0, 1000, 4000))
    assert found["asking"] == found["serving"] == found["hearing"] == 0.0
    # One opportunity, 10 ms; 10 ms, and three more opportunities.
    assert 0.010 <= found["up"] <= 0.0115
    assert 0.012 <= found["down"] <= 0.0135
    whole = network.exchange(3.0002, 1000, 4000)
    assert sum(found.values()) == pytest.approx(whole.completed_at_s - 3.0002)


def test_differences_are_those_of_the_parts() -> None:
    lived = dict.fromkeys(PARTS, 0.001)
    figures = compared([ExchangeTiming(lived, dict.fromkeys(PARTS, 0.0))] * 3)
    assert figures["difference_ms"] == pytest.approx(5.0)
    assert figures["parts"]["serving"]["difference_ms"] == pytest.approx(1.0)


def packet(port: int, data: int, protocol: int = 6) -> bytes:
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 52 + data, 0, 0, 64, protocol, 0, b"", b"")
    return head + struct.pack("!HHIIBBHHH", 40_000, port, 0, 0, 8 << 4, 16, 0, 0, 0) + bytes(12)


def test_only_data_to_or_from_the_port_counts() -> None:
    assert payload_bytes(packet(7400, 900), 7400) == 900
    assert payload_bytes(packet(7400, 0), 7400) == 0
    assert payload_bytes(packet(7401, 900), 7400) == 0
    assert payload_bytes(packet(7400, 900, protocol=17), 7400) == 0
    assert payload_bytes(b"\x45", 7400) == 0
