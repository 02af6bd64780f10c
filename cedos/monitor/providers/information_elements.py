"""What an access point announces in its beacons: its name, what its bytes cost. Pure.

Source: IEEE 802.11, 9.4.2.
"""

from collections.abc import Iterator
from typing import Final

_SSID: Final = 0
_INTERWORKING: Final = 107
_VENDOR: Final = 221
_MICROSOFT_COST: Final = b"\x00\x50\xf2\x11"
"""Microsoft's Network Cost element (MS-NCT, 2.2.1): Windows' and Samsung's hotspots have it."""
_METERED_LEVELS: Final = frozenset({2, 4})
"""Fixed: it counts towards a data limit; variable: each byte costs (MS-NCT, 2.2.1.2)."""
_HOTSPOT_2: Final = b"\x50\x6f\x9a\x10"
"""The Wi-Fi Alliance's indication of Hotspot 2.0 (Passpoint)."""
_CHARGEABLE: Final = 2
"""Access network type: a chargeable public network. Android's metered hotspots say so, and so do Wi-Fi
operators whose customers pay by the month; those have Hotspot 2.0, too."""


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each; one that is cut off ends them."""
    offset = 0
    while offset + 2 <= len(data):
        number, length = data[offset], data[offset + 1]
        offset += 2
        if offset + length > len(data):
            return
        yield number, data[offset : offset + length]
        offset += length


def ssid(data: bytes) -> str:
    for number, content in elements(data):
        if number == _SSID:
            # A hidden one is announced with a length but as zeros, or empty.
            return content.strip(b"\0").decode("utf-8", "replace")
    return ""


def says_metered(data: bytes) -> bool:
    """Whether the access point says that bytes over it cost something."""
    chargeable = passpoint = False
    for number, content in elements(data):
        if number == _VENDOR and content.startswith(_MICROSOFT_COST) and len(content) >= 5:
            if content[4] in _METERED_LEVELS:
                return True
        elif number == _VENDOR and content.startswith(_HOTSPOT_2):
            passpoint = True
        elif number == _INTERWORKING and content:
            chargeable = content[0] & 0x0F == _CHARGEABLE
    return chargeable and not passpoint
