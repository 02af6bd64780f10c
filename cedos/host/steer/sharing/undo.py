"""Undoing what sharing changed: by its marks, and by the journal what bears none."""

import os
from collections.abc import Callable
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from cedos.errors import HostError, SteeringError
from cedos.host.steer.journal import Journal
from cedos.host.steer.journal_records import (
    ELSEWHERE,
    SHARING,
    InterfaceForwardingRecord,
    JournalReading,
    of_here,
)
from cedos.host.steer.kernel import forwarding_filter
from cedos.host.steer.sharing.kernel import SharingKernel, SharingRole
from cedos.host.steer.undo import Undone
from cedos.kernel.policy_routing import SHARING_PROTOCOL

# The folder of each side's journal, below the state directory.
FOLDERS: Final = {SharingRole.HELP: "share-help", SharingRole.REQUEST: "share-request"}


def open_journal(state_dir: Path, role: SharingRole) -> Journal:
    """Return the journal of a side; errors as for `Journal`."""
    return Journal(state_dir, FOLDERS[role])


def undo_sharing(
    kernel: SharingKernel, role: SharingRole, read: JournalReading, *, dry_run: bool = False
) -> Undone:
    """Undo everything of one side that stands; a dry run only tells."""
    done: list[str] = []
    read, elsewhere = of_here(read)
    left: list[str] = [*read.foreign, *([ELSEWHERE] if elsewhere else [])]
    refused: OSError | None = None

    def step(what: str, undo: Callable[[], object]) -> bool:
        nonlocal refused
        try:
            if not dry_run:
                undo()
            done.append(what)
            return True
        except (OSError, HostError) as error:
            left.append(f"{what}: {error}")
            if isinstance(error, OSError):
                refused = refused or error
            return False

    try:
        if role is SharingRole.HELP:
            _undo_help(kernel, read, step)
        else:
            _undo_request(kernel, step)
    except (OSError, HostError) as error:  # what follows is undone all the same
        left.append(f"the host's interfaces: {error}")
    # The rules go last: until then nothing leaves by another way than its own.
    for route in kernel.own_routes(role):
        step(f"deleted: {route}", partial(kernel.delete_routes, [route]))
    for rule in sorted(kernel.own_rules(role), key=lambda rule: rule.preference):
        step(f"deleted: {rule}", partial(kernel.delete_rules, [rule]))
    return Undone(tuple(done), tuple(left), refused)


# Returns whether it is done.
_Step = Callable[[str, Callable[[], object]], bool]


def _undo_help(kernel: SharingKernel, read: JournalReading, step: _Step) -> None:
    records = [each for each in read.records if isinstance(each, InterfaceForwardingRecord)]
    forwarding = [name for each in records if (name := kernel.forwarding_name(each.index))]
    ended = [
        step(f"set back: {name} forwards nothing", partial(kernel.forward, name, False))
        for name in forwarding
    ]
    # Forwarding ends before the filter that bounds it, or the filter stays.
    present = forwarding_filter.present()
    if present and all(ended):
        step("deleted: the chains CEDOSHARE_* of iptables", forwarding_filter.remove)
    if present or SHARING in read.records:  # others may have flushed the chains
        step("cut: connections of requestors", kernel.forget_requestors)
    for each in kernel.neighbours():
        if each.protocol == SHARING_PROTOCOL:
            step(f"deleted: neighbour {each.address}", partial(kernel.delete_neighbour, each))


def _undo_request(kernel: SharingKernel, step: _Step) -> None:
    for each in kernel.own_addresses():
        if isinstance(address := each.interface.ip, IPv4Address):
            step(f"deleted: address {address}", partial(kernel.delete_address, each.index, address))


def restore_sharing(state_dir: Path, role: SharingRole, *, dry_run: bool = False) -> Undone:
    """Undo what a dead process of this side left; a journal of which something is left stays.

    Raises AlreadyRunningError while the journal's process lives, else as `Journal`.
    """
    kernel = SharingKernel()
    try:
        if not os.path.lexists(state_dir / FOLDERS[role]):
            return undo_sharing(kernel, role, JournalReading(), dry_run=dry_run)
        try:
            journal = open_journal(state_dir, role)
        except SteeringError as error:  # what bears our mark is undone all the same
            read = JournalReading((), [str(error)], damaged=True)
            return undo_sharing(kernel, role, read, dry_run=dry_run)
        try:
            undone = undo_sharing(kernel, role, journal.read(), dry_run=dry_run)
            if not dry_run and not undone.left:
                journal.remove()
            return undone
        finally:
            journal.close()
    finally:
        kernel.close()
