"""Whether a network's DHCP server announced it as metered: Android does as a hotspot (option 43).

Read are the leases of systemd-networkd and dhclient; NetworkManager looks at the option by itself.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

ANNOUNCEMENT: Final = b"ANDROID_METERED"
NETWORKD: Final = Path("/run/systemd/netif/leases")
DHCLIENT: Final = Path("/var/lib/dhcp")
_MOST_BYTES: Final = 1 << 20
_OPTION: Final = "option vendor-encapsulated-options "


def announced_metered(
    interface: str, index: int, *, networkd: Path = NETWORKD, dhclient: Path = DHCLIENT
) -> bool:
    """By the interface's latest lease; False where there is none, or nothing is announced."""
    if (lease := _read(networkd / str(index))) and _networkd_announces(lease):
        return True
    texts = map(_read, _dhclient_files(dhclient))
    return any(_dhclient_announces(text, interface) for text in texts if text)


def _networkd_announces(lease: str) -> bool:
    for line in lease.splitlines():
        name, _, value = line.partition("=")
        if name == "VENDOR_SPECIFIC":
            return ANNOUNCEMENT in _octets(value.strip())
    return False


def _dhclient_announces(leases: str, interface: str) -> bool:
    announced, ours, option = False, False, ""
    for line in map(str.strip, leases.splitlines()):
        if line == "lease {":
            ours, option = False, ""
        elif line == f'interface "{interface}";':
            ours = True
        elif line.startswith(_OPTION):
            option = line.removeprefix(_OPTION).removesuffix(";").strip()
        elif line == "}" and ours:
            octets = option.encode() if option.startswith('"') else _octets(option, ":")
            announced = ANNOUNCEMENT in octets
    return announced


def _octets(text: str, between: str = "") -> bytes:
    digits = "".join(each.zfill(2) for each in text.split(between)) if between else text
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return b""


def _dhclient_files(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.glob("dhclient*.leases"))
    except OSError:
        return ()


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
