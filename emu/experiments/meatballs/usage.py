"""What a trial spent: joules of the radios and bytes on the wire, as it goes on and at its end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cedos.errors import ConfigError
from cedos.selector.energy.radio import Radio
from cedos.storage.radio_file import radios


class Watch(Protocol):
    """A radio's states as its traffic makes them (`cedos.selector.energy.radio`)."""

    def carried(self, now_s: float, bytes_up: float, bytes_down: float) -> None: ...

    def idle_s(self, now_s: float) -> float | None: ...

    def energy_j(self, now_s: float) -> float:
        """Joules spent from the beginning until now."""
        ...


@dataclass(slots=True)
class _Bytes:
    up: int = 0
    down: int = 0


def radios_of(device: str, *technologies: str) -> list[Radio]:
    """A device's radios, in the order of the technologies.

    Raises:
        ConfigError: no such device, or it has no such radio; says which there are.
    """
    known = radios()
    if device not in known:
        raise ConfigError(f"no device {device!r}; there are {', '.join(known)}")
    found = []
    for technology in technologies:
        if technology not in known[device]:
            has = ", ".join(known[device])
            raise ConfigError(f"{device} has no radio {technology!r}; it has {has}")
        found.append(known[device][technology])
    return found


class Usage:
    """Counts for each network what was carried, and lets the radios' states follow.

    Args:
        watches: one per network that costs energy.
    """

    def __init__(self, watches: Mapping[str, Watch]) -> None:
        self._watches = watches
        self._bytes = {name: _Bytes() for name in watches}

    def carried(self, network: str, now_s: float, up_bytes: int, down_bytes: int) -> None:
        """So many bytes passed the link, now; instants must not go back."""
        if up_bytes or down_bytes:
            counted = self._bytes[network]
            counted.up += up_bytes
            counted.down += down_bytes
            self._watches[network].carried(now_s, up_bytes, down_bytes)

    def idle_s(self, network: str, now_s: float) -> float | None:
        """Seconds since the network was last used; None: never."""
        return self._watches[network].idle_s(now_s)

    def bytes_of(self, network: str) -> int:
        return self._bytes[network].up + self._bytes[network].down

    def energy_j(self, now_s: float) -> float:
        return sum(watch.energy_j(now_s) for watch in self._watches.values())
