"""The kind of an interface: whether it is a network, of which kind, and whether it is metered.

The sources are the user, the system, the driver and the name, in this order. A DHCP server can
announce its network as metered, as Android's hotspot does (option 43); the leases of
systemd-networkd and dhclient are read here, and NetworkManager evaluates the option itself.
"""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_network
from pathlib import Path
from typing import Final, Protocol

from cedos.errors import ConfigError
from cedos.kernel.process_limits import OUT_OF_FILES
from cedos.kernel.rtnetlink import Link
from cedos.model import Address, NetworkKind, NetworkOverride, is_helper_name

ANNOUNCEMENT: Final = b"ANDROID_METERED"
NETWORKD: Final = Path("/run/systemd/netif/leases")
DHCLIENT: Final = Path("/var/lib/dhcp")
_MOST_BYTES: Final = 1 << 20
_MOST_KNOWN: Final = 4096
_OPTION: Final = "option vendor-encapsulated-options "


def announced_metered(
    interface: str, index: int, *, networkd: Path = NETWORKD, dhclient: Path = DHCLIENT
) -> bool:
    """Return whether the interface's latest DHCP lease announces a metered network.

    OSError: no descriptor is left to find it out.
    """
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
    # The file has the leases in their order: the last one of the interface counts.
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
    """Return a file's beginning; "": there is none. OSError: no descriptor is left to read it."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in OUT_OF_FILES:
            raise
        return ""


# Drivers of phones tethered by USB, and of modems.
_CELLULAR_DRIVERS = frozenset(
    {"cdc_ether", "cdc_ncm", "cdc_mbim", "huawei_cdc_ncm", "ipheth", "qmi_wwan", "rndis_host"}
    | {"iosm", "mtk_t7xx", "mhi_net", "sierra_net", "hso"}
)
# Kinds of tunnels as drivers call them (IFLA_INFO_KIND). PPP is missing: it may be a VPN, or a
# modem's network.
TUNNEL_KINDS: Final = frozenset(
    {"amneziawg", "gre", "gretap", "ip6gre", "ip6gretap", "ip6tnl", "ipip", "ovpn", "sit", "tun"}
    | {"vti", "vti6", "wireguard", "xfrm"}
)
# Encapsulations, sinks and routing domains. No access network lies behind them, even if a route
# leads there.
_NO_UPLINKS: Final = TUNNEL_KINDS | frozenset(
    {"amt", "bareudp", "can", "dummy", "erspan", "geneve", "gtp", "ifb", "ip6erspan", "nlmon"}
    | {"vcan", "vrf", "vsockmon", "vxcan", "vxlan"}
)
# A master sends by its ports, a stacked interface by the one below it.
_SWITCHES: Final = frozenset({"bridge", "openvswitch"})
_MASTERS: Final = _SWITCHES | {"batadv", "bond", "hsr", "team"}
_STACKED: Final = frozenset(
    {
        "dsa",
        "ipoib",
        "ipvlan",
        "ipvtap",
        "macsec",
        "macvlan",
        "macvtap",
        "rmnet",
        "virt_wifi",
        "vlan",
    }
)
# One end of a virtual cable. While no route leads out, only its name tells which end it is.
_CABLES: Final = frozenset({"netkit", "veth"})
_GUEST_NAMES = ("cali*", "cni*", "lxc*", "vb-*", "ve-*", "veth*", "vnet*")
_NO_TEXT: Final = "\N{REPLACEMENT CHARACTER}"
_WIFI_NAMES = ("wl*", "wifi*", "ath*", "mlan*")
_CELLULAR_NAMES = (
    *("bnep*", "cell*", "lte*", "ppp*", "qmimux*", "rmnet*", "rndis*", "usb*", "ww*", "wwan*"),
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The facts of an interface in sysfs.

    `genuine`: sysfs shows this very interface, not one of another namespace with the same name.
    `known`: it could be read; else no descriptor was left.
    """

    known: bool = True
    genuine: bool = False
    wireless: bool = False
    device_type: str = ""
    driver: str = ""


class HardwareSource(Protocol):
    def look_up(self, link: Link) -> Hardware: ...


