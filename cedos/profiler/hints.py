"""What applications say outright about their transfers (Delphi, section 4: the API call)."""

from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

from cedos.errors import ConfigError
from cedos.model import Direction, FlowKey, Label


@dataclass(frozen=True, slots=True)
class HintMatch:
    """Which transfers a hint is about: those that fit everything that is given; one must be.

    `destination` is an address or a prefix (`198.51.100.0/24`). `server_name` is a name, or `*.` and
    a domain for all names below it. `local_port` and `mark` single out sockets that were bound or
    marked (`SO_MARK`) before they connected.
    """

    destination: str | None = None
    port: int | None = None
    server_name: str | None = None
    local_port: int | None = None
    mark: int | None = None
    _prefix: IPv4Network | IPv6Network | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not any((self.destination, self.port, self.server_name, self.local_port, self.mark)):
            raise ConfigError("a hint says which transfers it means: a destination, port or name")
        prefix = None
        if self.destination is not None:
            try:
                prefix = ip_network(self.destination, strict=False)
            except ValueError as error:
                raise ConfigError(
                    "a hint's destination is an address or a prefix such as 198.51.100.0/24, "
                    f"not {self.destination!r}"
                ) from error
        object.__setattr__(self, "_prefix", prefix)

    def fits(self, key: FlowKey, server_name: str | None, mark: int | None) -> bool:
        return (
            self.port in (None, key.remote_port)
            and self.local_port in (None, key.local_port)
            and self.mark in (None, mark)
            and (self._prefix is None or key.remote in self._prefix)
            and (self.server_name is None or _names(self.server_name, server_name))
        )


def _names(wanted: str, server_name: str | None) -> bool:
    if server_name is None:
        return False
    wanted = wanted.lower().removesuffix(".")
    return server_name.endswith(wanted[1:]) if wanted.startswith("*.") else server_name == wanted


@dataclass(frozen=True, slots=True)
class TransferHint:
    """`deadline_s` counts from each transfer's start; `until_s` is monotonic, None for ever."""

    match: HintMatch
    size_bytes: int | None = None
    direction: Direction | None = None
    label: Label | None = None
    deadline_s: float | None = None
    until_s: float | None = None


class TransferHints:
    """The hints in force; of several that fit a flow the newest counts."""

    def __init__(self) -> None:
        self._hints: dict[int, TransferHint] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._hints)

    @property
    def by_mark(self) -> bool:
        return any(hint.match.mark is not None for hint in self._hints.values())

    def add(self, hint: TransferHint) -> int:
        """Puts a hint in force and gives its number. How many there may be is its giver's business."""
        self._last_number += 1
        self._hints[self._last_number] = hint
        return self._last_number

    def remove(self, number: int) -> bool:
        return self._hints.pop(number, None) is not None

    def find(
        self, key: FlowKey, server_name: str | None, mark: int | None, now_s: float
    ) -> TransferHint | None:
        if not self._hints:
            return None
        self._hints = {
            number: hint
            for number, hint in self._hints.items()
            if hint.until_s is None or hint.until_s > now_s
        }
        for hint in reversed(self._hints.values()):
            if hint.match.fits(key, server_name, mark):
                return hint
        return None
