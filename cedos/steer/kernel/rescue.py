"""What a rescue of first packets needs of an operating system, and its doubles.

A rescued flow is one whose packets leave over another network than the one that its socket has the
address of: a rule of its own leads it there, and the kernel translates its address. The rules are
`Routing`'s; the rest is here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cedos.model import FlowKey


@dataclass(frozen=True, slots=True)
class Connecting:
    """A TCP socket that still waits for the first answer (SYN_SENT).

    Args:
        resend_in_s: how long until the kernel sends the first packet again.
        resent: how often it has.
        join: it is a further subflow of an MPTCP connection, which belongs to its network.
    """

    resend_in_s: float
    resent: int
    join: bool


class RescueKernel(Protocol):
    """All methods act at once; refusals are OSError with the kernel's own words."""

    def prepare(self) -> None:
        """Puts in what translates and refuses; it concerns no flow until one is `adopt`ed.

        A second time repairs what others took out.
        """

    def prepared(self) -> bool:
        """Whether something of that is there."""

    def remove(self) -> bool:
        """Takes all of it out, also what a dead process left; whether there was something."""

    def connecting(self, key: FlowKey) -> Connecting | None:
        """The flow's socket while it waits for its first answer; None: no longer, or not ours.

        A socket that its program has bound to an interface does not show: it is not to be moved.
        """

    def adopt(self, key: FlowKey) -> None:
        """Refuses what still comes to the socket's own address, and has the flow translated.

        It gets the address of the interface that it leaves by, once connection tracking has
        forgotten it (`forget`).
        """

    def release(self, key: FlowKey) -> None:
        """Takes `adopt` back; a translation that is in use stays until the flow ends."""

    def forget(self, key: FlowKey) -> None:
        """Makes connection tracking forget the flow; one that is not known is fine."""

    def close(self) -> None:
        """Gives up all sockets; nothing is undone by this."""


class DryRescue:
    """Looks, and says what would be done."""

    def __init__(self, real: RescueKernel, say: Callable[[str], None]) -> None:
        self._real = real
        self._say = say

    def prepare(self) -> None:
        """See `RescueKernel`."""
        self._say("packet filter: translate and guard the flows in the sets cedos-rescued-*")

    def prepared(self) -> bool:
        """See `RescueKernel`."""
        return self._real.prepared()

    def remove(self) -> bool:
        """See `RescueKernel`."""
        return self._real.prepared()

    def connecting(self, key: FlowKey) -> Connecting | None:
        """See `RescueKernel`."""
        return self._real.connecting(key)

    def adopt(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._say(f"translate {_text(key)}, refuse late answers to it")

    def release(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._say(f"translate {_text(key)} no more")

    def forget(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._say(f"make connection tracking forget {_text(key)}")

    def close(self) -> None:
        """See `RescueKernel`."""
        self._real.close()


class MemoryRescue:
    """In memory, for tests. Everything public is there to be set up and looked at."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self.waiting: dict[FlowKey, Connecting] = {}
        self.adopted: set[FlowKey] = set()
        self.there = False
        self._changed = changed

    def prepare(self) -> None:
        """See `RescueKernel`."""
        self._changed("rescue: prepare")
        self.there = True

    def prepared(self) -> bool:
        """See `RescueKernel`."""
        return self.there

    def remove(self) -> bool:
        """See `RescueKernel`."""
        there, self.there = self.there, False
        self.adopted.clear()
        return there

    def connecting(self, key: FlowKey) -> Connecting | None:
        """See `RescueKernel`."""
        return self.waiting.get(key)

    def adopt(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._changed(f"rescue: adopt {_text(key)}")
        self.adopted.add(key)

    def release(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._changed(f"rescue: release {_text(key)}")
        self.adopted.discard(key)

    def forget(self, key: FlowKey) -> None:
        """See `RescueKernel`."""
        self._changed(f"rescue: forget {_text(key)}")

    def close(self) -> None:
        """See `RescueKernel`."""


def _text(key: FlowKey) -> str:
    return f"{key.local} port {key.local_port} -> {key.remote} port {key.remote_port}"
