"""Programs and services of this host that cedos works with, or has to share the host with."""

import shutil
import subprocess
from typing import Final

from cedos.doctor import radios
from cedos.doctor.finding import Finding, limited, missing, ok
from cedos.monitor.bus import BusError, SystemBus

_BUS: Final = "org.freedesktop.DBus"
_SERVICES: Final = (
    (
        "systemd-resolved",
        "org.freedesktop.resolve1",
        "which DNS server belongs to which network (/etc/resolv.conf does not say)",
        "systemctl enable --now systemd-resolved",
    ),
    (
        "UPower",
        "org.freedesktop.UPower",
        "the battery's state",
        "systemctl enable --now upower",
    ),
)


def iptables(path: str | None = None) -> Finding:
    """Which iptables there is; `path` as in PATH, None: this process's with the system's folders."""
    topic = "iptables"
    lost = "plain TCP and UDP flows are seen only when they end; no rescue from a dead network"
    program = shutil.which("iptables", path=path) or (
        shutil.which("iptables", path="/usr/sbin:/sbin") if path is None else None
    )
    if program is None:
        return missing(topic, "not installed", lost, "apt install iptables")
    try:
        done = subprocess.run(
            [program, "--version"], check=True, capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError) as error:
        return limited(topic, f"does not run: {error}", lost, "apt install --reinstall iptables")
    return ok(topic, done.stdout.strip())


async def on_the_bus(address: str | None = None) -> list[Finding]:
    """The services that speak D-Bus; `address` of the bus, None: the system's."""
    bus = SystemBus(address)
    try:
        answer = await bus.call(_BUS, "/org/freedesktop/DBus", _BUS, "ListNames")
        names = set(answer[0])
    except BusError as error:
        return [
            limited(
                "D-Bus",
                str(error),
                "what systemd-resolved, ModemManager, UPower, logind and NetworkManager know",
                "systemctl start dbus",
            )
        ]
    else:
        return [
            *(
                ok(name, "running") if service in names else limited(name, "not running", lost, how)
                for name, service, lost, how in _SERVICES
            ),
            await radios.modems(bus, names),
            await radios.network_manager(bus, names),
            await radios.user_presence(bus, names),
        ]
    finally:
        await bus.close()
