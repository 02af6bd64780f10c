"""Find where an interface is plugged in, by sysfs, to join a network to its modem or phone."""

import re
from pathlib import Path

from cedos.model import Network

SYSFS = Path("/sys/class/net")
# A USB device as the kernel and adb name it: bus, port, and the ports of hubs between.
_USB = re.compile(r"\d+-\d+(\.\d+)*")


def device(network: Network, root: Path = SYSFS) -> Path | None:
    """Return the real path of the device behind a network's interface, None where it has none.

    A process that was moved into another network namespace still sees the /sys that it came from; an
    entry counts only if its index is the interface's.
    """
    entry = root / network.interface
    try:
        if int((entry / "ifindex").read_text()) != network.index:
            return None
        return (entry / "device").resolve(strict=True)
    except (OSError, ValueError):
        return None


def usb_path(network: Network, root: Path = SYSFS) -> str | None:
    """Return the USB device that the interface belongs to, such as `1-3.2`; None where it is none."""
    found = device(network, root)
    parts = found.parts if found is not None else ()
    return next((part for part in reversed(parts) if _USB.fullmatch(part)), None)
