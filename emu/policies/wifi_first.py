"""Wi-Fi while it is associated, whatever it delivers: what laptops do today."""

from emu.policies.base import Stage


class WifiFirst:
    name = "wifi-first"
    title = "Linux as it is"

    def start(self, stage: Stage) -> None:
        """Nothing to do: the emulated laptop comes with these routes."""

    def stop(self) -> None:
        """Nothing to undo."""


policy = WifiFirst
