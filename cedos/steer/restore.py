"""Undoing by the journal what a process that is gone has left."""

from pathlib import Path

from cedos.steer.journal.journal import FILE_NAME, Journal
from cedos.steer.kernel.dry import DryKernel
from cedos.steer.kernel.interface import SteeringKernel
from cedos.steer.kernel.linux import LinuxKernel
from cedos.steer.refusals import refusals
from cedos.steer.undo import undo_all


def restore(
    state_dir: Path, dry_run: bool = False, kernel: SteeringKernel | None = None
) -> list[str]:
    """Undoes what a dead daemon left, by its journal; what was undone, in words.

    A dry run only tells. `kernel` None: the one of the calling thread's namespace. Raises
    AlreadyRunningError while the journal's process lives, PrivilegeError, and SteeringError where
    something could not be undone: then the journal stays.
    """
    if not (state_dir / FILE_NAME).exists():
        return []
    journal = Journal(state_dir)
    try:
        actual = kernel or LinuxKernel()
        try:
            with refusals("undo everything"):
                if dry_run:
                    return undo_all(DryKernel(actual, lambda _: None), journal.records())
                done = undo_all(actual, journal.records())
                journal.remove()
                return done
        finally:
            actual.close()
    finally:
        journal.close()
