"""Wi-Fi while it is associated, whatever it delivers: what laptops do today."""

from cedos.model import NetworkKind
from emu.policies.base import Fixed


class WifiFirst(Fixed):
    name = "wifi-first"
    title = "Linux as it is"
    networks = (NetworkKind.WIFI,)


policy = WifiFirst
