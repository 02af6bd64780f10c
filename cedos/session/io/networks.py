"""What kind of network an interface is, as far as a program without the daemon can tell."""

import fnmatch
from pathlib import Path
from typing import Final

from cedos.model import NetworkKind

_CELLULAR: Final = ("ww*", "lte*", "rmnet*", "ppp*", "usb*", "rndis*", "cell*", "bnep*")
_WIFI: Final = ("wl*", "wifi*", "ath*", "mlan*")


def kind_of(interface: str, sysfs: Path = Path("/sys/class/net")) -> NetworkKind:
    """Wi-Fi by its driver or name, cellular by its name (a tethered phone's is `usb0`), else Ethernet."""
    here = sysfs / interface
    if (here / "wireless").exists() or (here / "phy80211").exists():
        return NetworkKind.WIFI
    if any(fnmatch.fnmatchcase(interface, pattern) for pattern in _CELLULAR):
        return NetworkKind.CELLULAR
    if any(fnmatch.fnmatchcase(interface, pattern) for pattern in _WIFI):
        return NetworkKind.WIFI
    return NetworkKind.ETHERNET
