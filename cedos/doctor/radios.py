"""Who tells the signals of modems and phones, portals, and whether somebody is at the screen."""

import shutil
from typing import Final

from cedos.config import Config
from cedos.doctor.finding import Finding, limited, ok
from cedos.errors import HostError
from cedos.monitor.bus import BusError, SystemBus
from cedos.monitor.providers import adb, cellular, networkmanager, screen

_OBJECTS: Final = "org.freedesktop.DBus.ObjectManager"
_NETWORK_MANAGER: Final = "NetworkManager"
_MODEMS: Final = "ModemManager"
_SCREEN: Final = "screen (logind)"
_PHONE: Final = "Android phone (adb)"
_PORTALS: Final = "captive portals"


async def network_manager(bus: SystemBus, names: set[str]) -> Finding:
    """Whether NetworkManager runs, and whether it checks for portals by itself."""
    if networkmanager.SERVICE not in names:
        return ok(_NETWORK_MANAGER, "not used")
    try:
        properties = await bus.properties(
            networkmanager.SERVICE, networkmanager.PATH, networkmanager.SERVICE
        )
    except BusError as error:
        return limited(_NETWORK_MANAGER, f"does not answer: {error}", "access points it has heard")
    checks = properties.get("ConnectivityCheckEnabled") is True
    return ok(_NETWORK_MANAGER, f"running, {'checks' if checks else 'does not check'} for portals")


async def modems(bus: SystemBus, names: set[str]) -> Finding:
    lost = "signal strength of cellular modems (for a tethered phone see adb)"
    if cellular.SERVICE not in names:
        return limited(_MODEMS, "not running", lost, "systemctl enable --now ModemManager")
    try:
        body = await bus.call(cellular.SERVICE, cellular.ROOT, _OBJECTS, "GetManagedObjects")
    except BusError as error:
        return limited(_MODEMS, f"does not answer: {error}", lost)
    found = cellular.parse_modems(body[0] if body else None)
    interfaces = ", ".join(sorted(found.by_interface))
    if interfaces:
        return ok(_MODEMS, f"running, with a modem behind {interfaces}")
    return ok(_MODEMS, "running, without a modem")


async def user_presence(bus: SystemBus, names: set[str]) -> Finding:
    """Whether logind tells that somebody is at the screen."""
    lost = "probes do not pause while nobody is there"
    if screen.SERVICE not in names:
        return limited(_SCREEN, "logind is not running", lost)
    state = await screen.read(bus)
    if state is None:
        return limited(_SCREEN, "nobody is logged in at a screen", lost)
    return ok(_SCREEN, "somebody is there" if state else "idle or locked")


async def phones() -> Finding:
    """Whether tethered Android phones may be asked for their signal. Starts nothing."""
    lost = "signal strength of a tethered Android phone"
    if shutil.which("adb") is None:
        remedy = "apt install adb; then allow USB debugging on the phone"
        return limited(_PHONE, "not installed", lost, remedy)
    if not await adb.server_runs():
        remedy = "`adb start-server`, as the user to whom the phone has allowed USB debugging"
        return limited(_PHONE, "installed, but the adb server does not run", lost, remedy)
    try:
        devices = adb.parse_devices(await adb.run_adb("devices", "-l"))
    except HostError as error:
        return limited(_PHONE, str(error), lost)
    waiting = [serial for serial, state in devices.values() if state == "unauthorized"]
    if waiting:
        remedy = "unlock the phone, and allow USB debugging when it asks"
        return limited(_PHONE, f"{', '.join(waiting)} does not allow USB debugging", lost, remedy)
    usable = [serial for serial, state in devices.values() if state == "device"]
    return ok(_PHONE, f"{', '.join(usable)} can be asked" if usable else "no phone plugged in")


def portals(config: Config) -> Finding:
    """Whether a network that wants a log-in is noticed."""
    probes = config.probes
    if probes.enabled and probes.portal_url:
        return ok(_PORTALS, f"each new network is tested with {probes.portal_url}")
    return limited(
        _PORTALS,
        "no test page is set" if probes.enabled else "probes are off",
        "a log-in page is noticed late, when connections get no reply",
        "set probes.portal_url",
    )
