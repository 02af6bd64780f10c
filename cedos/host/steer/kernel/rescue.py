"""The interface of a rescue of first packets to the operating system, and its twin for dry runs.

A rescued flow is one whose packets leave over another network than the one that its socket has the
address of: a rule of its own leads it there, and the kernel translates its address. The rules are
`Routing`'s; the rest is here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cedos.host.steer.journal_records import RESCUE, Record
from cedos.kernel.sock_diag import ConnectingSocket
from cedos.model import Address, FlowKey

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Privileged:
    """The mark of an operation that needs privileges: it is carried out where those are.

    `needs`: what the journal must hold before. `slow`: it may wait for iptables.
    """

    needs: Record | None
    slow: bool


def mark_privileged(
    needs: Record | None = None, *, slow: bool = False
) -> Callable[[Method], Method]:
    """Mark an operation as privileged.

    The daemon's proxy and its counterpart are made of these marks (`cedos.host.privileged`). An
    argument that an attacker could choose has a check of its own there.
    """

    def mark(method: Method) -> Method:
        method.__dict__["privileged"] = Privileged(needs, slow)
        return method

    return mark


def operations(interface: type) -> Iterator[tuple[Callable[..., Any], Privileged]]:
    """Yield the privileged operations of an interface."""
    for method in vars(interface).values():
        if (mark := getattr(method, "privileged", None)) is not None:
            yield method, mark


class RescueKernel(Protocol):
    """An interface whose methods act at once; refusals are OSError with the kernel's own words."""

    @mark_privileged(RESCUE, slow=True)
    def prepare(self) -> None:
        """Put in what translates and refuses; it concerns no flow until one is `adopt`ed.

        A second time repairs what others took out.
        """

    @mark_privileged(slow=True)
    def stands(self) -> bool:
        """Return whether the packet filter does all of that; whether a set has gone, its chains tell."""

    @mark_privileged(slow=True)
    def is_prepared(self) -> bool:
        """Return whether something of that is there."""

    @mark_privileged(slow=True)
    def remove(self) -> bool:
        """Take all of it out, also what a dead process left; return whether there was something."""

    @mark_privileged()
    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        """Return the flow's socket while it waits for its first answer; None: no longer, or not ours.

        A socket that its program has bound to an interface does not show: it is not to be moved.
        """

    @mark_privileged(RESCUE)
    def adopt(self, key: FlowKey) -> None:
        """Refuse what still comes to the socket's own address, and have the flow translated.

        It gets the address of the interface that it leaves by, once connection tracking has
        forgotten it (`forget`).
        """

    @mark_privileged()
    def release(self, key: FlowKey) -> None:
        """Take `adopt` back; a translation that is in use stays until the flow ends."""

    @mark_privileged()
    def forget(self, key: FlowKey) -> None:
        """Make connection tracking forget the flow; one that is not known is fine."""

    @mark_privileged()
    def repeat_early(self) -> None:
        """Let `set_first_timeouts` work. PermissionError without CAP_BPF; OSError, HostError."""

    @mark_privileged()
    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        """Replace the time-outs of first packets, by local address; all others have the kernel's."""

    @mark_privileged()
    def repeat_as_usual(self) -> None:
        """Take `repeat_early` back."""

    def close(self) -> None:
        """Give up all sockets; nothing is undone by this."""


class DryRescue:
    """Reads, and tells what would be done."""

    def __init__(self, real: RescueKernel, tell: Callable[[str], None]) -> None:
        self._real = real
        self._tell = tell

    def prepare(self) -> None:
        self._tell("packet filter: translate and guard the flows in the sets cedos-rescued-*")

    def stands(self) -> bool:
        return True

    def is_prepared(self) -> bool:
        return self._real.is_prepared()

    def remove(self) -> bool:
        return self._real.is_prepared()

    def connecting(self, key: FlowKey) -> ConnectingSocket | None:
        return self._real.connecting(key)

    def adopt(self, key: FlowKey) -> None:
        self._tell(f"translate {flow_text(key)}, refuse late answers to it")

    def release(self, key: FlowKey) -> None:
        self._tell(f"translate {flow_text(key)} no more")

    def forget(self, key: FlowKey) -> None:
        self._tell(f"make connection tracking forget {flow_text(key)}")

    def repeat_early(self) -> None:
        self._tell("repeat first packets early, by a BPF program on all sockets")

    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        pass

    def repeat_as_usual(self) -> None:
        pass

    def close(self) -> None:
        self._real.close()


def flow_text(key: FlowKey) -> str:
    return f"{key.local} port {key.local_port} -> {key.remote} port {key.remote_port}"