class Sysfs:
    """The kernel's /sys/class/net, as far as it belongs to this network namespace.

    A process moved by `nsenter --net` still sees the /sys of the namespace it came from. So an entry
    counts only if its index and hardware address are those that netlink gave.
    """

    def __init__(self, root: Path = Path("/sys/class/net")) -> None:
        self._root = root
        self._known: dict[tuple[str, int], Hardware] = {}

    def look_up(self, link: Link) -> Hardware:
        """Return the facts of a link; an empty Hardware if sysfs shows another interface.

        Where no descriptor is left, they are as they were when they were read last: a modem stays one.
        """
        key = link.name, link.index
        try:
            found = self._look_up(link)
        except OSError:
            return self._known.get(key, Hardware(known=False))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = found
        return found

    def _look_up(self, link: Link) -> Hardware:
        entry = self._root / link.name
        if (
            not link.name
            or "/" in link.name
            or _read(entry / "ifindex").strip() != str(link.index)
            or _read(entry / "address").strip() != link.hardware_address.hex(":")
        ):
            return Hardware()
        # `uevent` has lines KEY=value. DEVTYPE names wlan, wwan and bluetooth devices.
        uevent = dict(
            line.split("=", 1) for line in _read(entry / "uevent").splitlines() if "=" in line
        )
        try:
            driver = (entry / "device" / "driver").resolve(strict=True).name
        except OSError:
            driver = ""
        return Hardware(
            genuine=True,
            wireless=(entry / "wireless").exists() or (entry / "phy80211").exists(),
            device_type=uevent.get("DEVTYPE", ""),
            driver=driver,
        )


# The interfaces that finally send another interface's packets, with their hardware.
Carriers = Sequence[tuple[Link, Hardware]]


def carriers(link: Link, links: Mapping[int, Link], hardware: HardwareSource) -> Carriers:
    """Return what is beneath a bridge, a bond, a VLAN and the like; empty where there is nothing.

    `links`: all links by index. Running links are preferred to others, and hardware to the ends of
    virtual cables, which lead to guests.
    """
    found: list[Link] = []
    waiting, seen = [link], {link.index}
    # Walk down from master to ports and from stacked interfaces to those below, each link once.
    while waiting:
        one = waiting.pop()
        parts = [links[one.lower]] if one.kind in _STACKED and one.lower in links else []
        if one.kind in _MASTERS:
            parts += [each for each in links.values() if each.master == one.index]
        if not parts and one is not link:
            found.append(one)
        waiting += [each for each in parts if each.index not in seen]
        seen.update(each.index for each in parts)
    found = [each for each in found if _is_hardware(each)] or found
    found = [each for each in found if each.running] or found
    return [(each, hardware.look_up(each)) for each in found]


def _is_hardware(link: Link) -> bool:
    return link.kind not in _NO_UPLINKS | _CABLES


def guess(
    link: Link, hardware: Hardware, beneath: Carriers = (), *, leads_out: bool = False
) -> NetworkKind | None:
    """Return the kind of network behind a link; None: it is none.

    `beneath`: the link's `carriers`. `leads_out`: whether a default route leads over it, which tells an
    uplink from an interface that serves guests (a bridge of virtual machines, a container's cable).
    """
    if link.loopback or link.enslaved or link.kind in _NO_UPLINKS:
        return None
    if _NO_TEXT in link.name:  # the kernel cannot be asked by a name that is not UTF-8
        return None
    if not leads_out:
        if link.kind in _SWITCHES and not any(_is_hardware(each) for each, _ in beneath):
            return None
        if link.kind in _CABLES and _matches(link.name, _GUEST_NAMES):
            return None
    kinds = {_kind(each, its) for each, its in beneath or [(link, hardware)]}
    # Of a bond's running ports, the cheapest is usually in use.
    cheapest_first = (NetworkKind.ETHERNET, NetworkKind.WIFI, NetworkKind.CELLULAR)
    return next(kind for kind in cheapest_first if kind in kinds)


