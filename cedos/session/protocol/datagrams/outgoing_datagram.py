"""One datagram on its way out, and over which paths it went."""


class OutgoingDatagram:
    """Attributes: `everywhere`, on each path at once; `on`, the paths that it was given to; `arrived`."""

    __slots__ = ("arrived", "at_s", "everywhere", "expires_s", "frame", "on")

    def __init__(self, frame: bytes, at_s: float, lifetime_s: float, everywhere: bool) -> None:
        self.frame = frame
        self.at_s = at_s
        self.expires_s = at_s + lifetime_s
        self.everywhere = everywhere
        self.on: tuple[int, ...] = ()
        self.arrived = False
