"""The access points that a Wi-Fi radio has heard, from the kernel's own list (nl80211).

The kernel keeps what the last scan of any program heard, for about 30 s, and always the access
point in use. A scan would interrupt traffic; none is ever triggered here.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cedos.host.monitor.providers.provider import AccessPoint
from cedos.kernel import generic_netlink
from cedos.kernel.netlink import attribute, attributes, read_unsigned

_SSID: Final = 0
_INTERWORKING: Final = 107
_VENDOR: Final = 221
# Microsoft's Network Cost element (MS-NCT, 2.2.1): Windows' and Samsung's hotspots have it.
_MICROSOFT_COST: Final = b"\x00\x50\xf2\x11"
# Fixed: it counts towards a data limit; variable: each byte costs (MS-NCT, 2.2.1.2).
_METERED_LEVELS: Final = frozenset({2, 4})
# The Wi-Fi Alliance's indication of Hotspot 2.0 (Passpoint).
_HOTSPOT_2: Final = b"\x50\x6f\x9a\x10"
# Access network type "chargeable public network". Android's metered hotspots announce it, and so
# do Wi-Fi operators with monthly customers; the latter announce Hotspot 2.0 too.
_CHARGEABLE: Final = 2


def elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each element (IEEE 802.11, 9.4.2), up to a truncated one."""
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
    """Return whether the access point says that bytes over it cost something."""
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


# linux/nl80211.h
_GET_SCAN = 32
_ATTR_IFINDEX, _ATTR_BSS = 3, 47
_BSSID, _ELEMENTS, _SIGNAL_MBM, _STATUS, _SEEN_MS_AGO, _BEACON = 1, 6, 7, 9, 10, 11
_ASSOCIATED = 1
_MBM = struct.Struct("=i")


@dataclass(frozen=True, slots=True)
class ScannedPoint:
    """An access point of the list: its level in dBm if known, and how long ago it was heard.

    `metered`: it announces that its bytes cost something.
    """

    point: AccessPoint
    associated: bool
    age_s: float
    level_dbm: float | None
    metered: bool = False


@dataclass(frozen=True, slots=True)
class ScanList:
    """`count` is None where only the own one is listed: then nothing was scanned lately.

    `metered`: the own one announces it.
    """

    own: AccessPoint | None
    count: int | None
    age_s: float
    metered: bool = False


def parse(payload: bytes) -> ScannedPoint | None:
    found = attributes(attributes(payload).get(_ATTR_BSS, b""))
    bssid = found.get(_BSSID, b"")
    if len(bssid) != 6:
        return None
    level = found.get(_SIGNAL_MBM, b"")
    # (A probe response may lack what the beacon has.)
    announced = [found[each] for each in (_ELEMENTS, _BEACON) if found.get(each)]
    return ScannedPoint(
        AccessPoint(bssid.hex(":"), ssid(announced[0]) if announced else ""),
        read_unsigned(found.get(_STATUS)) == _ASSOCIATED,
        (read_unsigned(found.get(_SEEN_MS_AGO)) or 0) / 1000.0,
        _MBM.unpack(level)[0] / 100.0 if len(level) == _MBM.size else None,
        any(map(says_metered, announced)),
    )


def summarise(heard: Iterable[ScannedPoint]) -> ScanList:
    known = list(heard)
    own = next((one for one in known if one.associated), None)
    others = [one.age_s for one in known if not one.associated]
    # The own one is heard all the time: how old the list is, the youngest of the others tells.
    return ScanList(
        own.point if own is not None else None,
        len(known) if others else None,
        min(others, default=0.0),
        own is not None and own.metered,
    )


async def read(index: int) -> ScanList:
    """Read the list of a radio's interface. LookupError: no nl80211; OSError: not its interface."""
    answers = await generic_netlink.dump(
        "nl80211", _GET_SCAN, attribute(_ATTR_IFINDEX, struct.pack("=I", index))
    )
    return summarise(one for answer in answers if (one := parse(answer)) is not None)
