"""The interface of steering to the operating system: `LinuxKernel`, `DryKernel`, a test's double."""

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from cedos.errors import CedosError, PrivilegeError, SteeringError
from cedos.host.steer.journal_records import FILTER, ROUTING
from cedos.host.steer.kernel.rescue import RescueKernel, mark_privileged
from cedos.kernel.mptcp import MptcpEvent, PathManagerCommand
from cedos.kernel.policy_routing import Route, Rule, SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.kernel.sock_diag import TcpSocket
from cedos.model import Address, FlowKey


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """The parts of our packet filter that are to be in place.

    `track`: flows are tracked; `rescue`: rescued flows are translated.

    `barred`: the interfaces that programs are kept off; None: no chain for that.
    `holds`: answers to look-ups wait until the daemon has read them; None: no chain for that.
    """

    track: bool = False
    rescue: bool = False
    barred: tuple[str, ...] | None = None
    holds: bool | None = None

    def __bool__(self) -> bool:
        return self.track or self.rescue or bool(self.barred) or bool(self.holds)


class SteeringKernel(Protocol):
    """An interface whose methods act at once; refusals are OSError with the kernel's own words.

    Adding what is there and deleting what is gone are no refusals.
    """

    @property
    def rescue(self) -> RescueKernel: ...

    def rules(self) -> Sequence[SeenRule]:
        """Return all policy rules of both IP versions, in the order in which the kernel asks them."""

    @mark_privileged(ROUTING)
    def add_rules(self, rules: Sequence[Rule]) -> None:
        """Add rules in this order; one with an equal preference is asked after those there."""

    @mark_privileged()
    def delete_rules(self, rules: Sequence[Rule]) -> None:
        """Delete rules of ours in this order."""

    def routes(self, protocol: int = 0) -> Sequence[SeenRoute]:
        """Return default routes, parts of one, and ours, of all tables; with a protocol, those of it.

        Those that refuse are among them. Of announced ones the best are (`DefaultRoutesFilter`).
        TimeoutError: routes are announced faster than they can be read.
        """

    def specific_routes(self) -> Sequence[SeenRoute]:
        """Return main's routes that are more specific than a default one, 256 of each interface.

        TimeoutError: as for `routes`.
        From now on a change of those that programs make is a change of routing for `watch`.
        """

    @mark_privileged(ROUTING)
    def add_routes(self, routes: Sequence[Route]) -> None:
        """Add routes, replacing those to the same destination in the same table."""

    @mark_privileged()
    def delete_routes(self, routes: Sequence[Route]) -> None: ...

    def links(self) -> Sequence[Link]: ...

    def lookup(self, remote: Address, local: Address | None = None) -> SeenRoute | None:
        """Return the route that a packet to `remote` (from `local`) would take, if any."""

    def read_sysctl(self, key: str) -> str | None:
        """Return a sysctl's value without its line's end; None where this kernel does not have it."""

    @mark_privileged()
    def write_sysctl(self, key: str, value: str) -> None: ...

    @mark_privileged()
    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        """Carry out path-manager commands in order; what became of each."""

    @mark_privileged()
    def ours_to_steer(self, token: int) -> bool:
        """Return whether a living connection was made under the userspace path manager."""

    def sockets(self) -> Sequence[TcpSocket]:
        """Return all TCP sockets that listen or are connected."""

    @mark_privileged()
    def close_silent(self, key: FlowKey) -> bool:
        """Close a plain TCP connection on which nothing has come for a second; return whether it was.

        Its program reads ECONNABORTED.
        """

    @mark_privileged(FILTER, slow=True)
    def track_flows(self) -> None:
        """Put our packet filter in: it makes the kernel track flows."""

    @mark_privileged(FILTER, slow=True)
    def bar(self, interfaces: Sequence[str]) -> None:
        """Have the packet filter bar these interfaces for programs, and no others."""

    @mark_privileged(FILTER, slow=True)
    def hold_answers(self, on: bool) -> None:
        """Let answers to look-ups wait in our queue, or pass. OSError: iptables cannot."""

    @mark_privileged(FILTER, slow=True)
    def repair_filter(self, plan: FilterPlan) -> bool:
        """Put back what of that is not in the packet filter; return whether there was something."""

    @mark_privileged(FILTER)
    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        """Put back what is missing of the second wall at these; return whether something was.

        It takes less than a millisecond. HostError: this kernel cannot have one.
        """

    @mark_privileged(FILTER)
    def forbid(self, index: int, changes: Sequence[tuple[bytes, bool | None]]) -> None:
        """Say of elements (`rule_filter`) whether programs may begin nothing there over an interface.

        None: forget one. HostError: this kernel cannot hold programs back there.
        """

    @mark_privileged(FILTER)
    def put_back_rules(self) -> bool:
        """Put back what others took out of that; return whether there was something."""

    @mark_privileged(slow=True)
    def remove_wall(self, but: Sequence[str]) -> bool:
        """Take the second wall away wherever it stands but at these; return whether there was one.

        What another process forbade at interfaces goes, too.
        """

    def watch_filter(self, on_change: Callable[[], None]) -> None:
        """Call back from the running event loop when something of ours may have gone.

        HostError where the kernel tells no such thing.
        """

    def filter_is_told(self) -> bool:
        """Return whether the packet filter is of the kind whose changes are told (`watch_filter`)."""

    @mark_privileged(slow=True)
    def has_filter(self) -> bool: ...

    @mark_privileged(slow=True)
    def remove_filter(self) -> bool:
        """Remove our packet filter; return whether there was one."""

    def watch(
        self,
        on_mptcp_event: Callable[[MptcpEvent], None],
        on_routing_change: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        """Call back from the running event loop: path events, changed routing, lost events."""

    def close(self) -> None:
        """Give up all sockets; nothing that was changed is undone by this."""


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn an OSError into a PrivilegeError or SteeringError that says what could not be done."""
    try:
        yield
    except CedosError:
        raise
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES):
            raise PrivilegeError(
                f"the kernel does not let this process {what} ({error.strerror}): CAP_NET_ADMIN is"
                " needed; run it as root, or by the systemd unit"
            ) from error
        raise SteeringError(f"the kernel refuses to {what}: {error.strerror}") from error
