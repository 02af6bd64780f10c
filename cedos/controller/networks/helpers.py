"""The bytes that each helper has carried: several share an interface, whose counter has their sum. Pure.

The kernel counts the payload of each connection, as the gateway does that signs the receipts.
"""

from collections.abc import Iterable, Sequence

from cedos.controller.events import FlowClosed, FlowSample
from cedos.model import Address, FlowKey, Network


class HelperBytes:
    """Counts the payload of connections from helpers' addresses, by helper."""

    def __init__(self) -> None:
        self._owners: dict[Address, str] = {}
        # Helpers of before the daemon's start: what their connections carried then is not counted.
        self._strangers: frozenset[Address] | None = None
        self._seen: dict[FlowKey, tuple[int, int]] = {}
        self._totals: dict[str, tuple[int, int]] = {}

    def of(self, helper: str) -> tuple[int, int]:
        """Return the bytes received and sent by way of the helpers of this name."""
        return self._totals.get(helper, (0, 0))

    def networks_changed(self, helpers: Sequence[Network]) -> None:
        """Take the helpers of now; the connections of those that are gone are forgotten."""
        self._owners = {each.ip: helper.name for helper in helpers for each in helper.addresses}
        if self._strangers is None:
            self._strangers = frozenset(self._owners)
        self._seen = {key: seen for key, seen in self._seen.items() if key.local in self._owners}

    def on_samples(self, samples: Iterable[FlowSample]) -> set[str]:
        """Take a look at the connections; return the helpers that have carried something since."""
        found = {self._count(each) for each in samples if each.key.local in self._owners}
        return {name for name in found if name is not None}

    def on_close(self, event: FlowClosed) -> None:
        """Take the final figures of a connection."""
        if event.key.local in self._owners:
            self._count(event)
            self._seen.pop(event.key, None)

    def _count(self, now: FlowSample | FlowClosed) -> str | None:
        """Add what a connection has carried since the last look; return its helper if that is more."""
        key, carried = now.key, (now.bytes_down, now.bytes_up)
        is_old = key not in self._seen and key.local in (self._strangers or ())
        before = carried if is_old else self._seen.get(key, (0, 0))
        self._seen[key] = carried
        down, up = (max(new - old, 0) for new, old in zip(carried, before, strict=True))
        if not down + up:
            return None
        name = self._owners[key.local]
        received, sent = self.of(name)
        self._totals[name] = received + down, sent + up
        return name
