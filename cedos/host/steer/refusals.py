"""The kernel's refusals as errors of cedos."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from cedos.errors import CedosError, PrivilegeError, SteeringError


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
