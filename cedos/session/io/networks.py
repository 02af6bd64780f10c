"""Which kind of network an interface is to a session: what it is to the daemon."""

from collections.abc import Mapping
from typing import Final

from cedos import config
from cedos.errors import ConfigError
from cedos.kernel.interface_kind import HardwareSource, Identity, Sysfs, guess, identify
from cedos.kernel.rtnetlink import Link
from cedos.model import NetworkKind, NetworkOverride

_SYSFS: Final = Sysfs()


def user_overrides() -> Mapping[str, NetworkOverride]:
    """What the user tells the daemon of interfaces, where this program may read it."""
    try:
        return config.load().network_overrides()
    except ConfigError:  # the daemon says what is wrong with it
        return {}


class NetworkIdentifier:
    """Takes interfaces for what the daemon takes them for, by the user's word, driver or name."""

    def __init__(
        self, overrides: Mapping[str, NetworkOverride], hardware: HardwareSource = _SYSFS
    ) -> None:
        self._overrides = overrides
        self._hardware = hardware
        self._known: dict[tuple[int, str, bytes], Identity] = {}

    def identify(self, link: Link) -> Identity:
        """What the daemon leaves alone (a VPN, say) may carry a session all the same."""
        key = link.index, link.name, link.hardware_address
        found = self._known.get(key)
        if found is None:
            hardware = self._hardware.look_up(link)
            found = identify(link, hardware, self._overrides)
            if found is None:
                kind = guess(link, hardware) or NetworkKind.ETHERNET
                found = Identity(link.name, kind)
            self._known[key] = found
        return found
