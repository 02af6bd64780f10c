"""The system's word on metered networks."""

import pytest
from kit.bus import PlayedBus

from cedos.host.monitor.providers import access_points, metered
from cedos.host.monitor.providers.metered import HostMetered, parse_device
from cedos.kernel.interface_kind import MeteredWord
from cedos.kernel.netlink import attribute

DEVICES = "/org/freedesktop/NetworkManager/Devices"


@pytest.mark.parametrize(
    ("word_given", "word"),
    [
        (0, None), (1, MeteredWord.YES), (2, MeteredWord.NO), (3, MeteredWord.GUESSED_YES),
        (4, None), ("1", None), (None, None),
    ],
)  # fmt: skip
def test_a_device(word_given, word):
    device = {"Interface": "cdc-wdm0", "IpInterface": "wwan0", "Metered": word_given}
    assert parse_device(device) == ("wwan0", word)


async def test_network_manager_is_asked_and_watched():
    devices = [
        {"Interface": "lo", "Metered": 4},
        {"Interface": "wlan0", "Metered": 3},
        {"Interface": "wwan0", "Metered": 2},
    ]
    answers = {f"{DEVICES}/{number}": [device] for number, device in enumerate(devices, 1)}
    manager = {"AddMatch": [], "Get": [], "GetAll": [{"Devices": list(answers)}]}
    bus = PlayedBus(manager | answers)
    source = HostMetered(bus)
    await source.start(lambda: None)
    interfaces = {"lo": 1, "wlan0": 2, "wwan0": 3}
    for _ in range(2):
        assert await source.read(interfaces) == {
            "wlan0": MeteredWord.GUESSED_YES,
            "wwan0": MeteredWord.NO,
        }
    assert bus.watched == [f"{DEVICES}/{number}" for number in (1, 2, 3)]


async def test_a_modems_interface_is_metered_unless_network_manager_says_otherwise():
    modem = {
        "org.freedesktop.ModemManager1.Modem": {
            "Ports": [["cdc-wdm0", 6], ["enp0s20u3", 2], ["wwan0", 2]]
        }
    }
    manager = {"AddMatch": [], "Get": [], "GetAll": [{"Devices": [f"{DEVICES}/1"]}]}
    device = {f"{DEVICES}/1": [{"Interface": "wwan0", "Metered": 2}]}
    modems = {"GetManagedObjects": [{"/org/freedesktop/ModemManager1/Modem/0": modem}]}
    source = HostMetered(PlayedBus(manager | device | modems))
    assert await source.read({"enp0s20u3": 2, "wwan0": 3, "eth0": 4}) == {
        "enp0s20u3": MeteredWord.GUESSED_YES,
        "wwan0": MeteredWord.NO,
    }


async def test_without_it_the_lease_tells(monkeypatch):
    monkeypatch.setattr(metered, "announced_metered", lambda name, index: name == "wlan0")
    for bus in (None, PlayedBus({})):
        source = HostMetered(bus)
        assert await source.read({"wlan0": 2, "eth0": 3}) == {"wlan0": MeteredWord.GUESSED_YES}


async def test_without_both_the_access_point_tells(monkeypatch):
    """As a phone's hotspot announces it; what has no radio is not asked in vain."""
    monkeypatch.setattr(metered, "announced_metered", lambda name, index: False)

    async def scanned(index):
        if index == 3:
            raise OSError("no wireless interface")
        element = bytes.fromhex("dd080050f21102000000" if index == 2 else "")
        bss = attribute(1, bytes(6)) + attribute(9, bytes([1, 0, 0, 0])) + attribute(6, element)
        point = access_points.parse(attribute(47, bss))
        assert point is not None
        return access_points.summarise([point])

    source = HostMetered(None, scanned)
    interfaces = {"wlan0": 2, "eth0": 3, "wlan1": 4}
    assert await source.read(interfaces) == {"wlan0": MeteredWord.GUESSED_YES}
