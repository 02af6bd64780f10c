"""Undoing what a process that is gone has left, by its journal and by what is recognisably ours."""

from collections.abc import Callable
from pathlib import Path

from cedos.host.steer.journal.journal import Journal, JournalKeeper
from cedos.host.steer.journal.records import JournalReading
from cedos.host.steer.kernel.dry import DryKernel
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.refusals import refusals
from cedos.host.steer.undo import Undone, undo_all


def restore(
    state_dir: Path,
    dry_run: bool = False,
    kernel: SteeringKernel | None = None,
    open_journal: Callable[[], JournalKeeper] | None = None,
) -> Undone:
    """Undo what a dead daemon left; a journal of which something is left stays.

    A dry run only tells. `kernel` None: the one of the calling thread's namespace; `open_journal` where
    another process keeps it. Raises
    AlreadyRunningError while the journal's process lives, PrivilegeError, and SteeringError where the
    state directory cannot be used.
    """
    journal: JournalKeeper | None = None
    if state_dir.is_dir():
        journal = open_journal() if open_journal else Journal(state_dir)
    try:
        read = journal.read() if journal is not None else JournalReading()
        actual = kernel or LinuxKernel()
        try:
            if dry_run:
                return undo_all(DryKernel(actual, lambda _: None), read)
            undone = undo_all(actual, read)
        finally:
            actual.close()
        if isinstance(undone.refused, PermissionError):
            with refusals("undo everything"):
                raise undone.refused
        if journal is not None and not undone.left:
            journal.remove()
        return undone
    finally:
        if journal is not None:
            journal.close()
