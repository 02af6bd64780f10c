"""Wi-Fi while it is associated, whatever it delivers: what laptops do today."""

from emu.policies.base import Stage


class WifiFirst:
    """The default route over Wi-Fi has the better metric, as the network manager of a laptop sets it."""

    name = "wifi-first"

    def start(self, stage: Stage) -> None:
        """Nothing to do: the emulated laptop comes with these routes."""

    def stop(self) -> None:
        """Nothing to undo."""


policy = WifiFirst
