"""Undoing by the journal what a process that is gone has left."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cedos.errors import CedosError, PrivilegeError, SteeringError
from cedos.steer.journal import FILE_NAME, Journal
from cedos.steer.kernel.dry import DryKernel
from cedos.steer.kernel.interface import Kernel
from cedos.steer.kernel.linux import LinuxKernel
from cedos.steer.undo import undo_all


def restore(state_dir: Path, dry_run: bool = False, kernel: Kernel | None = None) -> list[str]:
    """Undoes what a dead daemon left, by its journal.

    Args:
        state_dir: where the journal is.
        dry_run: only say what would be undone.
        kernel: what to act on; None: the one of the calling thread's namespace.

    Returns:
        What was undone, in words; nothing where there is no journal.

    Raises:
        AlreadyRunningError: the journal belongs to a process that lives.
        PrivilegeError: the journal may not be read, or the kernel refuses.
        SteeringError: something could not be undone; the journal stays.
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


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """The kernel's refusals as errors of cedos: PrivilegeError, SteeringError."""
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
