"""The system's word on metered networks."""

import asyncio
import errno

import pytest
from dbus_fast import Variant
from kit.bus import PlayedBus

from cedos.controller.events import BatteryRead
from cedos.host.monitor.bus import BusError, SystemBus
from cedos.host.monitor.providers import access_points, metered
from cedos.host.monitor.providers import networkmanager as nm
from cedos.host.monitor.providers.battery import BatteryReader
from cedos.host.monitor.providers.cellular import CellularProvider
from cedos.host.monitor.providers.metered import HostMetered, parse_device
from cedos.kernel.interface_kind import MeteredWord
from cedos.kernel.netlink import attribute
from cedos.model import Network, NetworkKind

PATH = "/org/freedesktop/NetworkManager"
DEVICES = f"{PATH}/Devices"


@pytest.mark.parametrize(
    ("word_given", "word"),
    [
        (0, None), (1, MeteredWord.YES), (2, MeteredWord.NO), (3, MeteredWord.GUESSED_YES),
        (4, MeteredWord.GUESSED_NO), ("1", None), (None, None),
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
    assert bus.watched == [DEVICES]


async def test_a_word_stays_while_network_manager_says_nothing_else():
    """Keep NetworkManager silent: that opened the wall of a hard budget of metered networks."""
    wifi = {"Interface": "wlan0", "Metered": 1}
    gone, stick = f"{DEVICES}/1", {"Interface": "enp0s20u3", "Metered": 2}
    told = {f"{DEVICES}/2": [wifi], f"{DEVICES}/3": [stick]}
    bus = PlayedBus({PATH: [{"Devices": [gone, *told]}], **told})
    source, interfaces = HostMetered(bus), {"wlan0": 2, "enp0s20u3": 3}
    words = {"wlan0": MeteredWord.YES, "enp0s20u3": MeteredWord.NO}
    assert await source.read(interfaces) == words  # though one device was gone by then
    for silent in ({}, {PATH: [{"Devices": []}]}, {PATH: [{"Devices": [*told]}]}):
        bus.answers = silent
        assert await source.read(interfaces) == words
    bus.answers = {PATH: [{"Devices": [*told]}], **told}
    wifi["Metered"] = 0  # it is connecting
    assert await source.read(interfaces) == words
    wifi["Metered"] = 4
    assert await source.read(interfaces) == {"enp0s20u3": MeteredWord.NO}
    stick["Metered"] = (
        0  # whatever its next network is like, no service has said that it costs nothing
    )
    assert await source.read(interfaces) == {}
    stick["Metered"] = 2
    assert await source.read(interfaces) == {"enp0s20u3": MeteredWord.NO}
    bus.answers = {}
    assert await source.read({"wlan0": 2, "enp0s20u3": 4}) == {}  # another one by that name


async def test_a_word_that_something_is_free_counts_for_less_while_nobody_says_it(monkeypatch):
    """NetworkManager has ended: iwd leads to a phone's hotspot, and a hard budget's wall stayed open."""
    leases = {"wlan0": False, "eth0": False}
    monkeypatch.setattr(metered, "announced_metered", lambda name, _: leases[name])
    devices = {f"{DEVICES}/1": [{"Interface": "wlan0", "Metered": 2}]}
    bus = PlayedBus({PATH: [{"Devices": [*devices]}], **devices})
    source, interfaces = HostMetered(bus), {"wlan0": 2, "eth0": 3}
    free, costs = {"wlan0": MeteredWord.NO}, {"wlan0": MeteredWord.GUESSED_YES}
    for silent, announced, words in (
        (False, False, free),
        (True, False, free),
        (True, True, costs),
        (False, True, free),
        (True, False, free),
    ):
        bus.answers = {} if silent else {PATH: [{"Devices": [*devices]}], **devices}
        leases["wlan0"] = announced
        assert await source.read(interfaces) == words


@pytest.mark.parametrize("silent", [PATH, "GetManagedObjects"])
async def test_a_new_network_counts_as_metered_while_a_service_is_silent(silent):
    """A user who keeps NetworkManager busy had each new network count as free: no wall barred it."""

    class Busy(PlayedBus):
        silent = True

        async def call(self, service, path, interface, member, *more):
            if self.silent and silent in (path, member):
                raise BusError("no answer") from TimeoutError()
            return await super().call(service, path, interface, member, *more)

    bus = Busy({PATH: [{"Devices": []}], "GetManagedObjects": [{}]})
    source, new = HostMetered(bus), {"eth1": MeteredWord.GUESSED_YES}
    assert await source.read({"eth0": 2}) == {}, "nothing is known when the daemon starts"
    for _ in range(2):
        assert await source.read({"eth0": 2, "eth1": 3}) == new
    bus.silent = False
    assert await source.read({"eth0": 2, "eth1": 3}) == {}
    bus.silent = True
    assert await source.read({"eth0": 2, "eth1": 3}) == {}


async def test_a_modem_stays_behind_its_interface():
    modem = {"org.freedesktop.ModemManager1.Modem": {"Ports": [["enp0s20u3", 2]]}}
    bus = PlayedBus({"GetManagedObjects": [{"/org/freedesktop/ModemManager1/Modem/0": modem}]})
    source, word = HostMetered(bus), {"enp0s20u3": MeteredWord.GUESSED_YES}
    assert await source.read({"enp0s20u3": 2}) == word
    bus.answers = {}
    assert await source.read({"enp0s20u3": 2}) == word
    assert await source.read({"enp0s20u3": 3}) == {}


async def test_without_a_descriptor_all_is_as_it_was(monkeypatch):
    """Use up descriptors: no hotspot and no new network becomes free of charge, no lost one is hidden."""
    leases = {"wlan0": True, "eth0": False}
    monkeypatch.setattr(metered, "announced_metered", lambda name, _: leases[name])
    monkeypatch.setattr(metered, "_AGAIN_S", 0.01)

    async def scanned(index):
        raise LookupError("no nl80211")

    source, interfaces, again = HostMetered(None, scanned), {"wlan0": 2, "eth0": 3}, asyncio.Event()
    await source.start(again.set)
    words = {"wlan0": MeteredWord.GUESSED_YES}
    assert await source.read(interfaces) == words

    def none_left(name, index):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(metered, "announced_metered", none_left)
    assert await source.read(interfaces) == words
    for _ in range(2):
        again.clear()
        assert await source.read({"wlan0": 2, "eth0": 4}) == dict.fromkeys(
            interfaces, MeteredWord.GUESSED_YES
        )
        await asyncio.wait_for(again.wait(), 2)
    monkeypatch.setattr(metered, "announced_metered", lambda name, _: False)
    assert await source.read(interfaces) == {}


async def test_a_slow_network_manager_delays_nothing_for_long(address, make_service):
    """With twenty devices, a second each, a lost network was noticed after 21 s."""
    manager, count = await make_service(nm.SERVICE), 20
    paths = [f"{DEVICES}/{number}" for number in range(count)]
    manager.objects = {PATH: {nm.SERVICE: {"Devices": Variant("ao", paths)}}} | {
        path: {nm.DEVICE: {"Interface": Variant("s", f"d{n}"), "Metered": Variant("u", 1)}}
        for n, path in enumerate(paths)
    }
    bus, changed = SystemBus(address, timeout_s=0.4), asyncio.Event()
    source = HostMetered(bus)
    try:
        await source.start(changed.set)
        interfaces = {f"d{number}": number + 1 for number in range(count)}
        words = dict.fromkeys(interfaces, MeteredWord.YES)
        assert await source.read(interfaces) == words
        manager.silent = True
        async with asyncio.timeout(2.0):
            assert await source.read(interfaces) == words
        manager.silent = False
        manager.set(paths[7], nm.DEVICE, Metered=Variant("u", 2))
        await asyncio.wait_for(changed.wait(), 5)
    finally:
        await bus.close()


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


LTE = Network("stick", "wwan0", 4, NetworkKind.CELLULAR, True)


async def test_the_battery_over_a_real_bus(address, make_service):
    upower = await make_service("org.freedesktop.UPower")
    upower.objects = {
        "/org/freedesktop/UPower/devices/DisplayDevice": {
            "org.freedesktop.UPower.Device": {
                "Type": Variant("u", 2),
                "IsPresent": Variant("b", True),
                "Percentage": Variant("d", 41.0),
                "State": Variant("u", 2),
                "Energy": Variant("d", 20.0),
            }
        }
    }
    bus = SystemBus(address, timeout_s=0.3)
    try:
        assert await BatteryReader(bus).read() == BatteryRead(0.41, True, 72_000.0)
        upower.silent = True
        assert await BatteryReader(bus).read() == BatteryRead()
    finally:
        await bus.close()


MM = "org.freedesktop.ModemManager1"
MODEMS = [f"/org/freedesktop/ModemManager1/Modem/{n}" for n in (0, 1)]


def modem(device, ports, rsrp):
    return {
        f"{MM}.Modem": {"Ports": Variant("a(su)", ports), "Device": Variant("s", device)},
        f"{MM}.Modem.Signal": {
            "Rate": Variant("u", 0),
            "Lte": Variant("a{sv}", {"rsrp": Variant("d", rsrp), "snr": Variant("d", 12.5)}),
            "Nr5g": Variant("a{sv}", {}),
        },
    }


async def test_the_right_modem_for_each_interface(address, make_service, tmp_path):
    manager = await make_service(MM)
    signal = f"{MM}.Modem.Signal"
    # The second one looks like a network card, and does not list its interface.
    manager.objects = {
        MODEMS[0]: modem("/sys/devices/a", [["cdc-wdm0", 6], ["wwan0", 2]], -90.0),
        MODEMS[1]: modem("/sys/devices/b", [["ttyUSB0", 3]], -110.0),
    }
    for path in MODEMS:
        manager.methods[path, "Setup"] = lambda body: ("", [])
    (tmp_path / "net/usb0").mkdir(parents=True)
    (tmp_path / "net/usb0/ifindex").write_text("9")
    (tmp_path / "net/usb0/device").symlink_to("/sys/devices/system")
    bus = SystemBus(address, timeout_s=0.5)
    provider = CellularProvider(bus, tmp_path / "net")
    second = Network("usb0", "usb0", 9, NetworkKind.CELLULAR, True)
    try:
        assert (await provider.read(LTE, 1.0))["rsrp_dbm"].value == -90.0
        assert await provider.read(second, 1.0) == {}
        described = manager.objects[MODEMS[1]][f"{MM}.Modem"]
        described["Device"] = Variant("s", "/sys/devices")
        assert await provider.read(second, 2.0) == {}  # it is not looked for all the time
        assert (await provider.read(second, 20.0))["rsrp_dbm"].value == -110.0
        setups = [(path, body) for path, member, body in manager.calls if member == "Setup"]
        assert setups == [(MODEMS[0], [2]), (MODEMS[1], [2])]
        # ModemManager is restarted: it measures for nobody, and is asked again.
        manager.set(MODEMS[0], signal, Rate=Variant("u", 2))
        await provider.read(LTE, 21.0)
        manager.set(MODEMS[0], signal, Rate=Variant("u", 0))
        await provider.read(LTE, 22.0)
        assert [path for path, member, _ in manager.calls if member == "Setup"].count(
            MODEMS[0]
        ) == 2
        await provider.close()
        ended = [path for path, member, body in manager.calls if (member, body) == ("Setup", [0])]
        assert sorted(ended) == MODEMS
    finally:
        await bus.close()
