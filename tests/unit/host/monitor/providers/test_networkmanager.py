"""NetworkManager, UPower and ModemManager, played on a private bus."""

from dbus_fast import Variant

from cedos.controller.events import BatteryRead
from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.providers import networkmanager as nm
from cedos.host.monitor.providers.battery import BatteryReader
from cedos.host.monitor.providers.cellular import CellularProvider
from cedos.model import Network, NetworkKind

WIFI = Network("home", "wlan0", 3, NetworkKind.WIFI, False)
LTE = Network("stick", "wwan0", 4, NetworkKind.CELLULAR, True)
ROOT = "/org/freedesktop/NetworkManager"
DEVICE = f"{ROOT}/Devices/2"


async def test_networkmanagers_verdict_counts_where_it_checks(address, make_service):
    manager = await make_service(nm.SERVICE)
    manager.methods[ROOT, "GetDeviceByIpIface"] = ("o", [DEVICE])
    manager.objects = {
        ROOT: {nm.SERVICE: {"ConnectivityCheckEnabled": Variant("b", False)}},
        DEVICE: {nm.DEVICE: {"Ip4Connectivity": Variant("u", 4)}},
    }
    bus = SystemBus(address, timeout_s=0.5)
    provider = nm.NetworkManager(bus)
    told = []
    provider.on_change(lambda: told.append(True))
    try:
        assert await provider.captive(WIFI) is None
        manager.set(ROOT, nm.SERVICE, ConnectivityCheckEnabled=Variant("b", True))
        assert await provider.captive(WIFI) is False
        manager.set(DEVICE, nm.DEVICE, Ip4Connectivity=Variant("u", 2))
        assert await provider.captive(WIFI) is True
        assert told
    finally:
        await bus.close()
    assert await nm.NetworkManager(SystemBus("unix:path=/nowhere")).captive(WIFI) is None


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
        assert await BatteryReader(bus).read() == BatteryRead(True, 0.41, True, 72_000.0)
        upower.silent = True
        assert await BatteryReader(bus).read() == BatteryRead(answered=False)
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
