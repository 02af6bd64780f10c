"""Wi-Fi while it is associated, whatever it delivers: what laptops do today."""

from cedos.model import NetworkKind
from emu.policies.base import Stage


class WifiFirst:
    name = "wifi-first"
    title = "Linux as it is"
    networks = (NetworkKind.WIFI,)

    def start(self, stage: Stage) -> None:
        """Do nothing: the emulated laptop comes with these routes."""

    def stop(self) -> None:
        """Do nothing: there is nothing to undo."""


policy = WifiFirst