def _kind(link: Link, hardware: Hardware) -> NetworkKind:
    # It may be a phone: then its bytes are metered.
    if not hardware.known:
        return NetworkKind.CELLULAR
    # The hardware is certain; a driver or kind nearly so; names are conventions, and come last.
    if hardware.wireless or hardware.device_type == "wlan" or link.kind == "virt_wifi":
        return NetworkKind.WIFI
    if hardware.device_type in ("wwan", "bluetooth") or hardware.driver in _CELLULAR_DRIVERS:
        return NetworkKind.CELLULAR
    if link.kind in ("rmnet", "wwan"):
        return NetworkKind.CELLULAR
    if _matches(link.name, _WIFI_NAMES):
        return NetworkKind.WIFI
    # A USB network card is no phone: where the driver is known, it decides, and not the name.
    if not hardware.driver and _matches(link.name, _CELLULAR_NAMES):
        return NetworkKind.CELLULAR
    return NetworkKind.ETHERNET


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# The addresses that 464XLAT gives the host (RFC 7335), and its programs' names of their interface.
_TRANSLATED: Final = ip_network("192.0.0.0/29")
_TRANSLATOR_NAMES = ("clat*", "v4-*")


def is_translator(link: Link, addresses: Iterable[Address]) -> bool:
    """Return whether IPv4 becomes IPv6 behind an interface with these addresses (464XLAT)."""
    translated = any(each.version == 4 and each in _TRANSLATED for each in addresses)
    return link.kind in TUNNEL_KINDS and (translated or _matches(link.name, _TRANSLATOR_NAMES))


class MeteredWord(Enum):
    """The statement of the host's system on a network's bytes (NetworkManager, a DHCP server)."""

    YES = "yes"
    NO = "no"
    GUESSED_YES = "probably"
    GUESSED_NO = "probably not"


# The addresses that an iPhone gives its guests over Wi-Fi, USB or Bluetooth.
_IPHONE: Final = ip_network("172.20.10.0/28")


@dataclass(frozen=True, slots=True)
class Identity:
    """`user_metered` is the user's own word; None: nothing is said."""

    name: str
    kind: NetworkKind
    user_metered: bool | None = None

    def is_metered(self, addresses: Iterable[Address], word: MeteredWord | None = None) -> bool:
        """Return whether bytes are metered: the user says, the system says, or it looks like a phone."""
        if self.user_metered is not None:
            return self.user_metered
        if word in (MeteredWord.YES, MeteredWord.NO):
            return word is MeteredWord.YES
        if self.kind is NetworkKind.CELLULAR or word is MeteredWord.GUESSED_YES:
            return True
        return any(each.version == 4 and each in _IPHONE for each in addresses)


def identify(
    link: Link,
    hardware: Hardware,
    overrides: Mapping[str, NetworkOverride],
    beneath: Carriers = (),
    *,
    leads_out: bool = False,
) -> Identity | None:
    """Return the network's identity: guessed, then corrected by the user; None: leave it alone.

    An override makes a network even of an interface that would be ignored (a VPN, a guests' bridge).
    """
    override = overrides.get(link.name)
    guessed = guess(link, hardware, beneath, leads_out=leads_out or override is not None)
    if override is None:
        return None if guessed is None else Identity(link.name, guessed)
    if override.get("ignore", False):
        return None
    kind = NetworkKind(override["kind"]) if "kind" in override else guessed or NetworkKind.ETHERNET
    return Identity(override.get("name", link.name), kind, override.get("metered"))


def check(overrides: Mapping[str, NetworkOverride]) -> None:
    """Refuse overrides that cannot hold.

    ConfigError: an unknown kind, a helper's name, or one name for two networks.
    """
    seen: dict[str, str] = {}
    for interface, override in overrides.items():
        if "kind" in override and override["kind"] not in tuple(NetworkKind):
            raise ConfigError(
                f"interface {interface}: kind {override['kind']!r}; "
                f"one of {', '.join(NetworkKind)} would be right"
            )
        name = override.get("name", interface)
        if is_helper_name(name):
            raise ConfigError(
                f"interface {interface}: helpers are called {name!r}; another name would be right"
            )
        if name in seen:
            raise ConfigError(
                f"interfaces {seen[name]} and {interface} are both called {name!r}; "
                "give each another name"
            )
        seen[name] = interface
